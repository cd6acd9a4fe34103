//! Estimators that land on nodes: credit by what a node changes.

use super::batch::Batch;
use super::groups::within;
use super::options::{Combine, EstimatorOptions, Scale, Scope, Singleton};
use super::rule::inverse;
use super::values::NodeValues;
use crate::error::Result;
use crate::forest::Forest;

/// Tree-GRPO's node scores, `(V + max(V - V(parent) - margin, 0)) / sqrt(n)` with leaf means V and n leaves below
/// (`tree_diff`). They belong on all tokens of their own node; the published code puts them elsewhere.
pub(super) fn differences(forest: &Forest, rewards: &[f64], options: &EstimatorOptions) -> Result<Vec<f64>> {
    by_leaves(forest, rewards, |value, local, _| value + (local - options.margin).max(0.0))
}

/// `TreeRL` as its paper has it: `((V - V(root)) + (V - V(parent))) / sqrt(n)` with leaf means V and n leaves below.
pub(super) fn gains_by_leaves(forest: &Forest, rewards: &[f64]) -> Result<Vec<f64>> {
    by_leaves(forest, rewards, |_, local, global| global + local)
}

/// A score of V, V - V(parent) and V - V(root), over the square root of the number of scored leaves below.
fn by_leaves(forest: &Forest, rewards: &[f64], score: impl Fn(f64, f64, f64) -> f64) -> Result<Vec<f64>> {
    let mut found = NodeValues::default();
    found.leaf_means(forest, rewards)?;
    let NodeValues { values, local, global, counts } = &found;
    let gains = values.iter().zip(local).zip(global).zip(counts);
    Ok(gains.map(|(((value, local), global), &n)| score(*value, *local, *global) / f64::from(n).sqrt()).collect())
}

/// By how much means that are equal may differ, relative to them.
const ROUNDING: f64 = 4.0 * f64::EPSILON;

/// SPO's edges: V(s) - V(parent) with child means V, divided by the deviation among the parent's children where
/// `scale` is `std` (`extract_edges_from_tree`). 0 at roots.
pub(super) fn edges(forest: &Forest, rewards: &[f64], options: &EstimatorOptions) -> Result<Vec<f64>> {
    let mut found = NodeValues::default();
    found.child_means(forest, rewards)?;
    for ((gain, value), &parent) in found.local.iter_mut().zip(&found.values).zip(forest.parents()) {
        // Whether an edge is dropped must not depend on the order of leaves.
        if gain.abs() <= ROUNDING * (value.abs() + found.values[parent as usize].abs()) {
            *gain = 0.0;
        }
    }
    if options.scale == Scale::Std {
        let slopes = slopes(forest, rewards, &found, options);
        for (gain, &parent) in found.local.iter_mut().zip(forest.parents()) {
            *gain *= slopes[parent as usize];
        }
    }
    Ok(found.local)
}

/// Per node the inverse of the standard deviation among its children and the rewards that end at it.
fn slopes(forest: &Forest, rewards: &[f64], found: &NodeValues, options: &EstimatorOptions) -> Vec<f64> {
    let mut squares = vec![0.0; found.values.len()];
    for (&leaf, &reward) in forest.leaves().iter().zip(rewards).filter(|(_, reward)| !reward.is_nan()) {
        squares[leaf as usize] += (reward - found.values[leaf as usize]).powi(2);
    }
    for (gain, &parent) in found.local.iter().zip(forest.parents()).filter(|(gain, _)| !gain.is_nan()) {
        squares[parent as usize] += gain * gain;
    }
    let slope = |(square, &count): (f64, &u32)| {
        let count = f64::from(count) - options.ddof;
        let deviation = if count > 0.0 { (square / count).sqrt() } else { 0.0 };
        inverse(deviation + options.eps)
    };
    squares.into_iter().zip(&found.counts).map(slope).collect()
}

/// `TreePO`'s segments: V(s) - V(parent) with child means V, where V of a root is taken to be 0. With `relative`,
/// leaves start with their size-weighted relative reward (`compute_tree_rfpp_progress_outcome_advantage`).
pub(super) fn segments(forest: &Forest, rewards: &[f64], options: &EstimatorOptions) -> Result<Vec<f64>> {
    let mut found = NodeValues::default();
    found.child_means(forest, &if options.relative { relative(forest, rewards)? } else { rewards.to_vec() })?;
    for (node, &parent) in forest.parents().iter().enumerate() {
        if parent as usize != node && forest.parents()[parent as usize] == parent {
            found.local[node] = found.values[node];
        }
    }
    Ok(found.local)
}

/// A rollout alone at its leaf counts as a group of one whose advantage is 0.
fn relative(forest: &Forest, rewards: &[f64]) -> Result<Vec<f64>> {
    let batch = Batch { rewards, forest: Some(forest), ..Batch::default() };
    let options = EstimatorOptions {
        scale: Scale::None,
        combine: Combine::SizeWeighted,
        singleton: Singleton::Raw,
        subgroup_singleton: Singleton::Zero,
        ..EstimatorOptions::default()
    };
    within(&batch, &[Scope::Subtrees(forest)], &options).map(|found| found.values)
}
