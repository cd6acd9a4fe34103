//! `TreeRL` as its code has it, where that differs from the paper.

use super::batch::Batch;
use super::groups::within;
use super::options::{Centre, Damping, EstimatorOptions, Scale, Scope, Signal};
use super::values::NodeValues;
use crate::error::Result;
use crate::forest::Forest;

/// Gains smaller than this count as none (`fill_in_paths`).
const NOTHING: f64 = 1e-8;

/// Node rewards after `leaf_normalize`, `compute_weighted_update` and `fill_in_paths` of `tree_node.py` and
/// `parallel_mcts.py`:
///
/// 1. A leaf's score is its reward less the mean of the other leaves of the task.
/// 2. V(s) is the sum of the scores below, damped by the number of selected leaves below, over the number of leaves
///    below. It is 0 at a root.
/// 3. A node that gains nothing over its parent takes the gain of its parent, except below a root.
/// 4. The gain, V(s), or both land on the node; or the mean gain over all nodes above it, which is not filled.
///
/// NaN where no scored or no selected leaf is below.
pub(super) fn node_rewards(
    forest: &Forest,
    batch: &Batch,
    rewards: &[f64],
    options: &EstimatorOptions,
) -> Result<Vec<f64>> {
    let scores = leaf_scores(batch, rewards, options)?;
    let selected = selected_below(forest, batch, &scores);
    let mut found = NodeValues::default();
    found.leaf_means(forest, &scores)?;
    let mut values = found.values;
    let mut gains = vec![0.0; values.len()];
    for (node, &parent) in forest.parents().iter().enumerate() {
        let up = parent as usize;
        if up == node {
            values[node] = 0.0;
            continue;
        }
        values[node] *= damp(selected[node], options.damping);
        gains[node] = values[node] - values[up];
        let first = forest.parents()[up] == parent;
        if options.fill && !first && gains[node].abs() < NOTHING {
            gains[node] = gains[up];
        }
    }
    Ok(match options.signal {
        Signal::LocalPlusValue => gains.iter().zip(&values).map(|(gain, value)| gain + value).collect(),
        Signal::Local => gains,
        Signal::Value => values,
        Signal::Ancestors => over_ancestors(forest, &values),
    })
}

/// Leave-one-out over all leaves of a task, selected or not.
fn leaf_scores(batch: &Batch, rewards: &[f64], options: &EstimatorOptions) -> Result<Vec<f64>> {
    let group = batch.group()?;
    let options = EstimatorOptions {
        centre: Centre::LeaveOneOut,
        scale: Scale::None,
        singleton: options.singleton,
        ..EstimatorOptions::default()
    };
    within(&Batch { rewards, ..Batch::default() }, &[Scope::Keys(vec![&group])], &options).map(|found| found.values)
}

/// Per node how many scored and selected rollouts pass or end there.
fn selected_below(forest: &Forest, batch: &Batch, scores: &[f64]) -> Vec<u32> {
    let mut below = vec![0; forest.parents().len()];
    for (row, (&leaf, score)) in forest.leaves().iter().zip(scores).enumerate() {
        let selected = batch.selected.is_none_or(|selected| selected[row] != 0);
        below[leaf as usize] += u32::from(selected && !score.is_nan());
    }
    for (node, &parent) in forest.parents().iter().enumerate().rev() {
        if parent as usize != node {
            below[parent as usize] += below[node];
        }
    }
    below
}

fn damp(selected: u32, damping: Damping) -> f64 {
    match damping {
        _ if selected == 0 => f64::NAN,
        Damping::Sqrt => f64::from(selected).sqrt().recip(),
        Damping::Uniform => f64::from(selected).recip(),
        Damping::None => 1.0,
    }
}

/// Per node the mean of what it gains over each node above it.
fn over_ancestors(forest: &Forest, values: &[f64]) -> Vec<f64> {
    // Per node how many nodes its path has, and the sum of their values.
    let mut paths: Vec<(f64, f64)> = Vec::with_capacity(values.len());
    let gain = |(node, (&parent, &value)): (usize, (&u32, &f64))| {
        let above = if parent as usize == node { (0.0, 0.0) } else { paths[parent as usize] };
        paths.push((above.0 + 1.0, above.1 + value));
        if above.0 == 0.0 { 0.0 } else { value - above.1 / above.0 }
    };
    forest.parents().iter().zip(values).enumerate().map(gain).collect()
}
