//! The nodes of a prefix index, and which child of a node starts with a token: one table for the whole index.
//!
//! A map in every node would cost an allocation a node, and a list of siblings a walk where a root is wide.

use hashbrown::HashTable;

use crate::id::{PrefixId, SpaceId};
use crate::prefix::spaces::RunTokens;
use crate::storage::chunks::Span;
use crate::storage::hash::half;
use crate::storage::tokens::SAMPLED;

/// A node as it is kept. A walk reads most of it at every step, so it lies in one piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct RadixNode {
    pub(super) span: Span,
    pub(super) parent: PrefixId,
    pub(super) space: SpaceId,
    pub(super) depth: u32,
    pub(super) generated: u32,
    pub(super) passes: u32,
    pub(super) ends: u32,
}

impl RadixNode {
    /// Its own tokens, counted.
    pub(super) fn run(&self) -> RunTokens {
        RunTokens { tokens: self.span.len() as u64, generated: self.generated.into() }
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

/// A child under its parent and its own first token.
#[derive(Clone, Copy, Debug)]
struct Edge {
    parent: PrefixId,
    token: u32,
    child: PrefixId,
}

/// All edges of an index.
#[derive(Clone, Debug, Default)]
pub(super) struct Children(HashTable<Edge>);

impl Children {
    /// The child of `parent` that starts with `token`.
    pub(super) fn get(&self, parent: PrefixId, token: u32) -> Option<PrefixId> {
        self.0.find(hash(parent, token), |edge| edge.is(parent, token)).map(|edge| edge.child)
    }

    /// Put a child where there may be another, which then is a child no more.
    pub(super) fn set(&mut self, parent: PrefixId, token: u32, child: PrefixId) {
        let edge = Edge { parent, token, child };
        let rehash = |edge: &Edge| hash(edge.parent, edge.token);
        self.0.entry(hash(parent, token), |edge| edge.is(parent, token), rehash).insert(edge);
    }

    /// How many children there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Bytes that memory is held for.
    pub(super) fn memory(&self) -> usize {
        self.0.allocation_size()
    }

    /// Forget every child and keep the memory.
    pub(super) fn reset(&mut self) {
        self.0.clear();
    }
}

impl Edge {
    fn is(&self, parent: PrefixId, token: u32) -> bool {
        self.parent == parent && self.token == token
    }
}

/// A product of 128 bits, folded, so that every bit of the key reaches the bits that the table looks at.
fn hash(parent: PrefixId, token: u32) -> u64 {
    // Digits of pi, the last one made odd; any odd number with evenly mixed bits would do.
    const FACTOR: u128 = 0x13_19_8a_2e_03_70_73_45;
    let wide = (u128::from(parent.get()) << 32 | u128::from(token)) * FACTOR;
    half(wide) ^ half(wide >> 64)
}

#[cfg(test)]
mod tests {
    use super::{Children, sampled};
    use crate::id::PrefixId;
    use crate::storage::tokens::{SAMPLED, SYNTHETIC, TRUNCATED};

    #[test]
    fn only_sampled_tokens_count_as_generated() {
        assert_eq!(sampled(&[SAMPLED, SAMPLED | TRUNCATED, SYNTHETIC, 0, TRUNCATED]), 2);
        assert_eq!(sampled(&[SAMPLED; 1000]), 1000);
    }

    #[test]
    fn children_are_found_by_parent_and_token() {
        let mut children = Children::default();
        let id = |parent: u32, token: u32| PrefixId::new(100 * parent + token);
        for parent in 0..100 {
            for token in 0..100 {
                children.set(PrefixId::new(parent), token, id(parent, token));
            }
        }
        assert_eq!(children.len(), 10_000);
        assert!((0..100).all(|token| children.get(PrefixId::new(7), token) == Some(id(7, token))));
        assert_eq!(children.get(PrefixId::new(7), 100), None);
        children.set(PrefixId::new(7), 3, PrefixId::new(1));
        assert_eq!((children.get(PrefixId::new(7), 3), children.len()), (Some(PrefixId::new(1)), 10_000));
        let memory = children.memory();
        children.reset();
        assert_eq!((children.get(PrefixId::new(7), 3), children.memory()), (None, memory));
    }
}
