//! Which child of a node starts with a token: one table for the whole index.
//!
//! A map in every node would cost an allocation a node, and a list of siblings a walk where a root is wide.

use hashbrown::HashTable;

use crate::id::PrefixId;
use crate::storage::hash::half;

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
    use super::Children;
    use crate::id::PrefixId;

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
