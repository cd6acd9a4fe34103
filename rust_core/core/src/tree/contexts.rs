//! What was really sent, where it is not a path: ordered lists of fragments, interned.

use crate::error::Result;
use crate::hash::{fingerprint_list, fingerprint_words};
use crate::id::{ContextId, FragmentId};
use crate::memory::held;
use crate::memory::pool::Pool;
use crate::tree::fragments::Fragments;

/// The recorded contexts of a tree.
#[derive(Clone, Debug)]
pub(crate) struct Contexts {
    lists: Pool<u32>,
    // By content, for digests: the pool's own hash is over ids, which another arrival order would number otherwise.
    digests: Vec<u128>,
}

impl Contexts {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self { lists: Pool::new("context"), digests: Vec::new() }
    }

    /// The id of an equal list, if it was recorded.
    pub(crate) fn find(&self, fragments: &[u32]) -> Option<ContextId> {
        self.lists.find(fragments, fingerprint_words(fragments)).map(ContextId::new)
    }

    /// Record a list that [`Contexts::find`] does not know. Its fragments must exist in `store`.
    pub(crate) fn insert(&mut self, fragments: &[u32], store: &Fragments) -> Result<ContextId> {
        let id = self.lists.insert(fragments, fingerprint_words(fragments))?;
        self.digests.push(content(fragments, store));
        Ok(ContextId::new(id))
    }

    /// The fragments of a context, in order.
    pub(crate) fn get(&self, id: ContextId) -> &[u32] {
        self.lists.get(id.get())
    }

    /// The hash of a context's content.
    pub(crate) fn digest(&self, id: ContextId) -> u128 {
        self.digests[id.index()]
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u32 {
        self.lists.count()
    }

    /// Bytes that memory is held for.
    pub(crate) fn memory(&self) -> usize {
        self.lists.memory() + held(&self.digests)
    }

    /// Walk the invariants of the contexts.
    pub(crate) fn check(&self, store: &Fragments) -> std::result::Result<(), String> {
        self.lists.check(fingerprint_words)?;
        for id in 0..self.count() {
            let fragments = self.lists.get(id);
            if fragments.iter().any(|&fragment| fragment >= store.count()) {
                return Err(format!("context {id} holds a fragment that does not exist"));
            }
            if self.digests.get(id as usize) != Some(&content(fragments, store)) {
                return Err(format!("context {id} has the wrong digest"));
            }
        }
        Ok(())
    }

    /// Forget every context and keep the memory.
    pub(crate) fn reset(&mut self) {
        self.lists.reset();
        self.digests.clear();
    }
}

fn content(fragments: &[u32], store: &Fragments) -> u128 {
    fingerprint_list(fragments.iter().map(|&fragment| store.hash(FragmentId::new(fragment))))
}
