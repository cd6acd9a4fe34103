//! Reading a prefix index, by node and as the columns that packing is fed with. Nothing here changes it.

use crate::error::{Error, Result};
use crate::id::{self, NONE, PrefixId, SpaceId};
use crate::prefix::nodes::{PrefixNode, RadixNode};
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
        self.get(node).map(RadixNode::view)
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
        let nodes = self.nodes.capacity() * size_of::<RadixNode>();
        nodes + self.columns.memory() + self.children.memory() + self.spaces.memory()
    }

    /// A node, if it exists.
    pub(super) fn get(&self, node: PrefixId) -> Result<&RadixNode> {
        let unknown = || Error::Unknown { what: "node", id: node.get(), count: self.nodes() };
        self.nodes.get(node.index()).ok_or_else(unknown)
    }

    /// The nodes from one up to the root.
    pub(super) fn up(&self, node: PrefixId) -> impl Iterator<Item = PrefixId> {
        let above = |node: &PrefixId| Some(self.nodes[node.index()].parent).filter(|parent| parent != node);
        std::iter::successors(Some(node), above)
    }
}

/// The nodes on some paths as a forest, parents first, with a run of tokens each: what paths share stands once. Every
/// space is one tree, below a root without tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PrefixColumns {
    /// Per node its parent, which has a smaller number; a root's is itself.
    pub parents: Vec<u32>,
    /// Per path the node it ends at.
    pub leaves: Vec<u32>,
    /// Per node where its tokens start in `tokens`, and at the end where the last ones end.
    pub offsets: Vec<u64>,
    /// The tokens of all nodes, one after the other, as they were stored first.
    pub tokens: TokenBuffer,
    /// Per node its id in the index.
    pub nodes: Vec<PrefixId>,
}

impl Prefix {
    /// The paths that end at these nodes, which may repeat: one a rollout.
    ///
    /// # Errors
    /// [`crate::Error::Unknown`] for a node, [`crate::Error::Full`] if there are more paths than 32 bits count.
    pub fn columns(&self, ends: &[PrefixId]) -> Result<PrefixColumns> {
        id::next(ends.len(), "path")?;
        let mut columns = PrefixColumns { offsets: vec![0], ..PrefixColumns::default() };
        let mut numbers = vec![NONE; self.nodes.len()];
        for &end in ends {
            self.get(end)?;
            // A split makes parents that are younger than their children; on the way down from what is known they come first.
            let new = |node: &PrefixId| numbers[node.index()] == NONE;
            for node in self.up(end).take_while(new).collect::<Vec<_>>().into_iter().rev() {
                numbers[node.index()] = id::count(columns.nodes.len());
                let parent = self.nodes[node.index()].parent;
                columns.nodes.push(node);
                columns.parents.push(numbers[parent.index()]);
                columns.tokens.extend(&self.columns.get(self.nodes[node.index()].span));
                columns.offsets.push(columns.tokens.ids.len() as u64);
            }
            columns.leaves.push(numbers[end.index()]);
        }
        Ok(columns)
    }
}
