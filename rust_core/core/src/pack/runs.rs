//! Runs: the tokens of every node of a forest, end to end.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::forest::Forest;
use crate::id::NONE;
use crate::memory::columns::{SAMPLED, SYNTHETIC, TokenSlice};
use crate::offsets::bounds;

/// Whether a model chose this token, so that it can be trained.
pub(super) const fn sampled(flags: u8) -> bool {
    flags & (SAMPLED | SYNTHETIC) == SAMPLED
}

/// A forest with a run of tokens at each node. A rollout is what stands on the path to its leaf.
#[derive(Clone, Debug)]
pub struct Runs<'a> {
    forest: &'a Forest,
    tokens: TokenSlice<'a>,
    bounds: Vec<usize>,
    ends: Vec<u32>,
    first: Vec<u32>,
}

impl<'a> Runs<'a> {
    /// Node i has the tokens `offsets[i]..offsets[i + 1]`.
    ///
    /// # Errors
    /// [`Error::Length`] if there is not one offset more than nodes, [`Error::Value`] if the offsets do not ascend from 0
    /// to the number of tokens, [`Error::TooLong`] if a path has more tokens than 32 bits count.
    pub fn new(forest: &'a Forest, offsets: &[u64], tokens: TokenSlice<'a>) -> Result<Self> {
        let nodes = forest.parents().len();
        let bounds = bounds(nodes, offsets, tokens.len())?;
        let mut runs =
            Self { forest, tokens, bounds, ends: Vec::with_capacity(nodes), first: Vec::with_capacity(nodes) };
        for (node, &parent) in forest.parents().iter().enumerate() {
            let run = runs.bounds[node]..runs.bounds[node + 1];
            let (before, known) = match parent as usize {
                root if root == node => (0, NONE),
                parent => (runs.ends[parent], runs.first[parent]),
            };
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

    /// The node a token belongs to.
    pub(super) fn node_of(&self, token: usize) -> usize {
        self.bounds.partition_point(|&start| start <= token) - 1
    }

    /// Tokens from the root to the end of a node.
    pub(super) fn end(&self, node: u32) -> u32 {
        self.ends[node as usize]
    }

    /// Tokens on the path to a node before the first sampled one.
    pub(super) fn before_sampled(&self, node: u32) -> u32 {
        self.first[node as usize].min(self.ends[node as usize])
    }

    /// Nodes from one up to its root, itself first.
    pub(super) fn up(&self, node: u32) -> impl Iterator<Item = u32> {
        let parents = self.forest.parents();
        std::iter::successors(Some(node), |&node| Some(parents[node as usize]).filter(|&parent| parent != node))
    }
}
