//! The shape of a forest: nodes in order of age, and the node each rollout ends at.
//!
//! Estimators, selection and packing are functions of a shape and of columns beside it, so that they serve a tree, many
//! trees, and arrays that never were a tree alike.

pub mod harvest;
mod placement;

use crate::error::{Error, Result, length};
use crate::id;
use crate::tree::nodes::Kind;

/// Trees side by side. A node's parent has a smaller number; a root is its own parent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forest {
    parents: Vec<u32>,
    leaves: Vec<u32>,
}

impl Forest {
    /// A forest of `parents.len()` nodes and `leaves.len()` rollouts.
    ///
    /// # Errors
    /// [`Error::Value`] naming the first parent that is younger than its node or the first leaf that does not exist.
    pub fn new(parents: Vec<u32>, leaves: Vec<u32>) -> Result<Self> {
        id::next(parents.len(), "node")?;
        id::next(leaves.len(), "rollout")?;
        if let Some((node, parent)) = (0u32..).zip(&parents).find(|(node, parent)| *parent > node) {
            let value = format!("the parent of node {node} is {parent}");
            return Err(Error::conflict(value, "a smaller number, or the node itself for a root"));
        }
        if let Some((rollout, leaf)) = leaves.iter().enumerate().find(|(_, leaf)| **leaf as usize >= parents.len()) {
            let value = format!("the leaf of rollout {rollout} is {leaf}");
            return Err(Error::reference(value, "a node of the forest"));
        }
        Ok(Self { parents, leaves })
    }

    /// The forest of steps, with the same nodes: each hangs under the last turn above it, or under its root, and rollouts
    /// end at their last turn. Prompts and observations have no children and end no rollout, so they count nowhere.
    ///
    /// `kinds` are the codes of [`crate::Kind`].
    ///
    /// # Errors
    /// [`Error::Length`] if there is not one kind a node.
    pub fn steps(&self, kinds: &[u8]) -> Result<Self> {
        length("kinds", self.parents.len(), kinds.len())?;
        // Per node itself, or where it is no step the one that it is part of.
        let mut steps: Vec<u32> = Vec::with_capacity(kinds.len());
        for ((node, &parent), &kind) in (0u32..).zip(&self.parents).zip(kinds) {
            let step = parent == node || kind == Kind::Turn as u8;
            steps.push(if step { node } else { steps[parent as usize] });
        }
        let of = |nodes: &[u32]| nodes.iter().map(|&node| steps[node as usize]).collect();
        Ok(Self { parents: of(&self.parents), leaves: of(&self.leaves) })
    }

    /// Per node its parent; a root's is itself.
    #[must_use]
    pub fn parents(&self) -> &[u32] {
        &self.parents
    }

    /// Per rollout the node it ends at.
    #[must_use]
    pub fn leaves(&self) -> &[u32] {
        &self.leaves
    }

    /// Per node how many nodes are above it.
    #[must_use]
    pub fn depths(&self) -> Vec<u32> {
        let mut depths = vec![0u32; self.parents.len()];
        for (node, &parent) in self.parents.iter().enumerate() {
            depths[node] = if node == parent as usize { 0 } else { depths[parent as usize] + 1 };
        }
        depths
    }

    /// Per node the root of its tree.
    #[must_use]
    pub fn roots(&self) -> Vec<u32> {
        let mut roots = self.parents.clone();
        for node in 0..roots.len() {
            // A root's is itself, and every parent comes before its children.
            roots[node] = roots[roots[node] as usize];
        }
        roots
    }

    /// Per node how many rollouts pass through it or end there.
    #[must_use]
    pub fn passes(&self) -> Vec<u32> {
        let mut passes = vec![0u32; self.parents.len()];
        for &leaf in &self.leaves {
            passes[leaf as usize] += 1;
        }
        for (node, &parent) in self.parents.iter().enumerate().rev() {
            if node != parent as usize {
                passes[parent as usize] += passes[node];
            }
        }
        passes
    }

    /// Nodes as rollouts pass them: rollout by rollout, each from the root down. A parent comes before its children.
    ///
    /// Nodes are numbered as they arrive, and of rollouts that grow side by side now this one is first and now that one. A
    /// choice among numbers, or a tie that the smaller one wins, would differ from run to run; one in this order does not.
    #[must_use]
    pub fn passed(&self) -> Vec<u32> {
        self.walk().0
    }

    /// All nodes: those that rollouts pass, then the others by number. Here, too, a parent comes before its children.
    #[must_use]
    pub fn order(&self) -> Vec<u32> {
        let (mut order, seen) = self.walk();
        order.extend((0u32..).zip(seen).filter_map(|(node, seen)| (!seen).then_some(node)));
        order
    }

    /// What rollouts pass, in order, and per node whether any does.
    fn walk(&self) -> (Vec<u32>, Vec<bool>) {
        let mut order = Vec::new();
        let mut seen = vec![false; self.parents.len()];
        for &leaf in &self.leaves {
            let start = order.len();
            let mut node = leaf;
            // A root is its own parent.
            while !std::mem::replace(&mut seen[node as usize], true) {
                order.push(node);
                node = self.parents[node as usize];
            }
            order[start..].reverse();
        }
        (order, seen)
    }
}

/// Offsets that have been checked: one more than `nodes`, from 0 to `tokens`, never descending.
///
/// # Errors
/// [`Error::Length`], or [`Error::Value`] naming the first offset that does not fit.
pub fn bounds(nodes: usize, offsets: &[u64], tokens: usize) -> Result<Vec<usize>> {
    if offsets.len() != nodes + 1 {
        return Err(Error::Length { what: "offsets", need: nodes + 1, have: offsets.len() });
    }
    let refuse = |at: usize| {
        Error::conflict(
            format!("offset {at} of the runs is {}", offsets[at]),
            "0 for the first, the number of tokens for the last, and ascending between",
        )
    };
    let mut bounds = Vec::with_capacity(offsets.len());
    let mut last = 0;
    for (at, &offset) in offsets.iter().enumerate() {
        let bound = usize::try_from(offset).map_err(|_| refuse(at))?;
        if bound < last || bound > tokens || (at == 0 && bound != 0) {
            return Err(refuse(at));
        }
        bounds.push(bound);
        last = bound;
    }
    if last == tokens { Ok(bounds) } else { Err(refuse(nodes)) }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::Forest;

    #[test]
    fn two_trees_are_counted_each_for_itself() {
        let forest = Forest::new(vec![0, 0, 1, 3, 3], vec![2, 1, 4, 4]).unwrap();
        assert_eq!(forest.depths(), [0, 1, 2, 0, 1]);
        assert_eq!(forest.roots(), [0, 0, 0, 3, 3]);
        assert_eq!(forest.passes(), [2, 2, 1, 2, 2]);
    }

    #[test]
    fn steps_hang_under_steps_whatever_is_between() {
        // 0 root, 1 and 2 prompts, 3 turn, 4 and 5 observations, 6 turn; 7 root, 8 turn. One rollout has no turn.
        let forest = Forest::new(vec![0, 0, 1, 2, 3, 4, 5, 7, 7], vec![6, 5, 2, 8]).unwrap();
        let steps = forest.steps(&[0, 1, 1, 2, 3, 3, 2, 0, 2]).unwrap();
        assert_eq!(steps.parents(), [0, 0, 0, 0, 3, 3, 3, 7, 7]);
        assert_eq!(steps.leaves(), [6, 3, 0, 8]);
        assert_eq!(steps.steps(&[0, 1, 1, 2, 3, 3, 2, 0, 2]).unwrap(), steps);
        let text = forest.steps(&[0]).unwrap_err().to_string();
        assert!(text.starts_with("1 kinds where 9 are needed"), "{text}");
    }

    #[test]
    fn a_shape_that_is_no_forest_is_refused() {
        let text = Forest::new(vec![0, 2, 2], vec![]).unwrap_err().to_string();
        assert!(text.starts_with("the parent of node 1 is 2"), "{text}");
        let text = Forest::new(vec![0], vec![0, 1]).unwrap_err().to_string();
        assert!(text.starts_with("the leaf of rollout 1 is 1"), "{text}");
    }
    #[test]
    fn nodes_come_as_rollouts_pass_them_whenever_they_arrived() {
        // 0 root, 1 prompt; rollout 0 is 1-3-5, rollout 1 is 1-2-4, rollout 2 ends at 3; 6 is a root nobody passes.
        let forest = Forest::new(vec![0, 0, 1, 1, 2, 3, 6], vec![5, 4, 3]).unwrap();
        assert_eq!(forest.passed(), [0, 1, 3, 5, 2, 4]);
        assert_eq!(forest.order(), [0, 1, 3, 5, 2, 4, 6]);
        let bare = Forest::new(vec![0, 0, 1], vec![]).unwrap();
        assert_eq!((bare.passed(), bare.order()), (vec![], vec![0, 1, 2]));
    }
}
