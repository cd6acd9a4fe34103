//! Paths of an index as the columns that packing is fed with.

use crate::error::Result;
use crate::id::{self, NONE, PrefixId};
use crate::prefix::Prefix;
use crate::storage::tokens::TokenBuffer;

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
