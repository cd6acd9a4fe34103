//! Runs of tokens: what a message is to a model.
//!
//! A run is found by its ids. Runs of equal ids with other log-probabilities are kept apart and know the first of them,
//! so that the merge key of a node can be a number.

use hashbrown::HashTable;

use crate::error::{Finding, Result};
use crate::id::{self, RunId};
use crate::storage::chunks::Span;
use crate::storage::hash::{fingerprint_words, half};
use crate::storage::tokens::{Columns, SAMPLED, TokenBuffer, TokenSlice};
use crate::storage::{Empty, held};

/// A run on its way into a tree, and the hash of its ids.
#[derive(Clone, Debug)]
pub(crate) struct TokenRun<'a> {
    tokens: RunTokens<'a>,
    /// The hash of the ids.
    pub(crate) hash: u128,
}

#[derive(Clone, Debug)]
enum RunTokens<'a> {
    /// Of the caller.
    Borrowed(TokenSlice<'a>),
    /// Read from a delta.
    Owned(TokenBuffer),
}

impl<'a> TokenRun<'a> {
    /// Hash what a caller has.
    pub(crate) fn new(tokens: TokenSlice<'a>) -> Self {
        Self { tokens: RunTokens::Borrowed(tokens), hash: fingerprint_words(tokens.ids) }
    }

    /// Hash what was read.
    pub(crate) fn owned(tokens: TokenBuffer) -> Self {
        let hash = fingerprint_words(&tokens.ids);
        Self { tokens: RunTokens::Owned(tokens), hash }
    }

    /// The columns.
    pub(crate) fn tokens(&self) -> TokenSlice<'_> {
        match &self.tokens {
            RunTokens::Borrowed(tokens) => *tokens,
            RunTokens::Owned(tokens) => tokens.as_slice(),
        }
    }
}

/// What is kept of a run beside its columns.
#[derive(Clone, Copy, Debug)]
struct RunEntry {
    span: Span,
    // The first run with these ids, maybe itself.
    first: RunId,
    sampled: u32,
}

/// The runs of a tree.
#[derive(Clone, Debug)]
pub(crate) struct TokenRuns {
    columns: Columns,
    entries: Vec<RunEntry>,
    hashes: Vec<u128>,
    // Of the first runs only.
    index: HashTable<u32>,
}

impl Default for TokenRuns {
    fn default() -> Self {
        Self::new()
    }
}

impl Empty for TokenRuns {
    fn empty() -> &'static Self {
        static NONE: TokenRuns = TokenRuns::new();
        &NONE
    }
}

impl TokenRuns {
    const fn new() -> Self {
        Self { columns: Columns::new(), entries: Vec::new(), hashes: Vec::new(), index: HashTable::new() }
    }

    /// The first run with these ids, if there is one.
    pub(crate) fn find(&self, run: &TokenRun<'_>) -> Option<RunId> {
        self.find_ids(run.tokens().ids, run.hash)
    }

    fn find_ids(&self, ids: &[u32], hash: u128) -> Option<RunId> {
        let same = |&id: &u32| self.hashes[id as usize] == hash && self.get(RunId::new(id)).ids == ids;
        self.index.find(half(hash), same).copied().map(RunId::new)
    }

    /// A run that is the same in every column. Only the first of equal ids is looked at: what was not sampled is always
    /// the same, and what was sampled almost never.
    pub(crate) fn same(&self, run: &TokenRun<'_>) -> Option<RunId> {
        self.find(run).filter(|&first| self.get(first).same(&run.tokens()))
    }

    /// Store a run.
    pub(crate) fn insert(&mut self, run: &TokenRun<'_>) -> Result<RunId> {
        let id = id::next(self.entries.len(), "run")?;
        let (tokens, known) = (run.tokens(), self.find(run));
        let span = self.columns.push(&tokens)?;
        self.entries.push(RunEntry { span, first: known.unwrap_or(RunId::new(id)), sampled: sampled(&tokens) });
        self.hashes.push(run.hash);
        if known.is_none() {
            let hashes = &self.hashes;
            self.index.insert_unique(half(run.hash), id, |&other| half(hashes[other as usize]));
        }
        Ok(RunId::new(id))
    }

    /// The columns of a run.
    pub(crate) fn get(&self, id: RunId) -> TokenSlice<'_> {
        self.columns.get(self.entries[id.index()].span)
    }

    /// Tokens of all runs.
    pub(crate) fn tokens(&self) -> u64 {
        self.columns.len() as u64
    }

    /// How many tokens a run has.
    pub(crate) fn len(&self, id: RunId) -> u64 {
        self.entries[id.index()].span.len() as u64
    }

    /// How many of them were sampled.
    pub(crate) fn sampled(&self, id: RunId) -> u64 {
        self.entries[id.index()].sampled.into()
    }

    /// The first run with the same ids.
    pub(crate) fn first(&self, id: RunId) -> RunId {
        self.entries[id.index()].first
    }

    /// The hash of a run's ids.
    pub(crate) fn hash(&self, id: RunId) -> u128 {
        self.hashes[id.index()]
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u32 {
        id::count(self.entries.len())
    }

    /// Bytes that memory is held for.
    pub(crate) fn memory(&self) -> usize {
        self.columns.memory() + held(&self.entries) + held(&self.hashes) + self.index.allocation_size()
    }

    /// Walk the invariants of the runs.
    pub(crate) fn check(&self) -> Finding {
        let mut firsts = 0;
        for (id, entry) in (0u32..).zip(&self.entries) {
            if !self.columns.holds(entry.span) {
                return Err(format!("run {id} lies outside its storage"));
            }
            let (tokens, hash) = (self.get(RunId::new(id)), self.hashes[id as usize]);
            if fingerprint_words(tokens.ids) != hash {
                return Err(format!("run {id} is not what was hashed"));
            }
            if self.find_ids(tokens.ids, hash) != Some(entry.first) || entry.first.get() > id {
                return Err(format!("run {id} does not know the first of its ids"));
            }
            if sampled(&tokens) != entry.sampled {
                return Err(format!("run {id} has the wrong count of sampled tokens"));
            }
            tokens.check().map_err(|error| format!("run {id}: {error}"))?;
            firsts += usize::from(entry.first.get() == id);
        }
        if self.index.len() == firsts { Ok(()) } else { Err("the index of runs has the wrong size".into()) }
    }

    /// Forget every run and keep the memory.
    pub(crate) fn reset(&mut self) {
        self.columns.reset();
        self.entries.clear();
        self.hashes.clear();
        self.index.clear();
    }
}

fn sampled(tokens: &TokenSlice<'_>) -> u32 {
    id::count(tokens.flags.iter().filter(|&&flags| flags & SAMPLED != 0).count())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::{TokenRun, TokenRuns};
    use crate::id::RunId;
    use crate::storage::tokens::TokenBuffer;

    fn sampled(ids: &[u32], logprob: f32) -> TokenBuffer {
        TokenBuffer::sampled(ids.to_vec(), vec![logprob; ids.len()], 3).unwrap()
    }

    fn runs() -> TokenRuns {
        let mut runs = TokenRuns::default();
        for (ids, logprob) in [(&[1, 2][..], -1.0), (&[1, 2], -2.0), (&[1], -1.0)] {
            let tokens = sampled(ids, logprob);
            runs.insert(&TokenRun::new(tokens.as_slice())).unwrap();
        }
        assert_eq!(runs.check(), Ok(()));
        runs
    }

    #[test]
    fn equal_ids_know_the_first_of_them() {
        let runs = runs();
        let firsts: Vec<u32> = (0..3).map(|id| runs.first(RunId::new(id)).get()).collect();
        assert_eq!(firsts, [0, 0, 2]);
        let [one, other] = [-1.0, -2.0].map(|logprob| sampled(&[1, 2], logprob));
        assert_eq!(runs.same(&TokenRun::new(one.as_slice())), Some(RunId::new(0)));
        assert_eq!(runs.same(&TokenRun::new(other.as_slice())), None);
        assert_eq!((runs.len(RunId::new(1)), runs.sampled(RunId::new(1))), (2, 2));
    }

    #[test]
    fn what_is_wrong_with_a_run_is_found() {
        let finding = |break_it: fn(&mut TokenRuns)| {
            let mut runs = runs();
            break_it(&mut runs);
            runs.check().unwrap_err()
        };
        assert_eq!(finding(|runs| runs.hashes[0] ^= 1), "run 0 is not what was hashed");
        assert_eq!(finding(|runs| runs.entries[1].first = RunId::new(1)), "run 1 does not know the first of its ids");
        assert_eq!(finding(|runs| runs.entries[2].sampled = 0), "run 2 has the wrong count of sampled tokens");
        let outside = finding(|runs| {
            let entry = runs.entries[0];
            runs.columns.reset();
            runs.entries[0] = entry;
        });
        assert_eq!(outside, "run 0 lies outside its storage");
        let infinite = finding(|runs| {
            let tokens = sampled(&[9], f32::INFINITY);
            runs.insert(&TokenRun::new(tokens.as_slice())).unwrap();
        });
        assert!(infinite.starts_with("run 3: the log-probability of token 0 is inf"), "{infinite}");
        let unindexed = finding(|runs| {
            runs.entries.pop();
            runs.hashes.pop();
        });
        assert_eq!(unindexed, "the index of runs has the wrong size");
    }
}
