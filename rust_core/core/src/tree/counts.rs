//! Counting tokens and averaging rewards over a tree, in one sweep each.
//!
//! A model turn's server figures say how long its prompt was. What is new in that prompt since the turn before it on the
//! path is `prompt - (prompt before + generated before)`, and never below zero. These tokens belong to the node the turn
//! was asked at, so that siblings share them; where siblings disagree the largest figure counts. A turn that lacks a figure
//! is skipped as if it were an observation.

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
    /// Model turns that lack a figure.
    pub unreported: u64,
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
    match (nodes.key(id).kind, nodes.prompt(id).get(), nodes.generated(id).get()) {
        (Kind::Turn, Some(prompt), Some(generated)) => Some((prompt.into(), generated.into())),
        _ => None,
    }
}

impl Tree {
    /// Count tokens from the server's figures. `flat >= tree >= longest` always.
    #[must_use]
    pub fn tokens(&self) -> Totals {
        let nodes = &self.nodes;
        let count = nodes.count() as usize;
        // Per node: tokens a server has seen at the last reported turn, tokens of the path, and generated ones of it.
        let (mut seen, mut path, mut said) = (vec![0u64; count], vec![0u64; count], vec![0u64; count]);
        let mut asked = vec![0u64; count];
        let mut totals = Totals::default();
        for id in nodes.ids() {
            let (at, up) = (id.index(), nodes.key(id).parent.index());
            if let Some((prompt, generated)) = figures(nodes, id) {
                let new = prompt.saturating_sub(seen[up]);
                asked[up] = asked[up].max(new);
                seen[at] = prompt + generated;
                path[at] = path[up].saturating_add(new + generated);
                said[at] = said[up].saturating_add(generated);
                totals.tree_generated = totals.tree_generated.saturating_add(generated);
            } else {
                (seen[at], path[at], said[at]) = (seen[up], path[up], said[up]);
                totals.unreported += u64::from(nodes.key(id).kind == Kind::Turn);
            }
        }
        totals.tree = asked.iter().fold(totals.tree_generated, |sum, &tokens| sum.saturating_add(tokens));
        for rollout in self.rollouts.ids() {
            let leaf = self.rollouts.leaf(rollout).index();
            totals.flat = totals.flat.saturating_add(path[leaf]);
            totals.flat_generated = totals.flat_generated.saturating_add(said[leaf]);
            totals.longest = totals.longest.max(path[leaf]);
        }
        totals
    }

    /// Count rollouts and average rewards at every node.
    #[must_use]
    pub fn values(&self) -> Values {
        let count = self.nodes.count() as usize;
        let (mut visits, mut scored, mut mean) = (vec![0u32; count], vec![0u32; count], vec![0f64; count]);
        for rollout in self.rollouts.ids() {
            let leaf = self.rollouts.leaf(rollout).index();
            visits[leaf] += 1;
            let reward = self.rollouts.reward(rollout);
            if !reward.is_nan() {
                scored[leaf] += 1;
                mean[leaf] += reward;
            }
        }
        // Children come after their parents, so one sweep from the end has every sum complete when it is passed on.
        for id in self.nodes.ids().rev() {
            let (at, up) = (id.index(), self.nodes.key(id).parent.index());
            if id != NodeId::ROOT {
                visits[up] += visits[at];
                scored[up] += scored[at];
                mean[up] += mean[at];
            }
            mean[at] = if scored[at] == 0 { f64::NAN } else { mean[at] / f64::from(scored[at]) };
        }
        Values { visits, scored, mean }
    }
}
