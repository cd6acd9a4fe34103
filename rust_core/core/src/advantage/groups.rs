//! Advantages of rows within groups: the one engine behind GRPO and its many relatives. A subtree is a group as well:
//! every node that a rollout passes through is a group it is in.

use std::borrow::Cow;

use crate::advantage::batch::{Advantages, Batch};
use crate::advantage::keys::Groups;
use crate::advantage::moments::Moments;
use crate::advantage::options::{Centre, Combine, EstimatorOptions, Scope, Unit, Whiten, need};
use crate::advantage::rule::Line;
use crate::error::{Error, Result, length};
use crate::forest::Forest;

/// Per row what the scopes have given it so far.
pub(super) struct Sums {
    /// Advantages times their weights.
    values: Vec<f64>,
    /// The weights; only where they divide in the end.
    weights: Vec<f64>,
    /// Whether any scope has counted.
    kept: Vec<u8>,
    nested: bool,
}

impl Sums {
    fn new(rows: usize, combine: Combine) -> Self {
        let averaged = matches!(combine, Combine::Mean | Combine::SizeWeighted);
        Self {
            values: vec![0.0; rows],
            weights: vec![0.0; if averaged { rows } else { 0 }],
            kept: vec![0; rows],
            nested: combine == Combine::Nested,
        }
    }

    /// Count an advantage that is multiplied by its weight already.
    pub(super) fn add(&mut self, row: usize, value: f64, weight: f64) {
        if weight > 0.0 {
            self.values[row] = if self.nested { value } else { self.values[row] + value };
            self.kept[row] = 1;
            if let Some(sum) = self.weights.get_mut(row) {
                *sum += weight;
            }
        }
    }

    /// Count the advantages of all rows that are in a group that counts.
    fn add_all(&mut self, groups: &Groups, rewards: &[f64], lines: &[Line]) {
        let Self { values, weights, kept, nested } = self;
        for ((&group, &reward), (value, kept)) in groups.of.iter().zip(rewards).zip(values.iter_mut().zip(kept)) {
            let line = &lines[group as usize];
            if line.weight > 0.0 {
                *value = line.at(reward) + if *nested { 0.0 } else { *value };
                *kept = 1;
            }
        }
        for (sum, &group) in weights.iter_mut().zip(&*groups.of) {
            *sum += lines[group as usize].weight;
        }
    }

    /// What the next of nested scopes starts from.
    fn carry(&self, values: &mut [f64]) {
        for (row, value) in values.iter_mut().enumerate().filter(|(row, value)| self.kept[*row] == 1 && !value.is_nan())
        {
            *value = self.values[row];
        }
    }
}

/// Advantages of rows relative to the groups they are in.
///
/// Per scope and group `(reward - centre) / scale`, as `options` say; scopes are combined, and all may be whitened.
/// Groups without variance give exactly 0 (unless `centre` is `none`). Time and memory are linear in the rows, and
/// for subtrees in the nodes.
///
/// # Errors
/// [`Error::Length`] or [`Error::Value`] naming the column, the option or the row.
pub fn group_advantages(batch: &Batch, scopes: &[Scope], options: &EstimatorOptions) -> Result<Advantages> {
    batch.check()?;
    within(batch, scopes, options)
}

/// The same for a batch that was checked.
pub(super) fn within(batch: &Batch, scopes: &[Scope], options: &EstimatorOptions) -> Result<Advantages> {
    if scopes.is_empty() {
        return Err(Error::conflict("there is no scope", "at least one"));
    }
    let mut values = batch.counted(options.count_masked);
    let mut sums = Sums::new(values.len(), options.combine);
    for (at, scope) in scopes.iter().enumerate() {
        if options.combine == Combine::Nested && at > 0 {
            sums.carry(values.to_mut());
        }
        match scope {
            Scope::Keys(columns) => flat(batch, columns, &values, options, at > 0, &mut sums)?,
            Scope::Subtrees(forest) => add(forest, &values, options, at > 0, &mut sums)?,
        }
    }
    Ok(finish(batch, sums, options))
}

/// One scope over columns of keys.
fn flat(
    batch: &Batch,
    columns: &[&[u32]],
    values: &[f64],
    options: &EstimatorOptions,
    inner: bool,
    sums: &mut Sums,
) -> Result<()> {
    let rows = values.len();
    columns.iter().try_for_each(|column| length("keys of a scope", rows, column.len()))?;
    let groups = Groups::new(columns, rows);
    let (values, observed) = match options.unit {
        Unit::Row => (Cow::Borrowed(values), None),
        Unit::Trajectory => {
            let (averages, firsts) = averages(&groups, need(batch.trajectory, "trajectory")?, values);
            (averages.into(), Some(firsts))
        }
    };
    let lines = lines(&groups, observed.as_deref().unwrap_or(&values), options, inner)?;
    sums.add_all(&groups, &values, &lines);
    Ok(())
}

/// Per group its line.
fn lines(groups: &Groups, observed: &[f64], options: &EstimatorOptions, inner: bool) -> Result<Vec<Line>> {
    let mut moments = Moments::by_group(groups, observed);
    Moments::settle(&mut moments, options.rounding(observed, inner));
    let seconds = if options.centre == Centre::RunnerUp { seconds(groups, observed) } else { Vec::new() };
    let batch = options.batch_deviation(&moments);
    let refused = moments.iter().enumerate().find_map(|(at, group)| Some((at, options.refusal(group, inner)?)));
    if let Some((group, refusal)) = refused {
        let row = groups.of.iter().position(|&of| of as usize == group).unwrap_or_default();
        return Err(refusal.of(&format!("the group of row {row}")));
    }
    let line = |(group, moments): (usize, &Moments)| {
        let second = seconds.get(group).copied().unwrap_or_default();
        options.line(moments, second, batch, inner)
    };
    Ok(moments.iter().enumerate().map(line).collect())
}

/// Per group its second largest number.
fn seconds(groups: &Groups, values: &[f64]) -> Vec<f64> {
    let mut best = vec![(f64::NEG_INFINITY, f64::NEG_INFINITY); groups.count];
    for (&group, &value) in groups.of.iter().zip(values).filter(|(_, value)| !value.is_nan()) {
        let (first, second) = &mut best[group as usize];
        *second = second.max(first.min(value));
        *first = first.max(value);
    }
    best.into_iter().map(|(_, second)| second).collect()
}

/// Per row the mean of its trajectory within its group; and the same only in the first row of each trajectory, so that
/// it is one observation.
fn averages(groups: &Groups, trajectory: &[u32], values: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let units = Groups::new(&[&groups.of, trajectory], values.len());
    let means = Moments::by_group(&units, values);
    let mean = |(&unit, &value): (&u32, &f64)| if value.is_nan() { value } else { means[unit as usize].mean };
    let averages: Vec<f64> = units.of.iter().zip(values).map(mean).collect();
    let mut met = vec![false; units.count];
    let first = |(&unit, &average): (&u32, &f64)| {
        let counted = !average.is_nan() && !std::mem::replace(&mut met[unit as usize], true);
        if counted { average } else { f64::NAN }
    };
    let firsts = units.of.iter().zip(&averages).map(first).collect();
    (averages, firsts)
}

fn finish(batch: &Batch, sums: Sums, options: &EstimatorOptions) -> Advantages {
    let Sums { mut values, weights, mut kept, .. } = sums;
    for (value, weight) in values.iter_mut().zip(weights).filter(|(_, weight)| *weight > 0.0) {
        *value /= weight;
    }
    for ((value, kept), _) in
        values.iter_mut().zip(&mut kept).zip(batch.masked.unwrap_or_default()).filter(|(_, masked)| **masked != 0)
    {
        (*value, *kept) = (0.0, 0);
    }
    for ((value, kept), _) in values.iter_mut().zip(&mut kept).zip(batch.rewards).filter(|(_, reward)| reward.is_nan())
    {
        (*value, *kept) = (f64::NAN, 0);
    }
    if options.whiten == Whiten::Batch {
        whiten(&mut values, &kept, batch.tokens);
    }
    drop_zero(&values, &mut kept, options);
    Advantages { values, kept }
}

/// Rows or nodes with an advantage of 0 are not kept, if that is wanted.
pub(super) fn drop_zero(values: &[f64], kept: &mut [u8], options: &EstimatorOptions) {
    if options.drop_zero {
        for (kept, _) in kept.iter_mut().zip(values).filter(|(_, value)| **value == 0.0) {
            *kept = 0;
        }
    }
}

/// Standardise over all tokens of kept rows, as verl's `masked_whiten` does. A row without tokens is 0.
fn whiten(values: &mut [f64], kept: &[u8], tokens: Option<&[u32]>) {
    let weight = |row: usize| tokens.map_or(1.0, |tokens| tokens[row].into());
    let rows = values.iter().zip(kept).enumerate().filter(|(_, (_, kept))| **kept == 1);
    let all = Moments::weighted(rows.map(|(row, (&value, _))| (value, weight(row))));
    let std = (all.variance(1.0) + 1e-8).sqrt();
    for (row, (value, _)) in values.iter_mut().zip(kept).enumerate().filter(|(_, (_, kept))| **kept == 1) {
        *value = if weight(row) > 0.0 { (*value - all.mean) / std } else { 0.0 };
    }
}

/// Sums over the lines of a node and of all nodes above it. Since each is linear in the reward, so is their sum, and a
/// rollout needs that of its leaf only, however deep it is.
#[derive(Clone, Copy, Default)]
struct Path {
    slope: f64,
    offset: f64,
    weight: f64,
}

/// Add to every rollout what all subtrees it is in give it. Linear in nodes and rollouts.
pub(super) fn add(
    forest: &Forest,
    values: &[f64],
    options: &EstimatorOptions,
    inner: bool,
    sums: &mut Sums,
) -> Result<()> {
    length("leaves", values.len(), forest.leaves().len())?;
    if options.unit != Unit::Row || options.centre == Centre::RunnerUp {
        let value = "unit is \"trajectory\" or centre is \"runner_up\" over subtrees".to_owned();
        return Err(Error::conflict(value, "\"row\" and another centre"));
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
