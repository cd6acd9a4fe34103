//! Where values land: on tokens.

use crate::error::{Error, Result};

/// Values of rows or nodes on their tokens.
///
/// `offsets` has one element more than `values`: tokens `offsets[i]..offsets[i + 1]` belong to value i. `mask` (1 =
/// trained) has one element a token; left out, all are. `kept` has one element a value.
///
/// Returns the value on every token and the mask of those with something to train on. A token that is masked, whose
/// value is not kept or is NaN, gets 0 and 0, so that no NaN reaches a loss.
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
    let (mut landed, mut trained) = (room(tokens)?, room(tokens)?);
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

/// An empty column with room for as many elements as somebody else has named.
fn room<T>(len: usize) -> Result<Vec<T>> {
    let mut column = Vec::new();
    column.try_reserve_exact(len).map_err(|_| Error::Value {
        value: format!("offsets end at {len}"),
        want: "a number of tokens that there is memory for",
    })?;
    Ok(column)
}

/// Offsets that start at 0, never descend, and end where the mask does.
fn bounds(offsets: &[u64], mask: Option<&[u8]>) -> Result<Vec<usize>> {
    let (first, last) = (offsets.first().copied().unwrap_or_default(), offsets.last().copied().unwrap_or_default());
    if first != 0 || !offsets.is_sorted() {
        let value = format!("offsets run from {first} to {last}, sorted: {}", offsets.is_sorted());
        return Err(Error::Value { value, want: "from 0 on and sorted" });
    }
    let bounds: Vec<usize> = offsets.iter().map(|&offset| usize::try_from(offset).unwrap_or(usize::MAX)).collect();
    match mask {
        Some(mask) if mask.len() as u64 != last => {
            Err(Error::Length { what: "mask", need: bounds.last().copied().unwrap_or_default(), have: mask.len() })
        }
        _ => Ok(bounds),
    }
}
