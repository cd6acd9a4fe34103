//! An order of nodes that does not tell when they arrived.
//!
//! Nodes are numbered as they arrive, and of rollouts that grow side by side now this one is first and now that one. A
//! choice among numbers, or a tie that the smaller one wins, would differ from run to run.

use crate::forest::Forest;

/// Nodes as rollouts pass them: rollout by rollout, each from the root down. A parent comes before its children.
pub fn passed(forest: &Forest) -> Vec<u32> {
    walk(forest).0
}

/// All nodes: those that rollouts pass, then the others by number. Here, too, a parent comes before its children.
pub fn all(forest: &Forest) -> Vec<u32> {
    let (mut order, seen) = walk(forest);
    order.extend((0u32..).zip(seen).filter_map(|(node, seen)| (!seen).then_some(node)));
    order
}

/// What rollouts pass, in order, and per node whether any does.
fn walk(forest: &Forest) -> (Vec<u32>, Vec<bool>) {
    let parents = forest.parents();
    let mut order = Vec::new();
    let mut seen = vec![false; parents.len()];
    for &leaf in forest.leaves() {
        let start = order.len();
        let mut node = leaf;
        // A root is its own parent.
        while !std::mem::replace(&mut seen[node as usize], true) {
            order.push(node);
            node = parents[node as usize];
        }
        order[start..].reverse();
    }
    (order, seen)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::{all, passed};
    use crate::forest::Forest;

    #[test]
    fn nodes_come_as_rollouts_pass_them_whenever_they_arrived() {
        // 0 root, 1 prompt; rollout 0 is 1-3-5, rollout 1 is 1-2-4, rollout 2 ends at 3; 6 is a root nobody passes.
        let forest = Forest::new(vec![0, 0, 1, 1, 2, 3, 6], vec![5, 4, 3]).unwrap();
        assert_eq!(passed(&forest), [0, 1, 3, 5, 2, 4]);
        assert_eq!(all(&forest), [0, 1, 3, 5, 2, 4, 6]);
        let bare = Forest::new(vec![0, 0, 1], vec![]).unwrap();
        assert_eq!((passed(&bare), all(&bare)), (vec![], vec![0, 1, 2]));
    }
}
