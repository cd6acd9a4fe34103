//! What rollouts leave on the nodes of their paths: how many pass, which of them was opened first, how many stand there and
//! may go on, how many are scored, and their rewards' sum.
//!
//! Kept step by step, at a cost of the path's length: a rollout that opens passes every node above its fork point, one
//! that grows passes one node more, and a reward is added from the leaf up. `passes - visits` is what has no reward:
//! still in flight, which is the virtual loss of a tree search, or failed.
//!
//! A delta may come from anyone, and hold as many rollouts below as long a path as fit into it. What it would take more
//! than [`STEPS`] for is counted afterwards in one sweep over the tree, whose sums may differ in rounding from the
//! writer's.

use crate::error::Finding;
use crate::id::{self, NONE, NodeId, RolloutId};
use crate::storage::held;
use crate::tree::nodes::Nodes;
use crate::tree::rollouts::Rollouts;

/// The columns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Visits {
    scored: Vec<u32>,
    sums: Vec<f64>,
    passes: Vec<u32>,
    // Per node the rollout with the smallest number that passes or ends there, and how many stand there that may go on.
    firsts: Vec<u32>,
    standing: Vec<u32>,
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
        let mut visits = Self::default();
        visits.push();
        visits
    }

    /// A node that no rollout has passed.
    pub(crate) fn push(&mut self) {
        self.scored.push(0);
        self.sums.push(0.0);
        self.passes.push(0);
        self.firsts.push(NONE);
        self.standing.push(0);
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
    pub(crate) fn open(&mut self, nodes: &Nodes, point: NodeId, rollout: RolloutId) {
        self.standing[point.index()] += 1;
        if self.walks(nodes.depth(point)) {
            nodes.to_root(point).for_each(|node| self.pass(node, rollout));
        }
    }

    /// A rollout that grows moves down from a node to a child of it.
    pub(crate) fn advance(&mut self, from: NodeId, leaf: NodeId, rollout: RolloutId) {
        self.standing[from.index()] -= 1;
        self.standing[leaf.index()] += 1;
        self.pass(leaf, rollout);
    }

    fn pass(&mut self, node: NodeId, rollout: RolloutId) {
        let at = node.index();
        self.passes[at] += 1;
        self.firsts[at] = self.firsts[at].min(rollout.get());
    }

    /// A rollout ended at a node for good.
    pub(crate) fn end(&mut self, leaf: NodeId) {
        self.standing[leaf.index()] -= 1;
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
        let (mut firsts, mut standing) = (vec![NONE; count], vec![0; count]);
        for id in rollouts.ids() {
            let (leaf, reward) = (rollouts.leaf(id).index(), rollouts.reward(id));
            passes[leaf] += 1;
            firsts[leaf] = firsts[leaf].min(id.get());
            standing[leaf] += u32::from(rollouts.may_go_on(id));
            if !reward.is_nan() {
                scored[leaf] += 1;
                sums[leaf] += reward;
            }
        }
        for node in nodes.ids().rev().filter(|&node| node != NodeId::ROOT) {
            let (at, up) = (node.index(), nodes.parent(node).index());
            passes[up] += passes[at];
            firsts[up] = firsts[up].min(firsts[at]);
            scored[up] += scored[at];
            sums[up] += sums[at];
        }
        Self { scored, sums, passes, firsts, standing, moved: 0.0, steps: None }
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

    /// The rollout that was opened first of those that pass or end at a node.
    pub(crate) fn first(&self, id: NodeId) -> Option<RolloutId> {
        id::unpack(self.firsts[id.index()]).map(RolloutId::new)
    }

    /// Whether a rollout stands at a node that grows, or was cut off there.
    pub(crate) fn stands(&self, id: NodeId) -> bool {
        self.standing[id.index()] > 0
    }

    /// Bytes that memory is held for.
    pub(crate) fn memory(&self) -> usize {
        let counts = [&self.scored, &self.passes, &self.firsts, &self.standing];
        counts.into_iter().map(held).sum::<usize>() + held(&self.sums)
    }

    /// Count everything again, from the rollouts alone.
    pub(crate) fn check(&self, nodes: &Nodes, rollouts: &Rollouts) -> Finding {
        let fresh = Self::counted(nodes, rollouts);
        for id in nodes.ids() {
            let at = id.index();
            if self.passes.get(at) != Some(&fresh.passes[at]) {
                return Err(format!("node {at}: has the wrong count of rollouts that pass"));
            }
            if self.firsts.get(at) != Some(&fresh.firsts[at]) {
                return Err(format!("node {at}: does not know the first rollout that passes"));
            }
            if self.standing.get(at) != Some(&fresh.standing[at]) {
                return Err(format!("node {at}: has the wrong count of rollouts that stand there"));
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
        self.firsts.clear();
        self.standing.clear();
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
        let text = finding(|tree| tree.visits.firsts[3] = 0);
        assert!(text.ends_with("node 3: does not know the first rollout that passes"), "{text}");
        let text = finding(|tree| tree.visits.standing[2] = 1);
        assert!(text.ends_with("node 2: has the wrong count of rollouts that stand there"), "{text}");
        let text = finding(|tree| tree.visits.scored[2] = 0);
        assert!(text.ends_with("node 2: has the wrong count of scored rollouts"), "{text}");
        let text = finding(|tree| tree.visits.sums[0] = 0.25);
        assert!(text.ends_with("node 0: has the wrong sum of rewards"), "{text}");
    }
}
