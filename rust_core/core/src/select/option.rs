//! What options and columns must be, said in one way.

use std::fmt::Display;

use crate::error::{Error, Result};

/// The largest number computed with: no sum or product of such numbers that is formed here overflows.
const LARGEST: f64 = 1e100;

/// The most picks of a kind that takes the same time for each.
pub const MANY: usize = 1 << 24;

/// The most picks of a kind that looks at everything for each.
pub const FEW: usize = 1 << 12;

/// A number to compute with.
pub fn finite(name: impl Display, value: f64) -> Result<()> {
    need(value.abs() <= LARGEST, || format!("{name} is {value:?}"), "a number from -1e100 to 1e100")
}

/// One that is not negative.
pub fn positive(name: impl Display, value: f64) -> Result<()> {
    need((0.0..=LARGEST).contains(&value), || format!("{name} is {value:?}"), "a number from 0 to 1e100")
}

/// A number in `[0, 1]`.
pub fn probability(name: &str, value: f64) -> Result<()> {
    need((0.0..=1.0).contains(&value), || format!("{name} is {value}"), "between 0 and 1")
}

/// A whole number of at least 1.
pub fn at_least_one(name: &str, value: usize) -> Result<()> {
    need(value > 0, || format!("{name} is {value}"), "1 or more")
}

/// No more than [`MANY`].
pub fn many(name: &str, value: usize) -> Result<()> {
    need(value <= MANY, || format!("{name} is {value}"), "16777216 or less")
}

/// No more than [`FEW`].
pub fn few(name: &str, value: usize) -> Result<()> {
    need(value <= FEW, || format!("{name} is {value}"), "4096 or less")
}

/// As many picks as there is something to pick, at most.
pub fn enough(what: &str, count: usize, have: usize) -> Result<()> {
    need(count <= have, || format!("k is {count}, with {have} {what} to choose from"), "no more than there are")
}

/// One of a few names.
pub fn named<T: Copy>(option: &str, text: &str, known: &[(&str, T)], want: &'static str) -> Result<T> {
    let found = known.iter().find(|(name, _)| *name == text).map(|&(_, value)| value);
    found.ok_or_else(|| Error::Value {
        value: format!("{option} is {:?}", text.chars().take(40).collect::<String>()),
        want,
    })
}

/// Whatever else must hold.
pub fn need(holds: bool, value: impl FnOnce() -> String, want: &'static str) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Value { value: value(), want }) }
}
