//! Estimators that land on nodes: credit by what a node changes.

use super::batch::Batch;
use super::groups::group_advantages;
use super::moments::Moments;
use super::options::{Combine, Options, Scale, Singleton};
use super::scope::Scope;
use super::values::{children, leaf_sums, mean};
use crate::error::Result;
use crate::forest::Forest;

/// Tree-GRPO's node scores, `(V + max(V - V(parent) - margin, 0)) / sqrt(n)` with leaf means V and n leaves below
/// (`tree_diff`). They belong on all tokens of their own node; the published code puts them elsewhere.
pub(super) fn differences(forest: &Forest, rewards: &[f64], options: &Options) -> Vec<f64> {
    over_parents(forest, rewards, |value, above, _, leaves| {
        (value + (value - above - options.margin).max(0.0)) / leaves.sqrt()
    })
}

/// `TreeRL` as its paper has it: `((V - V(root)) + (V - V(parent))) / sqrt(n)` with leaf means V and n leaves below.
pub(super) fn gains_by_leaves(forest: &Forest, rewards: &[f64]) -> Vec<f64> {
    over_parents(forest, rewards, |value, above, root, leaves| ((value - root) + (value - above)) / leaves.sqrt())
}

/// Apply a function of V(s), V(parent), V(root) and the number of scored leaves below to every node.
fn over_parents(forest: &Forest, rewards: &[f64], score: impl Fn(f64, f64, f64, f64) -> f64) -> Vec<f64> {
    let (mut counts, mut sums) = (Vec::new(), Vec::new());
    leaf_sums(forest, rewards, &mut counts, &mut sums);
    let value = |node: u32| sums[node as usize] / f64::from(counts[node as usize]);
    let links = (0u32..).zip(forest.parents()).zip(forest.roots());
    links
        .map(|((node, &parent), root)| score(value(node), value(parent), value(root), f64::from(counts[node as usize])))
        .collect()
}

/// SPO's edges: V(s) - V(parent) with child means V, divided by the deviation among the parent's children where
/// `scale` is `std` (`extract_edges_from_tree`). 0 at roots.
pub(super) fn edges(forest: &Forest, rewards: &[f64], options: &Options) -> Vec<f64> {
    let children = children(forest, rewards);
    let edge = |(node, &parent): (&Moments, &u32)| {
        let siblings = &children[parent as usize];
        let gain = mean(node) - mean(siblings);
        let std = siblings.variance(options.ddof).sqrt() + options.eps;
        match options.scale {
            Scale::Std if gain != 0.0 && std > 0.0 => gain / std,
            _ => gain,
        }
    };
    children.iter().zip(forest.parents()).map(edge).collect()
}

/// `TreePO`'s segments: V(s) - V(parent) with child means V, where V of a root is taken to be 0. With `relative`,
/// leaves start with their size-weighted relative reward (`compute_tree_rfpp_progress_outcome_advantage`).
pub(super) fn segments(forest: &Forest, rewards: &[f64], options: &Options) -> Result<Vec<f64>> {
    let values = children(forest, &if options.relative { relative(forest, rewards)? } else { rewards.to_vec() });
    let segment = |(node, &parent): (usize, &u32)| {
        let up = parent as usize;
        let first = forest.parents()[up] == parent;
        match up == node {
            true if values[node].weight > 0.0 => 0.0,
            false if first => mean(&values[node]),
            _ => mean(&values[node]) - mean(&values[up]),
        }
    };
    Ok(forest.parents().iter().enumerate().map(segment).collect())
}

/// A rollout alone at its leaf counts as a group of one whose advantage is 0.
fn relative(forest: &Forest, rewards: &[f64]) -> Result<Vec<f64>> {
    let batch = Batch { rewards, forest: Some(forest), ..Batch::default() };
    let options = Options {
        scale: Scale::None,
        combine: Combine::SizeWeighted,
        singleton: Singleton::Raw,
        subgroup_singleton: Singleton::Zero,
        ..Options::default()
    };
    group_advantages(&batch, &[Scope::Subtrees(forest)], &options).map(|found| found.values)
}
