//! Where values land: on nodes, and on tokens.

use std::borrow::Cow;

use super::batch::Advantages;
use super::values::NodeValues;
use crate::error::{Error, Result, length};
use crate::forest::Forest;
use crate::forest::offsets::bounds;
use crate::pack::sampled;

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
    let (mut landed, mut mask) = (room(tokens)?, room(tokens)?);
    for (&value, &end) in values.iter().zip(&ends[1..]) {
        landed.resize(end, if value.is_nan() { 0.0 } else { value });
        mask.resize(end, u8::from(!value.is_nan()));
    }
    for (token, _) in trained.unwrap_or_default().iter().enumerate().filter(|(_, trained)| **trained == 0) {
        (landed[token], mask[token]) = (0.0, 0);
    }
    Ok((landed, mask))
}

/// Values that are kept; NaN for others.
fn chosen<'a>(values: &'a [f64], kept: Option<&[u8]>) -> Result<Cow<'a, [f64]>> {
    let Some(kept) = kept else { return Ok(values.into()) };
    length("kept", values.len(), kept.len())?;
    Ok(values.iter().zip(kept).map(|(&value, &kept)| if kept == 0 { f64::NAN } else { value }).collect())
}

/// An empty column with room for as many elements as somebody else has named.
fn room<T>(len: usize) -> Result<Vec<T>> {
    let mut column = Vec::new();
    column.try_reserve_exact(len).map_err(|_| Error::Value {
        value: format!("offsets end at {len}"),
        want: "a number of tokens that there is memory for",
    })?;
    Ok(column)
}
