//! One node of a prefix index, and what is said of it.

use crate::id::{PrefixId, SpaceId};
use crate::prefix::reuse::Run;
use crate::storage::chunks::Span;
use crate::storage::tokens::SAMPLED;

/// A node as it is kept. A walk reads most of it at every step, so it lies in one piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) span: Span,
    pub(super) parent: PrefixId,
    pub(super) space: SpaceId,
    pub(super) depth: u32,
    pub(super) generated: u32,
    pub(super) passes: u32,
    pub(super) ends: u32,
}

impl Node {
    /// Its own tokens, counted.
    pub(super) fn run(&self) -> Run {
        Run { tokens: self.span.len() as u64, generated: self.generated.into() }
    }

    /// What a reader sees.
    pub(super) fn view(&self) -> PrefixNode {
        let Self { span, parent, space, depth, generated, passes, ends } = *self;
        PrefixNode { parent, space, len: span.len(), depth: depth as usize, generated, passes, ends }
    }
}

/// One node, as it was when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixNode {
    /// The node before it; a root is its own parent. A split gives a node another parent, younger than itself.
    pub parent: PrefixId,
    /// The space it is in.
    pub space: SpaceId,
    /// How many tokens are its own; 0 for a root only.
    pub len: usize,
    /// Tokens from the root to its end.
    pub depth: usize,
    /// Of its own tokens, how many were sampled.
    pub generated: u32,
    /// Paths that go through it or end there.
    pub passes: u32,
    /// Paths that end there.
    pub ends: u32,
}

/// How far some ids are in an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixMatch {
    /// The last node of which something matches; the root where nothing does.
    pub node: PrefixId,
    /// How many of the ids match in all.
    pub matched: usize,
    /// How many tokens of `node` match: all of them, unless the ids leave it or end before its end.
    pub offset: usize,
}

/// How many tokens were sampled.
pub(super) fn sampled(flags: &[u8]) -> u32 {
    // In blocks that a byte can count, which is what vector instructions are quick at.
    flags.chunks(255).map(|block| u32::from(block.iter().map(|flag| flag & SAMPLED).sum::<u8>())).sum()
}

#[cfg(test)]
mod tests {
    use super::sampled;
    use crate::storage::tokens::{SAMPLED, SYNTHETIC, TRUNCATED};

    #[test]
    fn only_sampled_tokens_count_as_generated() {
        assert_eq!(sampled(&[SAMPLED, SAMPLED | TRUNCATED, SYNTHETIC, 0, TRUNCATED]), 2);
        assert_eq!(sampled(&[SAMPLED; 1000]), 1000);
    }
}
