//! Subtrees as groups: every node a rollout passes through is a group it is in.

use super::groups::Sums;
use super::moments::Moments;
use super::options::{Centre, Options, Unit};
use crate::error::{Error, Result, length};
use crate::forest::Forest;

/// Sums over the lines of a node and of all nodes above it. Since each is linear in the reward, so is their sum, and a
/// rollout needs that of its leaf only, however deep it is.
#[derive(Clone, Copy, Default)]
struct Path {
    slope: f64,
    offset: f64,
    weight: f64,
}

/// Add to every rollout what all subtrees it is in give it. Linear in nodes and rollouts.
pub(super) fn add(forest: &Forest, values: &[f64], options: &Options, inner: bool, sums: &mut Sums) -> Result<()> {
    length("leaves", values.len(), forest.leaves().len())?;
    if options.unit != Unit::Row || options.centre == Centre::RunnerUp {
        let value = "unit is \"trajectory\" or centre is \"runner_up\" over subtrees".to_owned();
        return Err(Error::Value { value, want: "\"row\" and another centre" });
    }
    let mut moments = moments(forest, values);
    Moments::settle(&mut moments, options.rounding(values, inner));
    let roots = forest.roots();
    let batch = options.batch_deviation(&[Moments::over(values)]);
    let mut paths: Vec<Path> = Vec::with_capacity(moments.len());
    for (node, &parent) in forest.parents().iter().enumerate() {
        let root = parent as usize == node;
        let above = if root { Path::default() } else { paths[parent as usize] };
        let inner = inner || !root;
        if let Some(refusal) = options.refusal(&moments[node], inner) {
            return Err(refusal.of(&format!("the subtree of node {node}")));
        }
        let line = options.line(&moments[node], 0.0, batch, inner);
        // Relative to the mean of the tree, so that a large common part of all rewards costs no precision.
        let offset = line.slope * (line.centre - moments[roots[node] as usize].mean);
        paths.push(Path {
            slope: above.slope + line.slope,
            offset: above.offset + offset,
            weight: above.weight + line.weight,
        });
    }
    for (row, (&leaf, &value)) in
        forest.leaves().iter().zip(values).enumerate().filter(|(_, (_, value))| !value.is_nan())
    {
        let (path, pivot) = (paths[leaf as usize], moments[roots[leaf as usize] as usize].mean);
        sums.add(row, (value - pivot) * path.slope - path.offset, path.weight);
    }
    Ok(())
}

/// Per node the moments of the rollouts that pass through it or end there.
fn moments(forest: &Forest, values: &[f64]) -> Vec<Moments> {
    let mut moments = vec![Moments::default(); forest.parents().len()];
    for (&leaf, &value) in forest.leaves().iter().zip(values).filter(|(_, value)| !value.is_nan()) {
        moments[leaf as usize].push(value);
    }
    for (node, &parent) in forest.parents().iter().enumerate().rev() {
        if parent as usize != node {
            let below = moments[node];
            moments[parent as usize].merge(below);
        }
    }
    moments
}
