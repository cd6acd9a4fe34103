//! Chunks that never move: where slabs and the columns of tokens keep what is appended to them.
//!
//! What was stored is contiguous and stays where it is; growing allocates another chunk and copies nothing. A reset
//! keeps the chunks, so that the next tree writes into memory that is mapped and warm.

use crate::error::{Error, Result};
use crate::id;
use crate::storage::held;

/// Elements in the first chunk; a further one has half of what is stored, up to [`MAX_CHUNK`], or is as long as what must go
/// into it. Nothing is copied when storage grows, so it can grow by little, and a third of it at most lies idle.
const MIN_CHUNK: usize = 1 << 8;
/// The same for elements of several bytes: most trees have a few fork paths of a number or two.
const MIN_WIDE_CHUNK: usize = 1 << 4;
pub(crate) const MAX_CHUNK: usize = 1 << 20;

/// Where a run of elements lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    chunk: u32,
    start: u32,
    len: u32,
}

impl Span {
    /// How many elements.
    #[must_use]
    pub const fn len(self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The first `at` elements, and the rest.
    ///
    /// # Panics
    /// If `at` is beyond the end.
    #[must_use]
    pub const fn split(self, at: u32) -> (Self, Self) {
        assert!(at <= self.len, "a span is split inside");
        (Self { len: at, ..self }, Self { start: self.start + at, len: self.len - at, ..self })
    }

    /// Where it lies in its chunk.
    pub(crate) const fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.start as usize + self.len as usize
    }
}

/// Memory of a fixed capacity that is filled from its start.
pub(crate) trait Chunk {
    /// Elements in the first chunk.
    const FIRST: usize = MIN_CHUNK;
    fn with_capacity(len: usize) -> Self;
    fn len(&self) -> usize;
    fn capacity(&self) -> usize;
    fn clear(&mut self);
    /// Bytes that memory is held for.
    fn memory(&self) -> usize;
}

impl<T> Chunk for Vec<T> {
    const FIRST: usize = if size_of::<T>() == 1 { MIN_CHUNK } else { MIN_WIDE_CHUNK };

    fn with_capacity(len: usize) -> Self {
        Self::with_capacity(len)
    }

    fn len(&self) -> usize {
        self.len()
    }

    fn capacity(&self) -> usize {
        self.capacity()
    }

    fn clear(&mut self) {
        self.clear();
    }

    fn memory(&self) -> usize {
        held(self)
    }
}

/// Chunks in the order they are filled. Those after the current one are empty, left by a reset.
#[derive(Clone, Debug)]
pub(crate) struct Chunks<C> {
    all: Vec<C>,
    current: usize,
    len: usize,
}

impl<C> Chunks<C> {
    pub(crate) const fn new() -> Self {
        Self { all: Vec::new(), current: 0, len: 0 }
    }
}

impl<C: Chunk> Chunks<C> {
    /// A chunk that the caller appends `len` elements to, and where they will lie.
    ///
    /// # Errors
    /// [`Error::TooLong`] or [`Error::Full`] if no span can address them.
    pub(crate) fn room(&mut self, what: &'static str, len: usize) -> Result<(&mut C, Span)> {
        let word = |number| u32::try_from(number).map_err(|_| Error::TooLong { what, len });
        let size = word(len)?;
        self.make_room(len);
        let chunk = id::next(self.current, "chunk")?;
        let store = &mut self.all[self.current];
        let span = Span { chunk, start: word(store.len())?, len: size };
        self.len += len;
        Ok((store, span))
    }

    /// Make the current chunk one that can take `len` more elements without growing.
    fn make_room(&mut self, len: usize) {
        let fits = |chunk: &C| chunk.capacity() - chunk.len() >= len;
        if self.all.get(self.current).is_some_and(fits) {
            return;
        }
        let next = if self.all.is_empty() { 0 } else { self.current + 1 };
        if let Some(found) = self.all.iter().skip(next).position(fits) {
            self.all.swap(next, next + found);
        } else {
            let chunk = C::with_capacity((self.len / 2).clamp(C::FIRST, MAX_CHUNK).max(len));
            match self.all.get_mut(next) {
                // In place of an empty one that is too short: what trees need by turns must not add up.
                Some(short) => *short = chunk,
                None => self.all.push(chunk),
            }
        }
        self.current = next;
    }

    /// The chunk that a span lies in.
    ///
    /// # Panics
    /// If the span is of other chunks and out of bounds here.
    pub(crate) fn of(&self, span: Span) -> &C {
        &self.all[span.chunk as usize]
    }

    /// Whether the span lies inside what was stored.
    pub(crate) fn holds(&self, span: Span) -> bool {
        self.all.get(span.chunk as usize).is_some_and(|chunk| span.range().end <= chunk.len())
    }

    /// Elements stored.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Bytes that memory is held for.
    pub(crate) fn memory(&self) -> usize {
        self.all.iter().map(C::memory).sum()
    }

    /// Forget everything and keep the memory. Spans made before are void.
    pub(crate) fn reset(&mut self) {
        self.all.iter_mut().for_each(C::clear);
        self.current = 0;
        self.len = 0;
    }
}

/// Append-only storage for runs of `T`.
#[derive(Clone, Debug)]
pub(crate) struct Slab<T> {
    chunks: Chunks<Vec<T>>,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self { chunks: Chunks::new() }
    }
}

impl<T: Copy> Slab<T> {
    /// Store a copy of `items` in one piece.
    ///
    /// # Errors
    /// If no span can address it.
    pub(crate) fn push(&mut self, items: &[T]) -> Result<Span> {
        let (chunk, span) = self.chunks.room("run", items.len())?;
        chunk.extend_from_slice(items);
        Ok(span)
    }

    /// The elements of a span made by this slab since its last reset.
    ///
    /// # Panics
    /// If the span is of another slab and out of bounds here.
    pub(crate) fn get(&self, span: Span) -> &[T] {
        &self.chunks.of(span)[span.range()]
    }

    /// Whether the span lies inside what was stored.
    pub(crate) fn holds(&self, span: Span) -> bool {
        self.chunks.holds(span)
    }

    /// Elements stored.
    pub(crate) const fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Bytes that memory is held for.
    pub(crate) fn memory(&self) -> usize {
        self.chunks.memory()
    }

    /// Forget everything and keep the memory. Spans made before are void.
    pub(crate) fn reset(&mut self) {
        self.chunks.reset();
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use proptest::prelude::*;

    use super::{MAX_CHUNK, Slab};
    use crate::Random;

    proptest! {
        #[test]
        fn slabs_keep_what_they_are_given_where_they_put_it(
            runs in prop::collection::vec(prop::collection::vec(any::<u16>(), 0..900), 0..60),
            again in prop::collection::vec(prop::collection::vec(any::<u16>(), 0..3000), 0..20),
        ) {
            let mut slab = Slab::new();
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

    /// A worker reuses one tree for thousands of tasks: what they need by turns must not add up.
    #[test]
    fn memory_settles_however_often_a_slab_is_reused() {
        const LONGEST: usize = 3 * MAX_CHUNK;
        let mut chance = Random::new(7);
        let mut slab = Slab::<u8>::new();
        for _ in 0..100 {
            slab.reset();
            for _ in 0..8 {
                slab.push(&vec![0; chance.index(LONGEST)]).unwrap();
            }
            assert!(slab.memory() <= 9 * LONGEST, "{} bytes are held", slab.memory());
        }
    }
}
