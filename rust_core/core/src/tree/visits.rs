//! What rollouts leave on the nodes of their paths: how many pass, how many of them are scored, and their rewards' sum.
//!
//! Kept step by step, at a cost of the path's length: a rollout that opens passes every node above its fork point, one
//! that grows passes one node more, and a reward is added from the leaf up. `passes - visits` is what has no reward:
//! still in flight, which is the virtual loss of a tree search, or failed.
//!
//! A delta may come from anyone, and hold as many rollouts below as long a path as fit into it. What it would take more
//! than [`STEPS`] for is counted afterwards in one sweep over the tree, whose sums may differ in rounding from the
//! writer's.

use crate::error::Finding;
use crate::id::NodeId;
use crate::storage::held;
use crate::tree::nodes::Nodes;
use crate::tree::rollouts::Rollouts;

/// The columns.
#[derive(Clone, Debug)]
pub(crate) struct Visits {
    scored: Vec<u32>,
    sums: Vec<f64>,
    passes: Vec<u32>,
    // All magnitudes ever added, by which the rounding of the sums is bounded.
    moved: f64,
    // Steps that a delta which is being replayed may still take.
    steps: Option<u64>,
}

/// Steps up the tree that one delta may take: some 50 ms, and far beyond what a worker sends at once.
const STEPS: u64 = 1 << 24;

/// Rounding that the sums are allowed, as a part of all that was ever added: four million rewards' worth.
const SLACK: f64 = 1e-9;

impl Visits {
    /// Only the root.
    pub(crate) fn new() -> Self {
        Self { scored: vec![0], sums: vec![0.0], passes: vec![0], moved: 0.0, steps: None }
    }

    /// A node nobody has passed.
    pub(crate) fn push(&mut self) {
        self.scored.push(0);
        self.sums.push(0.0);
        self.passes.push(0);
    }

    /// A delta is going to be replayed.
    pub(crate) const fn begin(&mut self) {
        self.steps = Some(STEPS);
    }

    /// It was; count everything again if its steps did not do.
    pub(crate) fn finish(&mut self, nodes: &Nodes, rollouts: &Rollouts) {
        if self.steps.take() == Some(0) {
            *self = Self { moved: self.moved, ..Self::counted(nodes, rollouts) };
        }
    }

    /// Whether the path to a node may be walked.
    fn walks(&mut self, depth: u32) -> bool {
        self.steps = self.steps.map(|left| left.saturating_sub(u64::from(depth) + 1));
        self.steps != Some(0)
    }

    /// A rollout opens at a node.
    pub(crate) fn open(&mut self, nodes: &Nodes, point: NodeId) {
        if self.walks(nodes.depth(point)) {
            nodes.to_root(point).for_each(|node| self.passes[node.index()] += 1);
        }
    }

    /// A rollout that ended above a node moves down to it.
    pub(crate) fn advance(&mut self, leaf: NodeId) {
        self.passes[leaf.index()] += 1;
    }

    /// The reward of a rollout that ended at `leaf` changes. NaN stands for none.
    pub(crate) fn score(&mut self, nodes: &Nodes, leaf: NodeId, old: f64, new: f64) {
        let worth = |reward: f64| if reward.is_nan() { 0.0 } else { reward };
        let change = worth(new) - worth(old);
        self.moved += worth(new).abs() + worth(old).abs();
        if !self.walks(nodes.depth(leaf)) {
            return;
        }
        for node in nodes.to_root(leaf) {
            let at = node.index();
            self.scored[at] = self.scored[at] + u32::from(!new.is_nan()) - u32::from(!old.is_nan());
            // Nothing scored is worth exactly nothing.
            self.sums[at] = if self.scored[at] == 0 { 0.0 } else { self.sums[at] + change };
        }
    }

    /// Everything, counted from the rollouts alone in one sweep.
    fn counted(nodes: &Nodes, rollouts: &Rollouts) -> Self {
        let count = nodes.count() as usize;
        let (mut scored, mut sums, mut passes) = (vec![0; count], vec![0.0; count], vec![0; count]);
        for id in rollouts.ids() {
            let (leaf, reward) = (rollouts.leaf(id).index(), rollouts.reward(id));
            passes[leaf] += 1;
            if !reward.is_nan() {
                scored[leaf] += 1;
                sums[leaf] += reward;
            }
        }
        for node in nodes.ids().rev().filter(|&node| node != NodeId::ROOT) {
            let (at, up) = (node.index(), nodes.parent(node).index());
            passes[up] += passes[at];
            scored[up] += scored[at];
            sums[up] += sums[at];
        }
        Self { scored, sums, passes, ..Self::new() }
    }

    /// Per node: scored rollouts whose path holds it.
    pub(crate) fn visits(&self) -> &[u32] {
        &self.scored
    }

    /// Per node: the sum of their rewards.
    pub(crate) fn values(&self) -> &[f64] {
        &self.sums
    }

    /// Per node: rollouts that pass or end there, scored or not.
    pub(crate) fn passes(&self) -> &[u32] {
        &self.passes
    }

    /// Bytes that memory is held for.
    pub(crate) fn memory(&self) -> usize {
        held(&self.scored) + held(&self.sums) + held(&self.passes)
    }

    /// Count everything again, from the rollouts alone.
    pub(crate) fn check(&self, nodes: &Nodes, rollouts: &Rollouts) -> Finding {
        let fresh = Self::counted(nodes, rollouts);
        for id in nodes.ids() {
            let at = id.index();
            if self.passes.get(at) != Some(&fresh.passes[at]) {
                return Err(format!("node {at}: has the wrong count of rollouts that pass"));
            }
            if self.scored.get(at) != Some(&fresh.scored[at]) {
                return Err(format!("node {at}: has the wrong count of scored rollouts"));
            }
            let off = self.sums.get(at).map(|sum| (sum - fresh.sums[at]).abs());
            // Sums that overflowed are no numbers any more, and say nothing.
            if off.is_none_or(|off| off > SLACK * self.moved) {
                return Err(format!("node {at}: has the wrong sum of rewards"));
            }
        }
        Ok(())
    }

    /// Forget every node but the root and keep the memory.
    pub(crate) fn reset(&mut self) {
        self.scored.clear();
        self.sums.clear();
        self.passes.clear();
        self.moved = 0.0;
        self.steps = None;
        self.push();
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use crate::id::RolloutId;
    use crate::tree::Tree;
    use crate::tree::check::tests::tree;
    use crate::tree::termination::Termination;

    #[test]
    fn rewards_are_added_from_the_leaf_up_and_replaced() {
        let mut tree = tree();
        let score = |tree: &mut Tree, reward: f64| {
            tree.score(RolloutId::new(0), reward).unwrap();
            assert_eq!(tree.check(), Ok(()));
            (tree.visits.visits().to_vec(), tree.visits.values().to_vec())
        };
        assert_eq!(score(&mut tree, 0.5), (vec![1, 1, 1, 0], vec![0.5, 0.5, 0.5, 0.0]));
        assert_eq!(score(&mut tree, 2.0), (vec![1, 1, 1, 0], vec![2.0, 2.0, 2.0, 0.0]));
        assert_eq!(score(&mut tree, f64::NAN), (vec![0; 4], vec![0.0; 4]));
        assert_eq!(tree.visits.passes(), [2, 2, 1, 1]);
    }

    #[test]
    fn nothing_scored_is_worth_exactly_nothing() {
        let mut tree = tree();
        tree.close(RolloutId::new(1), Termination::Answer, None, None).unwrap();
        // In this order the rewards leave a rounding behind.
        for (rollout, reward) in [(0, 0.1), (1, 0.2), (0, f64::NAN), (1, f64::NAN)] {
            tree.score(RolloutId::new(rollout), reward).unwrap();
        }
        assert_eq!((tree.visits.visits(), tree.visits.values()), (&[0; 4][..], &[0.0; 4][..]));
    }

    #[test]
    fn sums_that_overflow_do_no_harm() {
        let mut tree = tree();
        tree.close(RolloutId::new(1), Termination::Answer, None, None).unwrap();
        for reward in [f64::MAX, 1.0] {
            tree.score(RolloutId::new(0), f64::MAX).unwrap();
            tree.score(RolloutId::new(1), reward).unwrap();
            assert_eq!(tree.check(), Ok(()));
        }
    }

    #[test]
    fn wrong_counts_and_sums_are_found() {
        let finding = |break_it: fn(&mut Tree)| {
            let mut tree = tree();
            tree.score(RolloutId::new(0), 0.5).unwrap();
            break_it(&mut tree);
            tree.check().unwrap_err().to_string()
        };
        let text = finding(|tree| tree.visits.passes[1] = 1);
        assert!(text.ends_with("node 1: has the wrong count of rollouts that pass"), "{text}");
        let text = finding(|tree| tree.visits.scored[2] = 0);
        assert!(text.ends_with("node 2: has the wrong count of scored rollouts"), "{text}");
        let text = finding(|tree| tree.visits.sums[0] = 0.25);
        assert!(text.ends_with("node 0: has the wrong sum of rewards"), "{text}");
    }
}
