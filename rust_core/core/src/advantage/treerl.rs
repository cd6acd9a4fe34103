//! `TreeRL` as its code has it, where that differs from the paper.

use super::batch::Batch;
use super::groups::group_advantages;
use super::options::{Centre, Damping, Options, Scale, Signal};
use super::scope::Scope;
use super::values::leaf_sums;
use crate::error::Result;
use crate::forest::Forest;

/// Gains smaller than this count as none (`fill_in_paths`).
const NOTHING: f64 = 1e-8;

/// Node rewards after `leaf_normalize`, `compute_weighted_update` and `fill_in_paths` of `tree_node.py` and
/// `parallel_mcts.py`:
///
/// 1. A leaf's score is its reward less the mean of the other leaves of the tree.
/// 2. V(s) is the sum of the scores below, damped by the number of selected leaves below, over the number of leaves
///    below. It is 0 at a root.
/// 3. A node that gains nothing over its parent takes the gain of its parent, except below a root.
/// 4. The gain, V(s), or both land on the node.
///
/// NaN where no scored or no selected leaf is below.
pub(super) fn node_rewards(forest: &Forest, batch: &Batch, rewards: &[f64], options: &Options) -> Result<Vec<f64>> {
    let scores = leaf_scores(forest, rewards, options)?;
    let (mut leaves, mut selected, mut sums) = (Vec::new(), Vec::new(), Vec::new());
    leaf_sums(forest, &chosen(batch, &scores), &mut selected, &mut sums);
    leaf_sums(forest, &scores, &mut leaves, &mut sums);
    let value = |node: usize| {
        let share = f64::from(selected[node]);
        let damped = match options.damping {
            _ if selected[node] == 0 => f64::NAN,
            Damping::Sqrt => sums[node] / share.sqrt(),
            Damping::Uniform => sums[node] / share,
            Damping::None => sums[node],
        };
        damped / f64::from(leaves[node])
    };
    let mut values = vec![0.0; sums.len()];
    let mut gains = vec![0.0; sums.len()];
    for (node, &parent) in forest.parents().iter().enumerate() {
        let up = parent as usize;
        if up == node {
            continue;
        }
        values[node] = value(node);
        gains[node] = values[node] - values[up];
        let first = forest.parents()[up] == parent;
        if options.fill && !first && gains[node].abs() < NOTHING {
            gains[node] = gains[up];
        }
    }
    let signal = |(gain, value): (&f64, &f64)| match options.signal {
        Signal::LocalPlusValue => gain + value,
        Signal::Local => *gain,
        Signal::Value => *value,
    };
    Ok(gains.iter().zip(&values).map(signal).collect())
}

/// Leave-one-out over all leaves of a tree, selected or not.
fn leaf_scores(forest: &Forest, rewards: &[f64], options: &Options) -> Result<Vec<f64>> {
    let roots = forest.roots();
    let trees: Vec<u32> = forest.leaves().iter().map(|&leaf| roots[leaf as usize]).collect();
    let options =
        Options { centre: Centre::LeaveOneOut, scale: Scale::None, singleton: options.singleton, ..Options::default() };
    let batch = Batch { rewards, ..Batch::default() };
    group_advantages(&batch, &[Scope::Keys(vec![&trees])], &options).map(|found| found.values)
}

/// The scores of selected rollouts; NaN for others.
fn chosen(batch: &Batch, scores: &[f64]) -> Vec<f64> {
    let is_selected = |row: usize| batch.selected.is_none_or(|selected| selected[row] != 0);
    scores.iter().enumerate().map(|(row, &score)| if is_selected(row) { score } else { f64::NAN }).collect()
}
