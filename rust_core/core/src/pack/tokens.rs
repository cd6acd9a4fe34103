//! Runs: the tokens of every node of a forest, end to end.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::forest::{Forest, bounds};
use crate::id::{self, NONE};
use crate::storage::tokens::{SAMPLED, SYNTHETIC, TokenSlice};

/// Whether a model chose this token, so that it can be trained.
pub(crate) const fn sampled(flags: u8) -> bool {
    flags & (SAMPLED | SYNTHETIC) == SAMPLED
}

/// A forest with a run of tokens at each node. A rollout is what stands on the path to its leaf.
#[derive(Clone, Debug)]
pub struct ForestTokens<'a> {
    forest: &'a Forest,
    tokens: TokenSlice<'a>,
    bounds: Vec<usize>,
    /// Per node the nearest one up to its root that has tokens, itself first; [`NONE`] if there is none.
    full: Vec<u32>,
    ends: Vec<u32>,
    first: Vec<u32>,
}

impl<'a> ForestTokens<'a> {
    /// Node i has the tokens `offsets[i]..offsets[i + 1]`.
    ///
    /// # Errors
    /// [`Error::Length`] if there is not one offset more than nodes, [`Error::Value`] if the offsets do not ascend from 0
    /// to the number of tokens, [`Error::TooLong`] if a path has more tokens than 32 bits count.
    pub fn new(forest: &'a Forest, offsets: &[u64], tokens: TokenSlice<'a>) -> Result<Self> {
        let nodes = forest.parents().len();
        let bounds = bounds(nodes, offsets, tokens.len())?;
        let column = || Vec::with_capacity(nodes);
        let mut runs = Self { forest, tokens, bounds, full: column(), ends: column(), first: column() };
        for (node, &parent) in (0u32..).zip(forest.parents()) {
            let run = runs.run(node);
            let (before, known, full) = match parent as usize {
                _ if parent == node => (0, NONE, NONE),
                parent => (runs.ends[parent], runs.first[parent], runs.full[parent]),
            };
            runs.full.push(if run.is_empty() { full } else { node });
            let len = before as usize + run.len();
            let end = u32::try_from(len).ok().filter(|&end| end != NONE);
            let found = if known == NONE { tokens.flags[run].iter().position(|&flags| sampled(flags)) } else { None };
            runs.ends.push(end.ok_or(Error::TooLong { what: "path", len })?);
            runs.first.push(found.and_then(|at| u32::try_from(before as usize + at).ok()).unwrap_or(known));
        }
        Ok(runs)
    }

    /// The shape.
    #[must_use]
    pub const fn forest(&self) -> &'a Forest {
        self.forest
    }

    /// The tokens of all nodes.
    #[must_use]
    pub const fn tokens(&self) -> TokenSlice<'a> {
        self.tokens
    }

    /// Where a node's tokens lie.
    pub(super) fn run(&self, node: u32) -> Range<usize> {
        self.bounds[node as usize]..self.bounds[node as usize + 1]
    }

    /// Tokens from the root to the end of a node.
    pub(super) fn end(&self, node: u32) -> u32 {
        self.ends[node as usize]
    }

    /// Tokens on the path to a node before the first sampled one.
    pub(super) fn before_sampled(&self, node: u32) -> u32 {
        self.first[node as usize].min(self.ends[node as usize])
    }

    /// The node whose tokens end where a node does: itself, or where it has none the nearest above that has.
    pub(super) fn full(&self, node: u32) -> Option<u32> {
        id::unpack(self.full[node as usize])
    }

    /// The node whose tokens are before those of a node on its path.
    pub(super) fn before(&self, node: u32) -> Option<u32> {
        let parent = self.forest.parents()[node as usize];
        if parent == node { None } else { self.full(parent) }
    }

    /// The nodes that have the tokens of a path, from its end to its root. What walks them takes as long as writing
    /// their tokens, however many nodes are empty.
    pub(super) fn up(&self, node: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(self.full(node), |&node| self.before(node))
    }
}
