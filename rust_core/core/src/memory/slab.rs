//! Append-only storage in chunks that never move.
//!
//! What was stored is contiguous and stays where it is; growing allocates another chunk and copies nothing. A reset keeps
//! the chunks, so that the next tree writes into memory that is mapped and warm.

use crate::error::{Error, Result};
use crate::id;
use crate::memory::held;

/// Elements in the first chunk; each further one doubles up to [`MAX_CHUNK`].
const MIN_CHUNK: usize = 1 << 10;
const MAX_CHUNK: usize = 1 << 20;

/// Where a run of elements lies in a [`Slab`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    chunk: u32,
    start: u32,
    len: u32,
}

impl Span {
    /// Number of elements.
    pub(crate) const fn len(self) -> usize {
        self.len as usize
    }
}

/// Append-only storage for runs of `T`.
#[derive(Clone, Debug)]
pub(crate) struct Slab<T> {
    chunks: Vec<Vec<T>>,
    current: usize,
    len: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), current: 0, len: 0 }
    }
}

impl<T: Copy> Slab<T> {
    /// Store a copy of `items` in one piece.
    ///
    /// # Errors
    /// [`Error::TooLong`] or [`Error::Full`] if no span can address it.
    pub(crate) fn push(&mut self, items: &[T]) -> Result<Span> {
        let too_long = |_| Error::TooLong { what: "run", len: items.len() };
        let len = u32::try_from(items.len()).map_err(too_long)?;
        self.make_room(items.len());
        let chunk = id::next(self.current, "chunk")?;
        let store = &mut self.chunks[self.current];
        let start = u32::try_from(store.len()).map_err(too_long)?;
        store.extend_from_slice(items);
        self.len += items.len();
        Ok(Span { chunk, start, len })
    }

    /// Make the current chunk one that can take `len` more elements without growing.
    fn make_room(&mut self, len: usize) {
        let fits = |chunk: &Vec<T>| chunk.capacity() - chunk.len() >= len;
        if self.chunks.get(self.current).is_some_and(fits) {
            return;
        }
        let next = if self.chunks.is_empty() { 0 } else { self.current + 1 };
        // Chunks after the current one are empty (left by a reset), so putting one between moves no span.
        if !self.chunks.get(next).is_some_and(fits) {
            let last = self.chunks.get(self.current).map_or(0, Vec::capacity);
            let size = (last * 2).clamp(MIN_CHUNK, MAX_CHUNK).max(len);
            self.chunks.insert(next, Vec::with_capacity(size));
        }
        self.current = next;
    }

    /// The elements of a span made by this slab since its last reset.
    ///
    /// # Panics
    /// If the span is of another slab and out of bounds here.
    pub(crate) fn get(&self, span: Span) -> &[T] {
        let start = span.start as usize;
        &self.chunks[span.chunk as usize][start..start + span.len()]
    }

    /// Whether the span lies inside what was stored.
    pub(crate) fn holds(&self, span: Span) -> bool {
        let end = span.start as usize + span.len();
        self.chunks.get(span.chunk as usize).is_some_and(|chunk| end <= chunk.len())
    }

    /// Elements stored.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Bytes that memory is held for.
    pub(crate) fn memory(&self) -> usize {
        self.chunks.iter().map(held).sum()
    }

    /// Forget everything and keep the memory. Spans made before are void.
    pub(crate) fn reset(&mut self) {
        self.chunks.iter_mut().for_each(Vec::clear);
        self.current = 0;
        self.len = 0;
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use proptest::prelude::*;

    use super::Slab;

    proptest! {
        #[test]
        fn slabs_keep_what_they_are_given_where_they_put_it(
            runs in prop::collection::vec(prop::collection::vec(any::<u16>(), 0..900), 0..60),
            again in prop::collection::vec(prop::collection::vec(any::<u16>(), 0..3000), 0..20),
        ) {
            let mut slab = Slab::default();
            for rounds in [&runs, &again, &runs] {
                let before = slab.memory();
                slab.reset();
                prop_assert_eq!((slab.len(), slab.memory()), (0, before));
                let mut placed = Vec::new();
                for run in rounds {
                    let span = slab.push(run).unwrap();
                    placed.push((span, slab.get(span).as_ptr()));
                }
                for (run, (span, pointer)) in rounds.iter().zip(placed) {
                    prop_assert_eq!(slab.get(span), &run[..]);
                    prop_assert_eq!(span.len(), run.len());
                    prop_assert!(slab.holds(span));
                    prop_assert_eq!(slab.get(span).as_ptr(), pointer, "a stored run moved");
                }
                prop_assert_eq!(slab.len(), rounds.iter().map(Vec::len).sum::<usize>());
            }
            slab.reset();
            let held = slab.memory();
            for run in &runs {
                slab.push(run).unwrap();
            }
            prop_assert_eq!(slab.memory(), held, "a reset slab asked for memory it had");
        }
    }
}
