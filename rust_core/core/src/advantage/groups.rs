//! Advantages of rows within groups: the one engine behind GRPO and its many relatives.

use super::batch::{Advantages, Batch};
use super::keys::Groups;
use super::moments::Moments;
use super::options::{Centre, Combine, Options, Scale, Unit, Whiten};
use super::rule::{Line, Refusal};
use super::scope::{Scope, need};
use super::subtrees;
use crate::error::{Error, Result};

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

    /// What the next of nested scopes starts from.
    fn carry(&self, values: &mut [f64]) {
        for (row, value) in values.iter_mut().enumerate().filter(|(row, _)| self.kept[*row] == 1) {
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
pub fn group_advantages(batch: &Batch, scopes: &[Scope], options: &Options) -> Result<Advantages> {
    batch.check()?;
    let mut values = batch.counted(options.count_masked);
    let mut sums = Sums::new(values.len(), options.combine);
    for (at, scope) in scopes.iter().enumerate() {
        if options.combine == Combine::Nested && at > 0 {
            sums.carry(values.to_mut());
        }
        match scope {
            Scope::Keys(columns) => flat(batch, columns, &values, options, at > 0, &mut sums)?,
            Scope::Subtrees(forest) => subtrees::add(forest, &values, options, at > 0, &mut sums)?,
        }
    }
    Ok(finish(batch, sums, options))
}

/// One scope over columns of keys.
fn flat(
    batch: &Batch,
    columns: &[&[u32]],
    values: &[f64],
    options: &Options,
    inner: bool,
    sums: &mut Sums,
) -> Result<()> {
    let rows = values.len();
    if let Some(column) = columns.iter().find(|column| column.len() != rows) {
        return Err(Error::Length { what: "keys of a scope", need: rows, have: column.len() });
    }
    let groups = Groups::new(columns, rows);
    let mut seen = Seen::new(groups.count, options);
    let averages = match options.unit {
        Unit::Row => None,
        Unit::Trajectory => Some(averages(&groups, need(batch.trajectory, "trajectory")?, values, &mut seen)),
    };
    let values = averages.as_deref().unwrap_or(values);
    if averages.is_none() {
        for (&group, &value) in groups.of.iter().zip(values).filter(|(_, value)| !value.is_nan()) {
            seen.push(group, value);
        }
    }
    let lines = seen.lines(options, inner).map_err(|(group, refusal)| {
        let row = groups.of.iter().position(|&of| of as usize == group).unwrap_or_default();
        refusal.of(&format!("the group of row {row}"))
    })?;
    for (row, (&group, &value)) in groups.of.iter().zip(values).enumerate().filter(|(_, (_, value))| !value.is_nan()) {
        let line = &lines[group as usize];
        sums.add(row, line.at(value) * line.weight, line.weight);
    }
    Ok(())
}

/// What the observations of each group come to.
struct Seen {
    moments: Vec<Moments>,
    /// The largest and the second largest of each group, where that matters.
    best: Vec<(f64, f64)>,
    /// Of all groups together, where that matters.
    batch: Option<Moments>,
}

impl Seen {
    fn new(groups: usize, options: &Options) -> Self {
        let ranked = if options.centre == Centre::RunnerUp { groups } else { 0 };
        Self {
            moments: vec![Moments::default(); groups],
            best: vec![(f64::NEG_INFINITY, f64::NEG_INFINITY); ranked],
            batch: (options.scale == Scale::BatchStd).then(Moments::default),
        }
    }

    fn push(&mut self, group: u32, value: f64) {
        self.moments[group as usize].push(value);
        if let Some((first, second)) = self.best.get_mut(group as usize) {
            *second = second.max(first.min(value));
            *first = first.max(value);
        }
        if let Some(batch) = &mut self.batch {
            batch.push(value);
        }
    }

    fn lines(&self, options: &Options, inner: bool) -> std::result::Result<Vec<Line>, (usize, Refusal)> {
        let batch = self.batch.map_or(0.0, |batch| options.deviation(&batch));
        let line = |(group, moments): (usize, &Moments)| {
            let second = self.best.get(group).map_or(0.0, |best| best.1);
            options.line(moments, second, batch, inner).map_err(|refusal| (group, refusal))
        };
        self.moments.iter().enumerate().map(line).collect()
    }
}

/// Per row the mean of its trajectory within its group; each trajectory is one observation.
fn averages(groups: &Groups, trajectory: &[u32], values: &[f64], seen: &mut Seen) -> Vec<f64> {
    let units = Groups::new(&[&groups.of, trajectory], values.len());
    let mut means = vec![Moments::default(); units.count];
    for (&unit, &value) in units.of.iter().zip(values).filter(|(_, value)| !value.is_nan()) {
        means[unit as usize].push(value);
    }
    let mean = |(&unit, &value): (&u32, &f64)| if value.is_nan() { value } else { means[unit as usize].mean };
    let averages = units.of.iter().zip(values).map(mean).collect();
    for (&unit, &group) in units.of.iter().zip(&*groups.of) {
        let mean = std::mem::take(&mut means[unit as usize]);
        if mean.weight > 0.0 {
            seen.push(group, mean.mean);
        }
    }
    averages
}

fn finish(batch: &Batch, sums: Sums, options: &Options) -> Advantages {
    let Sums { mut values, weights, mut kept, .. } = sums;
    for (value, weight) in values.iter_mut().zip(weights).filter(|(_, weight)| *weight > 0.0) {
        *value /= weight;
    }
    for (row, reward) in batch.rewards.iter().enumerate() {
        if reward.is_nan() {
            (values[row], kept[row]) = (f64::NAN, 0);
        } else if batch.is_masked(row) {
            (values[row], kept[row]) = (0.0, 0);
        }
    }
    if options.whiten == Whiten::Batch {
        whiten(&mut values, &kept, batch.tokens);
    }
    drop_zero(&values, &mut kept, options);
    Advantages { values, kept }
}

/// Rows or nodes with an advantage of 0 are not kept, if that is wanted.
pub(super) fn drop_zero(values: &[f64], kept: &mut [u8], options: &Options) {
    if options.drop_zero {
        for (kept, _) in kept.iter_mut().zip(values).filter(|(_, value)| **value == 0.0) {
            *kept = 0;
        }
    }
}

/// Standardise over all tokens of kept rows, as verl's `masked_whiten` does.
fn whiten(values: &mut [f64], kept: &[u8], tokens: Option<&[u32]>) {
    let mut all = Moments::default();
    for (row, &value) in values.iter().enumerate().filter(|(row, _)| kept[*row] == 1) {
        all.merge(Moments::of(value, tokens.map_or(1.0, |tokens| tokens[row].into())));
    }
    let std = (all.variance(1.0) + 1e-8).sqrt();
    for (value, _) in values.iter_mut().zip(kept).filter(|(_, kept)| **kept == 1) {
        *value = (*value - all.mean) / std;
    }
}
