//! Where the tokens of each node are, in columns of the tokens of all nodes one after the other.

use crate::error::{Error, Result};

/// Offsets that have been checked: one more than `nodes`, from 0 to `tokens`, never descending.
///
/// # Errors
/// [`Error::Length`], or [`Error::Value`] naming the first offset that does not fit.
pub fn bounds(nodes: usize, offsets: &[u64], tokens: usize) -> Result<Vec<usize>> {
    if offsets.len() != nodes + 1 {
        return Err(Error::Length { what: "offsets", need: nodes + 1, have: offsets.len() });
    }
    let refuse = |at: usize| Error::Value {
        value: format!("offset {at} of the runs is {}", offsets[at]),
        want: "0 for the first, the number of tokens for the last, and ascending between",
    };
    let mut bounds = Vec::with_capacity(offsets.len());
    let mut last = 0;
    for (at, &offset) in offsets.iter().enumerate() {
        let bound = usize::try_from(offset).map_err(|_| refuse(at))?;
        if bound < last || bound > tokens || (at == 0 && bound != 0) {
            return Err(refuse(at));
        }
        bounds.push(bound);
        last = bound;
    }
    if last == tokens { Ok(bounds) } else { Err(refuse(nodes)) }
}
