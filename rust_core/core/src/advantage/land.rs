//! Where values land: on tokens.

use crate::error::{Error, Result};

/// Values of rows or nodes on their tokens.
///
/// `offsets` has one element more than `values`: tokens `offsets[i]..offsets[i + 1]` belong to value i. `mask` (1 = trained)
/// has one element a token; left out, all are. `kept` has one element a value.
///
/// Returns the value on every token and the mask of those with something to train on. A token that is masked, whose value is
/// not kept or is NaN, gets 0 and 0, so that no NaN reaches a loss.
///
/// # Errors
/// [`Error::Length`] or [`Error::Value`] naming the column.
pub fn to_tokens(
    values: &[f64],
    kept: Option<&[u8]>,
    offsets: &[u64],
    mask: Option<&[u8]>,
) -> Result<(Vec<f64>, Vec<u8>)> {
    let need = values.len() + 1;
    if offsets.len() != need {
        return Err(Error::Length { what: "offsets", need, have: offsets.len() });
    }
    if let Some(kept) = kept.filter(|kept| kept.len() != values.len()) {
        return Err(Error::Length { what: "kept", need: values.len(), have: kept.len() });
    }
    let ends = bounds(offsets, mask)?;
    let tokens = ends.last().copied().unwrap_or_default();
    let (mut landed, mut trained) = (Vec::with_capacity(tokens), Vec::with_capacity(tokens));
    for (at, &value) in values.iter().enumerate() {
        let keep = !value.is_nan() && kept.is_none_or(|kept| kept[at] != 0);
        landed.resize(ends[at + 1], if keep { value } else { 0.0 });
        trained.resize(ends[at + 1], u8::from(keep));
    }
    for (token, _) in mask.unwrap_or_default().iter().enumerate().filter(|(_, mask)| **mask == 0) {
        (landed[token], trained[token]) = (0.0, 0);
    }
    Ok((landed, trained))
}

/// More tokens than this are a mistake, not a batch.
const MOST: u64 = 1 << 40;

/// Offsets that start at 0, never descend, and end where the mask does.
fn bounds(offsets: &[u64], mask: Option<&[u8]>) -> Result<Vec<usize>> {
    let ascending = offsets.first() == Some(&0) && offsets.is_sorted();
    let last = offsets.last().copied().unwrap_or_default();
    if !ascending || last > MOST {
        let value = format!("offsets run from {:?} to {last}", offsets.first());
        return Err(Error::Value { value, want: "from 0, ascending, to the number of tokens" });
    }
    let bounds: Vec<usize> = offsets.iter().filter_map(|&offset| usize::try_from(offset).ok()).collect();
    match mask {
        Some(mask) if mask.len() as u64 != last => {
            Err(Error::Length { what: "mask", need: bounds.last().copied().unwrap_or_default(), have: mask.len() })
        }
        _ => Ok(bounds),
    }
}
