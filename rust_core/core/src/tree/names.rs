//! Short strings, interned: agents, namespaces, finish reasons.

use hashbrown::HashTable;

use crate::error::Result;
use crate::id::{self, NameId};
use crate::storage::hash::{fingerprint, half};
use crate::storage::held;

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
    pub(crate) fn check(&self) -> std::result::Result<(), String> {
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
