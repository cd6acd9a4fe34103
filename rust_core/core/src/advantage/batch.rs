//! What estimators work on, rows of rewards and columns beside them, and what they give: values on rows, nodes and
//! tokens.

use std::borrow::Cow;

use crate::advantage::options::need;
use crate::advantage::values::NodeValues;
use crate::error::{Error, Result, length};
use crate::forest::{Forest, bounds};
use crate::pack::sampled;
use crate::validation::finite_column;

/// Columns with one element a row. A row is a rollout; with `trajectory` it may be a step or a turn of one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch<'a> {
    /// Rewards; NaN for unscored rows, which get NaN and are in no baseline.
    pub rewards: &'a [f64],
    /// The task; where it is left out, the root that a row's leaf is under.
    pub group: Option<&'a [u32]>,
    /// The initial chain that a rollout was expanded for.
    pub subgroup: Option<&'a [u32]>,
    /// Who acted.
    pub agent: Option<&'a [u32]>,
    /// What was seen before a step: equal numbers for equal observations.
    pub anchor: Option<&'a [u32]>,
    /// The rollout a row is part of.
    pub trajectory: Option<&'a [u32]>,
    /// Number of the step; never smaller than in an earlier row of the trajectory. Left out: every row is a step.
    pub step: Option<&'a [u32]>,
    /// Reward of each step.
    pub step_rewards: Option<&'a [f64]>,
    /// Rows (1) that train nothing and get 0. They may still count in baselines.
    pub masked: Option<&'a [u8]>,
    /// Rollouts (1) that will be trained on; left out: all.
    pub selected: Option<&'a [u8]>,
    /// Trained tokens of each row, for whitening; left out: one each.
    pub tokens: Option<&'a [u32]>,
    /// The trees, if rows are their rollouts.
    pub forest: Option<&'a Forest>,
}

/// What an estimator made of a batch, one element a row or a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Advantages {
    /// Advantages; NaN where nothing was scored.
    pub values: Vec<f64>,
    /// 1 where there is something to train on.
    pub kept: Vec<u8>,
}

impl<'a> Batch<'a> {
    /// The column of groups, or the roots that the rows' leaves are under.
    ///
    /// # Errors
    /// [`Error::Value`] if there are neither groups nor trees.
    pub(super) fn group(&self) -> Result<Cow<'a, [u32]>> {
        match (self.group, self.forest) {
            (Some(group), _) => Ok(Cow::Borrowed(group)),
            (None, Some(forest)) => {
                let roots = forest.roots();
                Ok(forest.leaves().iter().map(|&leaf| roots[leaf as usize]).collect())
            }
            (None, None) => need(None, "group"),
        }
    }

    /// Check what does not depend on the estimator.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Value`] naming the column.
    pub(super) fn check(&self) -> Result<()> {
        let rows = self.rewards.len();
        crate::id::next(rows, "row")?;
        let keys = [
            ("groups", self.group),
            ("subgroups", self.subgroup),
            ("agents", self.agent),
            ("anchors", self.anchor),
            ("trajectories", self.trajectory),
            ("steps", self.step),
            ("token counts", self.tokens),
        ];
        for (what, column) in keys {
            same(what, column, rows)?;
        }
        same("masks", self.masked, rows)?;
        same("selections", self.selected, rows)?;
        same("step rewards", self.step_rewards, rows)?;
        same("leaves", self.forest.map(Forest::leaves), rows)?;
        finite_column("reward", self.rewards)?;
        finite_column("step reward", self.step_rewards.unwrap_or_default())
    }

    /// Whether a row trains nothing.
    pub(super) fn is_masked(&self, row: usize) -> bool {
        self.masked.is_some_and(|masked| masked[row] != 0)
    }

    /// The rewards that baselines are made of: NaN where a row does not count.
    pub(super) fn counted(&self, count_masked: bool) -> Cow<'_, [f64]> {
        let Some(masked) = self.masked.filter(|_| !count_masked) else { return Cow::Borrowed(self.rewards) };
        let rows = self.rewards.iter().zip(masked);
        rows.map(|(&reward, &masked)| if masked == 0 { reward } else { f64::NAN }).collect()
    }
}

fn same<T>(what: &'static str, column: Option<&[T]>, need: usize) -> Result<()> {
    column.map_or(Ok(()), |column| length(what, need, column.len()))
}

/// Advantages of rollouts on the nodes they share: per node the mean over the rollouts that pass through it or end
/// there (ARPO's hard form). A loss over all of a node's rollouts is that mean times their number.
///
/// `kept` has one element a rollout; what is not kept or is NaN is in no mean. Nodes without any get NaN, and are not
/// kept.
///
/// # Errors
/// [`Error::Length`] or [`Error::Value`] naming the column.
pub fn to_nodes(forest: &Forest, values: &[f64], kept: Option<&[u8]>) -> Result<Advantages> {
    let mut found = NodeValues::default();
    found.leaf_means(forest, &chosen(values, kept)?)?;
    let kept = found.values.iter().map(|value| u8::from(!value.is_nan())).collect();
    Ok(Advantages { values: found.values, kept })
}

/// Which tokens are trained on.
#[derive(Clone, Copy, Debug)]
pub enum Trained<'a> {
    /// All of them.
    All,
    /// Those with 1.
    Mask(&'a [u8]),
    /// Those that a model chose: [`crate::SAMPLED`] without [`crate::SYNTHETIC`].
    Flags(&'a [u8]),
}

/// Values of rows or nodes on their tokens.
///
/// `offsets` has one element more than `values`: tokens `offsets[i]..offsets[i + 1]` belong to value i. `kept` has one
/// element a value.
///
/// Returns the value on every token and the mask of those with something to train on. A token that is not trained,
/// whose value is not kept or is NaN, gets 0 and 0, so that no NaN reaches a loss.
///
/// # Errors
/// [`Error::Length`] or [`Error::Value`] naming the column.
pub fn to_tokens(
    values: &[f64],
    kept: Option<&[u8]>,
    offsets: &[u64],
    trained: Trained,
) -> Result<(Vec<f64>, Vec<u8>)> {
    let values = chosen(values, kept)?;
    let (what, trained): (_, Option<Cow<[u8]>>) = match trained {
        Trained::All => ("mask", None),
        Trained::Mask(mask) => ("mask", Some(mask.into())),
        Trained::Flags(flags) => ("flags", Some(flags.iter().map(|&flags| u8::from(sampled(flags))).collect())),
    };
    let tokens = offsets.last().map_or(0, |&last| usize::try_from(last).unwrap_or(usize::MAX));
    let ends = bounds(values.len(), offsets, tokens)?;
    trained.iter().try_for_each(|trained| length(what, tokens, trained.len()))?;
    let (mut column, mut mask) = (room(tokens)?, room(tokens)?);
    for (&value, &end) in values.iter().zip(&ends[1..]) {
        column.resize(end, if value.is_nan() { 0.0 } else { value });
        mask.resize(end, u8::from(!value.is_nan()));
    }
    for (token, _) in trained.unwrap_or_default().iter().enumerate().filter(|(_, trained)| **trained == 0) {
        (column[token], mask[token]) = (0.0, 0);
    }
    Ok((column, mask))
}

/// Values that are kept; NaN for others.
fn chosen<'a>(values: &'a [f64], kept: Option<&[u8]>) -> Result<Cow<'a, [f64]>> {
    let Some(kept) = kept else { return Ok(values.into()) };
    length("kept", values.len(), kept.len())?;
    Ok(values.iter().zip(kept).map(|(&value, &kept)| if kept == 0 { f64::NAN } else { value }).collect())
}

/// An empty column with room for a number of elements that a caller gave.
fn room<T>(len: usize) -> Result<Vec<T>> {
    let mut column = Vec::new();
    column
        .try_reserve_exact(len)
        .map_err(|_| Error::memory(format!("offsets end at {len}"), "a number of tokens that there is memory for"))?;
    Ok(column)
}
