//! Segments: what the stretches of a row of trees are.

use crate::id;

/// One segment of a row: the tokens of one node. Places are tokens of the row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Segments {
    /// Where the segments of rows start; one more than rows.
    pub offsets: Vec<usize>,
    /// The node whose tokens they are.
    pub nodes: Vec<u32>,
    /// First token.
    pub starts: Vec<u32>,
    /// End.
    pub ends: Vec<u32>,
    /// End of what is below it: tokens from its start to here see it.
    pub subtree_ends: Vec<u32>,
    /// The segment before it on the path, counted from the row's first; -1 for none.
    pub parents: Vec<i32>,
    /// Rollouts that pass through it.
    pub rollouts: Vec<u32>,
    /// 1 where another part of a split tree has trained it.
    pub repeated: Vec<u8>,
}

impl Segments {
    /// The first segment of the row that is being written.
    fn first(&self) -> usize {
        self.offsets.last().copied().unwrap_or_default()
    }

    /// Segments of the row that is being written.
    pub(super) fn len_of_row(&self) -> i32 {
        id::count(self.nodes.len() - self.first()).cast_signed()
    }

    /// Tokens of the row that is being written.
    pub(super) fn end_of_row(&self) -> u32 {
        if self.len_of_row() == 0 { 0 } else { self.ends.last().copied().unwrap_or_default() }
    }

    /// Work out where the subtrees of the segments from `first` on end.
    pub(super) fn close(&mut self, first: usize) {
        let row = self.first();
        self.subtree_ends.extend_from_slice(&self.ends[first..]);
        for segment in (first..self.nodes.len()).rev() {
            if let Ok(parent) = usize::try_from(self.parents[segment]) {
                let end = self.subtree_ends[segment].max(self.subtree_ends[row + parent]);
                self.subtree_ends[row + parent] = end;
            }
        }
    }

    /// The last token of the segment before this one on the path; -1 for none.
    pub(super) fn last_of_parent(&self, segment: usize) -> i32 {
        let row = self.first();
        let parent = usize::try_from(self.parents[segment]);
        parent.map_or(-1, |parent| self.ends[row + parent].cast_signed() - 1)
    }
}
