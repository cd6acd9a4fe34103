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
    spans: Vec<Span>,
    hashes: Vec<u128>,
    index: HashTable<u32>,
}

impl<T: Copy + Eq> Pool<T> {
    /// An empty pool of things called `what` in errors.
    pub(crate) fn new(what: &'static str) -> Self {
        Self { what, slab: Slab::default(), spans: Vec::new(), hashes: Vec::new(), index: HashTable::new() }
    }

    /// The number of an equal run, if there is one.
    pub(crate) fn find(&self, items: &[T], hash: u128) -> Option<u32> {
        let same = |&id: &u32| self.hashes[id as usize] == hash && self.get(id) == items;
        self.index.find(half(hash), same).copied()
    }

    /// Store a run that [`Pool::find`] does not know and return its number.
    pub(crate) fn insert(&mut self, items: &[T], hash: u128) -> Result<u32> {
        let id = id::next(self.spans.len(), self.what)?;
        self.spans.push(self.slab.push(items)?);
        self.hashes.push(hash);
        let hashes = &self.hashes;
        self.index.insert_unique(half(hash), id, |&other| half(hashes[other as usize]));
        Ok(id)
    }

    /// A stored run.
    pub(crate) fn get(&self, id: u32) -> &[T] {
        self.slab.get(self.spans[id as usize])
    }

    /// The hash a run was stored under.
    pub(crate) fn hash(&self, id: u32) -> u128 {
        self.hashes[id as usize]
    }

    /// How many runs there are.
    pub(crate) fn count(&self) -> u32 {
        id::count(self.spans.len())
    }

    /// Elements stored.
    pub(crate) const fn size(&self) -> usize {
        self.slab.len()
    }

    /// Bytes that memory is held for.
    pub(crate) fn memory(&self) -> usize {
        self.slab.memory() + held(&self.spans) + held(&self.hashes) + self.index.allocation_size()
    }

    /// Walk the pool's own invariants: spans in bounds, hashes recomputed, every run found under its own number.
    pub(crate) fn check(&self, hash: impl Fn(&[T]) -> u128) -> Finding {
        let what = self.what;
        if self.index.len() != self.spans.len() {
            return Err(format!("{} {what}s are indexed, {} exist", self.index.len(), self.spans.len()));
        }
        for (id, span) in (0u32..).zip(&self.spans) {
            if !self.slab.holds(*span) {
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
        self.spans.clear();
        self.hashes.clear();
        self.index.clear();
    }
}

/// The names of a tree. Id 0 is always the empty string.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    texts: Vec<Box<str>>,
    hashes: Vec<u128>,
    index: HashTable<u32>,
}

impl Names {
    /// Only the empty name.
    pub(crate) fn new() -> Self {
        let mut names = Self { texts: Vec::new(), hashes: Vec::new(), index: HashTable::new() };
        names.reset();
        names
    }

    /// The id of a name, if it is interned.
    pub(crate) fn find(&self, text: &str) -> Option<NameId> {
        let hash = fingerprint(text.as_bytes());
        let same = |&id: &u32| &*self.texts[id as usize] == text;
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
        self.texts.push(text.into());
        self.hashes.push(hash);
        let hashes = &self.hashes;
        self.index.insert_unique(half(hash), id, |&other| half(hashes[other as usize]));
    }

    /// The text of a name.
    pub(crate) fn get(&self, id: NameId) -> &str {
        &self.texts[id.index()]
    }

    /// The hash of a name's text.
    pub(crate) fn hash(&self, id: NameId) -> u128 {
        self.hashes[id.index()]
    }

    /// How many there are, the empty one included.
    pub(crate) fn count(&self) -> u32 {
        id::count(self.texts.len())
    }

    /// Bytes that memory is held for.
    pub(crate) fn memory(&self) -> usize {
        let texts: usize = self.texts.iter().map(|text| text.len()).sum();
        texts + held(&self.texts) + held(&self.hashes) + self.index.allocation_size()
    }

    /// Walk the invariants of the names.
    pub(crate) fn check(&self) -> Finding {
        for (id, text) in (0u32..).zip(&self.texts) {
            if self.find(text) != Some(NameId::new(id)) || self.hashes[id as usize] != fingerprint(text.as_bytes()) {
                return Err(format!("name {id} is not found under its number"));
            }
        }
        if self.index.len() == self.texts.len() { Ok(()) } else { Err("the index of names has the wrong size".into()) }
    }

    /// Forget every name but the empty one.
    pub(crate) fn reset(&mut self) {
        self.texts.clear();
        self.hashes.clear();
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
