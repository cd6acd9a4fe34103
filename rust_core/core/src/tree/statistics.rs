//! Counting tokens and averaging rewards over a tree, in one sweep each.
//!
//! Where every turn that a rollout passes has token ids, and so has all that its model was given, they are counted. What
//! no model was given, as the last observation of a rollout that ended there, has none. Elsewhere the servers' figures
//! stand in for all. A model turn's server figures say how long its prompt was. What is new in that prompt since the turn before it
//! on the path is `prompt - (prompt before + generated before)`, and never below zero. These tokens belong to the node
//! the turn was asked at, so that siblings share them; where siblings disagree the largest figure counts. A turn that
//! lacks a figure is skipped as if it were an observation.

use crate::id::NodeId;
use crate::tree::Tree;
use crate::tree::nodes::{Kind, Nodes};

/// Tokens of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Tokens of every rollout's path, as if each were a chain of its own.
    pub flat: u64,
    /// The same with everything shared counted once.
    pub tree: u64,
    /// Of `flat`, what was generated.
    pub flat_generated: u64,
    /// Of `tree`, what was generated.
    pub tree_generated: u64,
    /// Tokens of the longest rollout.
    pub longest: u64,
    /// Model turns that lack a figure and are in no total.
    pub unreported: u64,
    /// Whether this was counted from token ids: every turn that a rollout passes has them, and so has all that its model was
    /// given; without a turn, every node. Then what was generated is what was sampled.
    pub exact: bool,
}

/// Rewards seen from every node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Values {
    /// Rollouts that pass through a node or end there.
    pub visits: Vec<u32>,
    /// Of these, scored ones.
    pub scored: Vec<u32>,
    /// The mean reward of the scored ones; NaN where there are none.
    pub mean: Vec<f64>,
}

/// The figures of a turn that has both.
fn figures(nodes: &Nodes, id: NodeId) -> Option<(u64, u64)> {
    let (prompt, generated) = nodes.calls().figures(nodes.row(id)?);
    Some((prompt.get()?.into(), generated.get()?.into()))
}

impl Tree {
    /// Count tokens, from their ids if all are known, else from the servers' figures. `flat >= tree >= longest` always.
    #[must_use]
    pub fn tokens(&self) -> Totals {
        if self.is_exact() { self.exact_tokens() } else { self.reported_tokens() }
    }

    /// Whether the ids of all that models were given and sampled are known.
    fn is_exact(&self) -> bool {
        // Per node whether all ids are known that a model is given there.
        let mut known = vec![true; self.nodes.count() as usize];
        let (mut turns, mut all) = (false, true);
        for id in self.nodes.ids().skip(1) {
            let (at, passed) = (id.index(), self.visits.passes()[id.index()] > 0);
            let own = self.nodes.run(id).is_some();
            let mut given = known[self.nodes.parent(id).index()];
            if let Some(row) = self.nodes.row(id) {
                given = match (self.nodes.calls().context(row), self.drifted(id)) {
                    (None, _) => given,
                    (Some(_), Some(drift)) => given || drift.run.is_some(),
                    (Some(_), None) => false,
                };
                if passed && !(own && given) {
                    return false;
                }
                turns |= passed;
            }
            known[at] = own && given;
            all &= !passed || known[at];
        }
        turns || all
    }

    fn exact_tokens(&self) -> Totals {
        let count = self.nodes.count() as usize;
        let (mut path, mut said) = (vec![0u64; count], vec![0u64; count]);
        let mut totals = Totals { exact: true, ..Totals::default() };
        for id in self.nodes.ids().skip(1) {
            let (at, up) = (id.index(), self.nodes.parent(id).index());
            let (own, sampled) = self.nodes.run(id).map_or((0, 0), |run| (self.runs.len(run), self.runs.sampled(run)));
            // What took the place of a part of the path is the turn's; the part it replaced was generated all the same.
            let len = own + self.drifted(id).and_then(|drift| drift.run).map_or(0, |run| self.runs.len(run));
            (path[at], said[at]) = (path[up] + len, said[up] + sampled);
            if self.visits.passes()[at] > 0 {
                totals.tree += len;
                totals.tree_generated += sampled;
            }
        }
        self.add_rollouts(&mut totals, &path, &said);
        totals
    }

    fn reported_tokens(&self) -> Totals {
        let nodes = &self.nodes;
        let count = nodes.count() as usize;
        // Per node: tokens a server has seen at the last reported turn, tokens of the path, and generated ones of it.
        let (mut seen, mut path, mut said) = (vec![0u64; count], vec![0u64; count], vec![0u64; count]);
        let mut asked = vec![0u64; count];
        let mut totals = Totals::default();
        for id in nodes.ids() {
            let (at, up) = (id.index(), nodes.parent(id).index());
            if let Some((prompt, generated)) = figures(nodes, id) {
                let new = prompt.saturating_sub(seen[up]);
                asked[up] = asked[up].max(new);
                seen[at] = prompt + generated;
                path[at] = path[up].saturating_add(new + generated);
                said[at] = said[up].saturating_add(generated);
                totals.tree_generated = totals.tree_generated.saturating_add(generated);
            } else {
                (seen[at], path[at], said[at]) = (seen[up], path[up], said[up]);
                totals.unreported += u64::from(nodes.kind(id) == Kind::Turn);
            }
        }
        totals.tree = asked.iter().fold(totals.tree_generated, |sum, &tokens| sum.saturating_add(tokens));
        self.add_rollouts(&mut totals, &path, &said);
        totals
    }

    /// What every rollout has, from what its leaf has.
    fn add_rollouts(&self, totals: &mut Totals, path: &[u64], said: &[u64]) {
        for rollout in self.rollouts.ids() {
            let leaf = self.rollouts.leaf(rollout).index();
            totals.flat = totals.flat.saturating_add(path[leaf]);
            totals.flat_generated = totals.flat_generated.saturating_add(said[leaf]);
            totals.longest = totals.longest.max(path[leaf]);
        }
    }

    /// What rollouts left on every node: how many are scored, the sum of their rewards, and how many pass at all.
    #[must_use]
    pub fn statistics(&self) -> (&[u32], &[f64], &[u32]) {
        (self.visits.visits(), self.visits.values(), self.visits.passes())
    }

    /// Count rollouts and average rewards at every node.
    #[must_use]
    pub fn values(&self) -> Values {
        let (scored, sums, passes) = self.statistics();
        let mean = |(&sum, &count): (&f64, &u32)| if count == 0 { f64::NAN } else { sum / f64::from(count) };
        Values { visits: passes.to_vec(), scored: scored.to_vec(), mean: sums.iter().zip(scored).map(mean).collect() }
    }
}
