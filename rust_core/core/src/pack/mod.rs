//! Packing: rollouts of a forest as the arrays that trainers read.
//!
//! Three layouts of one choice of rollouts: [`Padded`] rectangles, [`Ragged`] rows end to end, and [`TreePacked`] rows
//! in which what rollouts share stands once. In each of them
//!
//! * all columns of a shape have one length;
//! * the loss mask is 1 only on sampled tokens after the prompt, of rollouts that are not masked, whose log-probability
//!   is known; log-probabilities are finite everywhere, and 0 where nothing was sampled;
//! * a value (an advantage) stands where the loss mask is 1, and 0 elsewhere;
//! * `unpack` gives back the four columns of a rollout's tokens as they were, bit by bit.
//!
//! What is cut, dropped, left out or taken out of the loss is counted in a [`PackReport`].

mod layout;
mod loss;
mod padded;
mod ragged;
mod rows;
mod tokens;
mod tree;

pub use padded::Padded;
pub use ragged::Ragged;
pub use rows::PackedRows;
pub use tokens::ForestTokens;
pub(crate) use tokens::sampled;
pub use tree::{Segments, TreePacked};

use std::hint::black_box;

use crate::error::{Error, Result};
use crate::keyword::keywords;

keywords! {
    /// What values are given one by one for.
    pub enum Per as "per", OneOf {
        /// Rollouts.
        Rollout = "rollout",
        /// Nodes.
        Node = "node",
        /// Tokens.
        Token = "token",
    }
}

/// Values that land on tokens: advantages, as an estimator gave them.
#[derive(Clone, Copy, Debug, Default)]
pub enum TokenValues<'a> {
    /// None; the column is 0.
    #[default]
    Nothing,
    /// One a rollout, on all its tokens.
    Rollout(&'a [f64]),
    /// One a node, on all its tokens.
    Node(&'a [f64]),
    /// One a token of the runs.
    Token(&'a [f64]),
}

keywords! {
    /// What to do about a sampled token whose log-probability is not a finite number.
    #[derive(Default)]
    pub enum Unknown as "unknown", OneOf {
        /// Refuse to pack, if it would be trained.
        #[default]
        Error = "error",
        /// Take the token out of the loss, and count it.
        Mask = "mask",
    }
}

keywords! {
    /// What to do about a part of a row that is longer than its limit.
    #[derive(Default)]
    pub enum Over as "the limit", OneOf {
        /// Refuse to pack.
        #[default]
        Error = "error",
        /// Cut a prompt on the left and a response on the right, and count it.
        Cut = "cut",
        /// Leave the row out, and count it.
        Drop = "drop",
    }
}

/// Which rollouts are exported, and what of them is trained.
#[derive(Clone, Copy, Debug, Default)]
pub struct Export<'a> {
    /// Rollouts in the order of their rows, each at most once; all of them if not given.
    pub rollouts: Option<&'a [u32]>,
    /// Per rollout of the forest 1 where nothing of it is trained; nowhere if not given.
    pub masked: Option<&'a [u8]>,
    /// Leave masked rollouts out instead of exporting them with a loss mask of 0.
    pub leave_out: bool,
    /// Per rollout of the forest the last node of its prompt, on its path. If not given, or [`crate::id::NONE`], a prompt ends
    /// before the first sampled token.
    pub splits: Option<&'a [u32]>,
    /// Values to land on tokens.
    pub values: TokenValues<'a>,
    /// Of each value 0 where nothing is trained with it, whatever it is; 1 everywhere if not given.
    pub kept: Option<&'a [u8]>,
    /// What to do about log-probabilities that are not known.
    pub unknown: Unknown,
}

/// How rollouts become rows of a flat layout.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fit {
    /// Make one row of rollouts that end at one leaf, with their number as its weight and the mean of their values.
    pub merge: bool,
    /// Most tokens of a prompt.
    pub max_prompt: Option<u32>,
    /// Most tokens of a response.
    pub max_response: Option<u32>,
    /// What to do about longer prompts.
    pub long_prompt: Over,
    /// What to do about longer responses.
    pub long_response: Over,
}

keywords! {
    /// How much a token weighs in a row of trees.
    #[derive(Default)]
    pub enum Weighting as "weights", OneOf {
        /// The share of its tree's rollouts. The weighted sum of token losses is then the mean over these rollouts of the
        /// sums over their paths, in one pass (the equivalence that Tree Training states).
        #[default]
        Share = "share",
        /// 1: what is shared is trained once, as if it stood in one rollout.
        Once = "once",
        /// How many rollouts it stands for: the sum over rollouts instead of the mean.
        Count = "count",
    }
}

keywords! {
    /// What to do about a tree that does not fit in a row.
    #[derive(Default)]
    pub enum Oversize as "oversize", OneOf {
        /// Refuse to pack.
        #[default]
        Error = "error",
        /// Split it between nodes. Ancestors are repeated in each part and trained in the first.
        Split = "split",
    }
}

/// What packing left out, changed or repeated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackReport {
    /// Masked rollouts that were left out.
    pub left_out: u64,
    /// Rollouts that stand in the row of another one.
    pub merged: u64,
    /// Rollouts that were dropped because of a limit.
    pub dropped: u64,
    /// Rows with a cut prompt.
    pub cut_prompts: u64,
    /// Rows with a cut response.
    pub cut_responses: u64,
    /// Tokens that were cut off, over all rows.
    pub cut_tokens: u64,
    /// Sampled tokens of trained rollouts, each counted once, that are not trained because their log-probability is not
    /// known.
    pub unknown: u64,
    /// Tokens that stand in a row of trees a second time, because their tree was split.
    pub repeated: u64,
}

/// A vector with room for `len` elements, or an error where there is no memory for them.
fn room<T>(len: usize) -> Result<Vec<T>> {
    let mut out = Vec::new();
    let refuse = |_| Error::memory(format!("packing needs a column of {len} tokens"), "what fits in memory");
    out.try_reserve_exact(len).map_err(refuse)?;
    Ok(out)
}

/// Make sure that there is memory for so many bytes in all. Columns that only fit one by one are granted one by one, and
/// the process is ended when they are written.
fn afford(bytes: Option<usize>) -> Result<()> {
    let mut all: Vec<u8> = Vec::new();
    let granted = bytes.is_some_and(|bytes| all.try_reserve_exact(bytes).is_ok());
    // The compiler would drop an allocation that is never read.
    black_box(&all);
    let bytes = bytes.map_or_else(|| "more than 2^64".to_owned(), |bytes| bytes.to_string());
    let value = format!("packing needs {bytes} bytes");
    if granted { Ok(()) } else { Err(Error::memory(value, "what fits in memory")) }
}

/// The column as 32-bit floats are.
#[expect(
    clippy::cast_possible_truncation,
    reason = "trainers read 32-bit floats; what overflows is infinite and refused"
)]
const fn narrow(value: f64) -> f32 {
    value as f32
}
