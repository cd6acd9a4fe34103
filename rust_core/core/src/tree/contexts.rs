//! What was really sent, where it is not a path: ordered lists of fragments, or a drift, interned.

use crate::error::{Finding, Result};
use crate::id::{ContextId, FragmentId};
use crate::storage::hash::{fingerprint_joined, fingerprint_list, fingerprint_words};
use crate::storage::intern::Pool;
use crate::storage::{Empty, held};
use crate::tree::fragments::{self, FragmentKind, Fragments};
use crate::tree::runs::TokenRuns;
use crate::turn::drift::Drift;

/// The recorded contexts of a tree.
#[derive(Clone, Debug)]
pub(crate) struct Contexts {
    lists: Pool<u32>,
    // By content, for digests: the pool's own hash is over ids, which another arrival order would number otherwise.
    digests: Vec<u128>,
}

impl Default for Contexts {
    fn default() -> Self {
        Self::new()
    }
}

impl Empty for Contexts {
    fn empty() -> &'static Self {
        static NONE: Contexts = Contexts::new();
        &NONE
    }
}

impl Contexts {
    /// None yet.
    const fn new() -> Self {
        Self { lists: Pool::new("context"), digests: Vec::new() }
    }

    /// The id of an equal list, if it was recorded.
    pub(crate) fn find(&self, fragments: &[u32]) -> Option<ContextId> {
        self.lists.find(fragments, fingerprint_words(fragments)).map(ContextId::new)
    }

    /// Record a list that [`Contexts::find`] does not know. Its fragments must exist and make messages, or the run of its
    /// drift must exist.
    pub(crate) fn insert(&mut self, list: &[u32], store: &Fragments, runs: &TokenRuns) -> Result<ContextId> {
        let id = self.lists.insert(list, fingerprint_words(list))?;
        self.digests.push(self.content(list, store, runs));
        Ok(ContextId::new(id))
    }

    /// The fragments of a context, in order; none where it is a drift from the path.
    pub(crate) fn get(&self, id: ContextId) -> Option<&[u32]> {
        let messages = self.drift(id).and_then(|drift| drift.messages).unwrap_or(id);
        Some(self.lists.get(messages.get())).filter(|list| Drift::of(list).is_none())
    }

    /// The drift that a context is, if it is one.
    pub(crate) fn drift(&self, id: ContextId) -> Option<Drift> {
        Drift::of(self.lists.get(id.get()))?.ok()
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
    pub(crate) fn check(&self, store: &Fragments, runs: &TokenRuns) -> Finding {
        self.lists.check(fingerprint_words)?;
        for id in 0..self.count() {
            let list = self.lists.get(id);
            match Drift::of(list) {
                None if list.iter().any(|&fragment| fragment >= store.count()) => {
                    return Err(format!("context {id} holds a fragment that does not exist"));
                }
                None if fragments::check_all(list, |fragment| store.get(fragment.into())).is_err() => {
                    return Err(format!("context {id} holds pieces that make no message"));
                }
                Some(Ok(Drift { run, messages, .. }))
                    if run.is_none_or(|run| run.get() < runs.count())
                        && messages.is_none_or(|messages| messages.get() < id) => {}
                Some(_) => return Err(format!("context {id} is no drift, or one of tokens that do not exist")),
                None => (),
            }
            if self.digests.get(id as usize) != Some(&self.content(list, store, runs)) {
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

impl Contexts {
    /// The hash of what a list stands for: of its messages, or of where a prompt parted, how it went on, and its messages.
    fn content(&self, list: &[u32], store: &Fragments, runs: &TokenRuns) -> u128 {
        if let Some(Ok(Drift { policy, keep, run, messages })) = Drift::of(list) {
            let place = fingerprint_words(&[policy as u32, keep]);
            let given = run.map(|run| runs.hash(run));
            return fingerprint_list([place].into_iter().chain(given).chain(messages.map(|id| self.digest(id))));
        }
        let messages = fragments::messages(list, |fragment| store.get(fragment.into()));
        fingerprint_list(messages.map(|message| said(message, store)))
    }
}

/// The hash of a message, however it was cut.
fn said(message: &[u32], store: &Fragments) -> u128 {
    let parts = message.iter().map(|&fragment| fragments::part(store.get(fragment.into())));
    match *message {
        [whole] if parts.clone().all(|(part, _)| part == FragmentKind::Whole) => store.hash(FragmentId::new(whole)),
        _ => fingerprint_joined(parts.map(|(_, text)| text)),
    }
}
