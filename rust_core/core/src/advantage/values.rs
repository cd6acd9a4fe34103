//! Values of nodes, backed up from the leaves, and what a node gains over those above it.

use super::batch::finite;
use super::moments::Moments;
use crate::error::{Error, Result};
use crate::forest::Forest;

/// V(s), the mean reward of the scored rollouts that pass through a node or end there; NaN where there are none.
///
/// # Errors
/// [`Error::Length`] or [`Error::Value`] if the rewards do not fit the forest.
pub fn leaf_means(forest: &Forest, rewards: &[f64]) -> Result<Vec<f64>> {
    check(forest, rewards)?;
    let (counts, sums) = leaf_sums(forest, rewards);
    Ok(counts.iter().zip(&sums).map(|(&count, sum)| sum / f64::from(count)).collect())
}

/// V(s), the mean over the children of a node; a rollout that ends there counts as one child with its reward. NaN where
/// nothing was scored.
///
/// # Errors
/// As of [`leaf_means`].
pub fn child_means(forest: &Forest, rewards: &[f64]) -> Result<Vec<f64>> {
    check(forest, rewards)?;
    Ok(children(forest, rewards).iter().map(mean).collect())
}

/// V(s) of `TreeRL`'s tree search: `sum_c N_c (R_c - R_s + gamma V_c) / sum_c N_c` over the children c of s, and its own
/// reward where there are none (`parallel_mcts.py`). Children whose term is NaN are left out.
///
/// `rewards` and `visits` are per node; without visits, N is the number of rollouts that pass.
///
/// # Errors
/// [`Error::Length`] or [`Error::Value`] naming the column.
pub fn discounted(forest: &Forest, rewards: &[f64], visits: Option<&[u32]>, gamma: f64) -> Result<Vec<f64>> {
    let nodes = forest.parents().len();
    finite("reward", rewards)?;
    for (what, have) in [("rewards of nodes", rewards.len()), ("visits", visits.map_or(nodes, <[u32]>::len))] {
        if have != nodes {
            return Err(Error::Length { what, need: nodes, have });
        }
    }
    if !(0.0..=1.0).contains(&gamma) {
        return Err(Error::Value { value: format!("gamma is {gamma}"), want: "0 to 1" });
    }
    let passes = forest.passes();
    let visits = visits.unwrap_or(&passes);
    let (mut values, mut below) = (rewards.to_vec(), vec![Moments::default(); nodes]);
    for (node, &parent) in forest.parents().iter().enumerate().rev() {
        let up = parent as usize;
        if below[node].weight > 0.0 {
            values[node] = below[node].mean;
        }
        let gain = rewards[node] - rewards[up] + gamma * values[node];
        if up != node && !gain.is_nan() {
            below[up].merge(Moments::of(gain, visits[node].into()));
        }
    }
    Ok(values)
}

/// Per node V(s) - V(parent) and V(s) - V(root of its tree); 0 at roots.
///
/// # Errors
/// [`Error::Length`] if there is not one value a node.
pub fn gains(forest: &Forest, values: &[f64]) -> Result<(Vec<f64>, Vec<f64>)> {
    let parents = forest.parents();
    if values.len() != parents.len() {
        return Err(Error::Length { what: "values", need: parents.len(), have: values.len() });
    }
    let local = values.iter().zip(parents).map(|(value, &parent)| value - values[parent as usize]).collect();
    let mut roots: Vec<f64> = Vec::with_capacity(values.len());
    for (node, &parent) in parents.iter().enumerate() {
        roots.push(if parent as usize == node { values[node] } else { roots[parent as usize] });
    }
    for (root, value) in roots.iter_mut().zip(values) {
        *root = value - *root;
    }
    Ok((local, roots))
}

/// Per node the number of scored rollouts that pass or end there, and the sum of their rewards.
pub(super) fn leaf_sums(forest: &Forest, rewards: &[f64]) -> (Vec<u32>, Vec<f64>) {
    let nodes = forest.parents().len();
    let (mut counts, mut sums) = (vec![0u32; nodes], vec![0.0; nodes]);
    for (&leaf, reward) in forest.leaves().iter().zip(rewards).filter(|(_, reward)| !reward.is_nan()) {
        counts[leaf as usize] += 1;
        sums[leaf as usize] += reward;
    }
    for (node, &parent) in forest.parents().iter().enumerate().rev() {
        if parent as usize != node {
            counts[parent as usize] += counts[node];
            sums[parent as usize] += sums[node];
        }
    }
    (counts, sums)
}

/// Per node the moments of its children's values.
pub(super) fn children(forest: &Forest, rewards: &[f64]) -> Vec<Moments> {
    let mut children = vec![Moments::default(); forest.parents().len()];
    for (&leaf, &reward) in forest.leaves().iter().zip(rewards).filter(|(_, reward)| !reward.is_nan()) {
        children[leaf as usize].push(reward);
    }
    for (node, &parent) in forest.parents().iter().enumerate().rev() {
        let own = children[node];
        if parent as usize != node && own.weight > 0.0 {
            children[parent as usize].push(own.mean);
        }
    }
    children
}

/// The mean of what there is.
pub(super) fn mean(moments: &Moments) -> f64 {
    if moments.weight > 0.0 { moments.mean } else { f64::NAN }
}

/// Rewards of rollouts must be one a leaf and finite, or NaN.
pub(super) fn check(forest: &Forest, rewards: &[f64]) -> Result<()> {
    let (need, have) = (forest.leaves().len(), rewards.len());
    if need != have {
        return Err(Error::Length { what: "rewards", need, have });
    }
    finite("reward", rewards)
}
