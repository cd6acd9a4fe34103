//! Reading a prefix index. Nothing here changes it.

use crate::error::{Error, Result};
use crate::id::{self, PrefixId, SpaceId};
use crate::prefix::nodes::{Node, PrefixNode};
use crate::prefix::{Prefix, Reuse};
use crate::storage::tokens::{TokenBuffer, TokenSlice};

impl Prefix {
    /// How many nodes there are, the roots of spaces included; ids are `0..nodes()`.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        id::count(self.nodes.len())
    }

    /// How many spaces there are; ids are `0..spaces()`.
    #[must_use]
    pub fn spaces(&self) -> u32 {
        id::count(self.spaces.len())
    }

    /// The name of a space.
    ///
    /// # Errors
    /// [`Error::Unknown`] if it does not exist.
    pub fn name(&self, space: SpaceId) -> Result<&str> {
        Ok(&self.spaces.get(space)?.name)
    }

    /// The node that every path of a space starts at.
    ///
    /// # Errors
    /// [`Error::Unknown`] if the space does not exist.
    pub fn root(&self, space: SpaceId) -> Result<PrefixId> {
        Ok(self.spaces.get(space)?.root)
    }

    /// One node.
    ///
    /// # Errors
    /// [`Error::Unknown`] if it does not exist.
    pub fn node(&self, node: PrefixId) -> Result<PrefixNode> {
        self.get(node).map(Node::view)
    }

    /// The tokens that are a node's own.
    ///
    /// # Errors
    /// [`Error::Unknown`] if it does not exist.
    pub fn span(&self, node: PrefixId) -> Result<TokenSlice<'_>> {
        Ok(self.columns.get(self.get(node)?.span))
    }

    /// The tokens from the root to the end of a node, copied.
    ///
    /// # Errors
    /// [`Error::Unknown`] if it does not exist.
    pub fn path(&self, node: PrefixId) -> Result<TokenBuffer> {
        let len = self.get(node)?.depth as usize;
        let mut path = TokenBuffer {
            ids: Vec::with_capacity(len),
            logprobs: Vec::with_capacity(len),
            versions: Vec::with_capacity(len),
            flags: Vec::with_capacity(len),
        };
        for node in self.up(node).collect::<Vec<_>>().into_iter().rev() {
            path.extend(&self.columns.get(self.nodes[node.index()].span));
        }
        Ok(path)
    }

    /// What sharing saves in one space.
    ///
    /// # Errors
    /// [`Error::Unknown`] if it does not exist.
    pub fn reuse(&self, space: SpaceId) -> Result<Reuse> {
        Ok(self.spaces.get(space)?.reuse)
    }

    /// What sharing saves in all spaces together; `longest` is the longest path of any.
    #[must_use]
    pub const fn total(&self) -> Reuse {
        self.total
    }

    /// Bytes that memory is held for.
    #[must_use]
    pub fn memory(&self) -> usize {
        let nodes = self.nodes.capacity() * size_of::<Node>();
        nodes + self.columns.memory() + self.children.memory() + self.spaces.memory()
    }

    /// A node, if it exists.
    pub(super) fn get(&self, node: PrefixId) -> Result<&Node> {
        let unknown = || Error::Unknown { what: "node", id: node.get(), count: self.nodes() };
        self.nodes.get(node.index()).ok_or_else(unknown)
    }

    /// The nodes from one up to the root.
    pub(super) fn up(&self, node: PrefixId) -> impl Iterator<Item = PrefixId> {
        let above = |node: &PrefixId| Some(self.nodes[node.index()].parent).filter(|parent| parent != node);
        std::iter::successors(Some(node), above)
    }
}
