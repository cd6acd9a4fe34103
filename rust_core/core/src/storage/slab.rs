//! Append-only storage of runs of one type.

use crate::error::Result;
use crate::storage::chunks::{Chunks, Span};

/// Append-only storage for runs of `T`.
#[derive(Clone, Debug)]
pub(crate) struct Slab<T> {
    chunks: Chunks<Vec<T>>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { chunks: Chunks::default() }
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

    use super::Slab;
    use crate::Random;
    use crate::storage::chunks::MAX_CHUNK;

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

    /// A worker reuses one tree for thousands of tasks: what they need by turns must not add up.
    #[test]
    fn memory_settles_however_often_a_slab_is_reused() {
        const LONGEST: usize = 3 * MAX_CHUNK;
        let mut chance = Random::new(7);
        let mut slab = Slab::<u8>::default();
        for _ in 0..100 {
            slab.reset();
            for _ in 0..8 {
                slab.push(&vec![0; chance.index(LONGEST)]).unwrap();
            }
            assert!(slab.memory() <= 9 * LONGEST, "{} bytes are held", slab.memory());
        }
    }
}
