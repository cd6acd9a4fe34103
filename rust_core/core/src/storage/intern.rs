//! Interning: equal runs of elements, and equal strings, are stored once and named by a number.
//!
//! A 128-bit hash finds the candidate and the elements themselves decide, so correctness never rests on the hash.

use hashbrown::HashTable;

use crate::error::{Finding, Result};
use crate::id::{self, NameId};
use crate::storage::chunks::{Slab, Span};
use crate::storage::hash::{fingerprint, half};
use crate::storage::held;

/// A set of distinct runs of `T`, numbered in the order they came.
#[derive(Clone, Debug)]
pub(crate) struct Pool<T> {
    what: &'static str,
    slab: Slab<T>,
    runs: Vec<Interned>,
    index: HashTable<u32>,
}

/// Where a run lies, and its hash in two halves, which need less room than a whole.
#[derive(Clone, Copy, Debug)]
struct Interned {
    span: Span,
    hash: [u64; 2],
}

impl<T: Copy + Eq> Pool<T> {
    /// An empty pool of things called `what` in errors.
    pub(crate) const fn new(what: &'static str) -> Self {
        Self { what, slab: Slab::new(), runs: Vec::new(), index: HashTable::new() }
    }

    /// The number of an equal run, if there is one.
    pub(crate) fn find(&self, items: &[T], hash: u128) -> Option<u32> {
        let same = |&id: &u32| self.hash(id) == hash && self.get(id) == items;
        self.index.find(half(hash), same).copied()
    }

    /// Store a run that [`Pool::find`] does not know and return its number.
    pub(crate) fn insert(&mut self, items: &[T], hash: u128) -> Result<u32> {
        let id = id::next(self.runs.len(), self.what)?;
        self.runs.push(Interned { span: self.slab.push(items)?, hash: halves(hash) });
        let runs = &self.runs;
        self.index.insert_unique(half(hash), id, |&other| half(whole(runs[other as usize].hash)));
        Ok(id)
    }

    /// A stored run.
    pub(crate) fn get(&self, id: u32) -> &[T] {
        self.slab.get(self.runs[id as usize].span)
    }

    /// The hash a run was stored under.
    pub(crate) fn hash(&self, id: u32) -> u128 {
        whole(self.runs[id as usize].hash)
    }

    /// How many runs there are.
    pub(crate) fn count(&self) -> u32 {
        id::count(self.runs.len())
    }

    /// Elements stored.
    pub(crate) const fn size(&self) -> usize {
        self.slab.len()
    }

    /// Bytes that memory is held for.
    pub(crate) fn memory(&self) -> usize {
        self.slab.memory() + held(&self.runs) + self.index.allocation_size()
    }

    /// Walk the pool's own invariants: spans in bounds, hashes recomputed, every run found under its own number.
    pub(crate) fn check(&self, hash: impl Fn(&[T]) -> u128) -> Finding {
        let what = self.what;
        if self.index.len() != self.runs.len() {
            return Err(format!("{} {what}s are indexed, {} exist", self.index.len(), self.runs.len()));
        }
        for (id, run) in (0u32..).zip(&self.runs) {
            if !self.slab.holds(run.span) {
                return Err(format!("{what} {id} lies outside its storage"));
            }
            let items = self.get(id);
            if hash(items) != self.hash(id) {
                return Err(format!("{what} {id} is not what was hashed"));
            }
            if self.find(items, self.hash(id)) != Some(id) {
                return Err(format!("{what} {id} is not found under its number"));
            }
        }
        Ok(())
    }

    /// Forget everything and keep the memory.
    pub(crate) fn reset(&mut self) {
        self.slab.reset();
        self.runs.clear();
        self.index.clear();
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the upper half is the other")]
const fn halves(hash: u128) -> [u64; 2] {
    [hash as u64, (hash >> 64) as u64]
}

const fn whole([low, high]: [u64; 2]) -> u128 {
    low as u128 | (high as u128) << 64
}

/// The names of a tree. Id 0 is always the empty string.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    texts: Vec<(Box<str>, u128)>,
    index: HashTable<u32>,
}

impl Names {
    /// Only the empty name.
    pub(crate) fn new() -> Self {
        let mut names = Self { texts: Vec::new(), index: HashTable::new() };
        names.reset();
        names
    }

    /// The id of a name, if it is interned.
    pub(crate) fn find(&self, text: &str) -> Option<NameId> {
        let hash = fingerprint(text.as_bytes());
        let same = |&id: &u32| *self.texts[id as usize].0 == *text;
        self.index.find(half(hash), same).copied().map(NameId::new)
    }

    /// Intern a name that [`Names::find`] does not know.
    pub(crate) fn insert(&mut self, text: &str) -> Result<NameId> {
        let id = id::next(self.texts.len(), "name")?;
        self.push(id, text);
        Ok(NameId::new(id))
    }

    fn push(&mut self, id: u32, text: &str) {
        let hash = fingerprint(text.as_bytes());
        self.texts.push((text.into(), hash));
        let texts = &self.texts;
        self.index.insert_unique(half(hash), id, |&other| half(texts[other as usize].1));
    }

    /// The text of a name.
    pub(crate) fn get(&self, id: NameId) -> &str {
        &self.texts[id.index()].0
    }

    /// The hash of a name's text.
    pub(crate) fn hash(&self, id: NameId) -> u128 {
        self.texts[id.index()].1
    }

    /// How many there are, the empty one included.
    pub(crate) fn count(&self) -> u32 {
        id::count(self.texts.len())
    }

    /// Bytes that memory is held for.
    pub(crate) fn memory(&self) -> usize {
        let texts: usize = self.texts.iter().map(|(text, _)| text.len()).sum();
        texts + held(&self.texts) + self.index.allocation_size()
    }

    /// Walk the invariants of the names.
    pub(crate) fn check(&self) -> Finding {
        for (id, (text, hash)) in (0u32..).zip(&self.texts) {
            if self.find(text) != Some(NameId::new(id)) || *hash != fingerprint(text.as_bytes()) {
                return Err(format!("name {id} is not found under its number"));
            }
        }
        if self.index.len() == self.texts.len() { Ok(()) } else { Err("the index of names has the wrong size".into()) }
    }

    /// Forget every name but the empty one.
    pub(crate) fn reset(&mut self) {
        self.texts.clear();
        self.index.clear();
        self.push(0, "");
    }
}

#[cfg(test)]
mod tests {
    use super::Pool;

    #[test]
    fn runs_with_one_hash_stay_apart() {
        let mut pool = Pool::new("run");
        assert_eq!(pool.insert(b"one", 7), Ok(0));
        assert_eq!(pool.find(b"two", 7), None);
        assert_eq!(pool.insert(b"two", 7), Ok(1));
        assert_eq!((pool.find(b"one", 7), pool.find(b"two", 7)), (Some(0), Some(1)));
        assert_eq!((pool.get(0), pool.get(1), pool.count(), pool.size()), (&b"one"[..], &b"two"[..], 2, 6));
        assert_eq!(pool.check(|_| 7), Ok(()));
        assert!(pool.check(|_| 8).is_err());
    }
}
