//! Advantages of rows within groups: the one engine behind GRPO and its many relatives.

use super::batch::{Advantages, Batch};
use super::keys::Groups;
use super::moments::Moments;
use super::options::{Centre, Combine, Options, Scale, Unit, Whiten};
use super::rule::Line;
use super::scope::{Scope, need};
use super::subtrees;
use crate::error::{Error, Result};

/// A row's advantage in one scope, times the weight it has beside other scopes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Term {
    pub(super) value: f64,
    pub(super) weight: f64,
}

/// Advantages of rows relative to the groups they are in.
///
/// Per scope and group `(reward - centre) / scale`, as `options` say; scopes are combined, and all may be whitened. Groups
/// without variance give exactly 0 (unless `centre` is `none`). Time and memory are linear in the rows, and for subtrees
/// in the nodes.
///
/// # Errors
/// [`Error::Length`] or [`Error::Value`] naming the column, the option or the row.
pub fn group_advantages(batch: &Batch, scopes: &[Scope], options: &Options) -> Result<Advantages> {
    batch.check()?;
    let rows = batch.rewards.len();
    let mut values = batch.counted(options.count_masked);
    let mut sums = vec![Term::default(); rows];
    for (at, scope) in scopes.iter().enumerate() {
        let terms = match scope {
            Scope::Keys(columns) => flat(batch, columns, &values, options, at > 0)?,
            Scope::Subtrees(forest) => subtrees::terms(forest, &values, options, at > 0)?,
        };
        for (row, term) in terms.into_iter().enumerate().filter(|(_, term)| term.weight > 0.0) {
            if options.combine == Combine::Nested {
                values[row] = term.value;
                sums[row] = term;
            } else {
                sums[row].value += term.value;
                sums[row].weight += term.weight;
            }
        }
    }
    Ok(finish(batch, &sums, options))
}

/// One scope over columns of keys.
fn flat(batch: &Batch, columns: &[&[u32]], values: &[f64], options: &Options, inner: bool) -> Result<Vec<Term>> {
    let rows = values.len();
    if let Some(column) = columns.iter().find(|column| column.len() != rows) {
        return Err(Error::Length { what: "keys of a scope", need: rows, have: column.len() });
    }
    let groups = Groups::new(columns, rows);
    let mut moments = vec![Moments::default(); groups.count];
    let averages = match options.unit {
        Unit::Row => None,
        Unit::Trajectory => Some(averages(&groups, need(batch.trajectory, "trajectory")?, values, &mut moments)),
    };
    let values = averages.as_deref().unwrap_or(values);
    if averages.is_none() {
        for (&group, &value) in groups.of.iter().zip(values).filter(|(_, value)| !value.is_nan()) {
            moments[group as usize].push(value);
        }
    }
    let seconds = if options.centre == Centre::RunnerUp { runners_up(&groups, values) } else { Vec::new() };
    let batch_std = batch_std(values, options);
    let mut lines = Vec::with_capacity(groups.count);
    for (group, moments) in moments.iter().enumerate() {
        let second = seconds.get(group).copied().unwrap_or_default();
        lines.push(options.line(moments, second, batch_std, inner).map_err(|refusal| {
            let row = groups.of.iter().position(|&of| of as usize == group).unwrap_or_default();
            refusal.of(&format!("the group of row {row}"))
        })?);
    }
    let clamp = options.centre == Centre::RunnerUp;
    let term = |(&value, &group): (&f64, &u32)| {
        let Line { centre, slope, weight } = lines[group as usize];
        let above = if clamp { (value - centre).max(0.0) } else { value - centre };
        if value.is_nan() { Term::default() } else { Term { value: above * slope * weight, weight } }
    };
    Ok(values.iter().zip(&groups.of).map(term).collect())
}

/// Per row the mean of its trajectory within its group; counted once in the moments of the group.
fn averages(groups: &Groups, trajectory: &[u32], values: &[f64], moments: &mut [Moments]) -> Vec<f64> {
    let units = Groups::new(&[&groups.of, trajectory], values.len());
    let mut means = vec![Moments::default(); units.count];
    for (&unit, &value) in units.of.iter().zip(values).filter(|(_, value)| !value.is_nan()) {
        means[unit as usize].push(value);
    }
    let mean = |(&unit, &value): (&u32, &f64)| if value.is_nan() { value } else { means[unit as usize].mean };
    let averages = units.of.iter().zip(values).map(mean).collect();
    for (&unit, &group) in units.of.iter().zip(&groups.of) {
        let seen = std::mem::take(&mut means[unit as usize]);
        if seen.weight > 0.0 {
            moments[group as usize].push(seen.mean);
        }
    }
    averages
}

/// Per group the second largest value.
fn runners_up(groups: &Groups, values: &[f64]) -> Vec<f64> {
    let mut best = vec![(f64::NEG_INFINITY, f64::NEG_INFINITY); groups.count];
    for (&group, &value) in groups.of.iter().zip(values) {
        let (first, second) = &mut best[group as usize];
        // A NaN changes neither.
        *second = second.max(first.min(value));
        *first = first.max(value);
    }
    best.into_iter().map(|(_, second)| second).collect()
}

/// The standard deviation of all values, if it is wanted.
pub(super) fn batch_std(values: &[f64], options: &Options) -> f64 {
    if options.scale != Scale::BatchStd {
        return 0.0;
    }
    let mut all = Moments::default();
    values.iter().filter(|value| !value.is_nan()).for_each(|&value| all.push(value));
    all.variance(options.ddof).max(options.var_floor).sqrt()
}

fn finish(batch: &Batch, sums: &[Term], options: &Options) -> Advantages {
    let averaged = matches!(options.combine, Combine::Mean | Combine::SizeWeighted);
    let mut kept = vec![0; sums.len()];
    let mut values = vec![0.0; sums.len()];
    for (row, sum) in sums.iter().enumerate() {
        if batch.rewards[row].is_nan() {
            values[row] = f64::NAN;
        } else if sum.weight > 0.0 && !batch.is_masked(row) {
            values[row] = if averaged { sum.value / sum.weight } else { sum.value };
            kept[row] = 1;
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
