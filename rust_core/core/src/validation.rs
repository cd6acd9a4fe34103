//! What numbers and columns of options must be, said in one way.

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
    within(value.abs() <= LARGEST, || format!("{name} is {value:?}"), "a number from -1e100 to 1e100")
}

/// Numbers to compute with, or NaN.
pub fn finite_column(what: &str, numbers: &[f64]) -> Result<()> {
    let large = |number: &f64| number.abs() > LARGEST;
    // Without a way out the compiler takes several at a time.
    if !numbers.iter().fold(false, |any, number| any | large(number)) {
        return Ok(());
    }
    let row = numbers.iter().position(large).unwrap_or_default();
    let fact = format!("{what} {row} is {}", numbers[row]);
    Err(Error::range(fact, "between -1e100 and 1e100, or NaN where there is none"))
}

/// A number that is not negative.
pub fn not_negative(name: impl Display, value: f64) -> Result<()> {
    within((0.0..=LARGEST).contains(&value), || format!("{name} is {value:?}"), "a number from 0 to 1e100")
}

/// A number in `[0, 1]`.
pub fn probability(name: &str, value: f64) -> Result<()> {
    within((0.0..=1.0).contains(&value), || format!("{name} is {value}"), "between 0 and 1")
}

/// A discount, in `[0, 1]`.
pub fn discount(gamma: f64) -> Result<()> {
    within((0.0..=1.0).contains(&gamma), || format!("gamma is {gamma}"), "0 to 1")
}

/// A whole number of at least 1.
pub fn at_least_one(name: &str, value: usize) -> Result<()> {
    within(value > 0, || format!("{name} is {value}"), "1 or more")
}

/// No more than [`MANY`].
pub fn many(name: &str, value: usize) -> Result<()> {
    within(value <= MANY, || format!("{name} is {value}"), "16777216 or less")
}

/// No more than [`FEW`].
pub fn few(name: &str, value: usize) -> Result<()> {
    within(value <= FEW, || format!("{name} is {value}"), "4096 or less")
}

/// As many picks as there is something to pick, at most.
pub fn enough(what: &str, count: usize, have: usize) -> Result<()> {
    need(count <= have, || format!("k is {count}, with {have} {what} to choose from"), "no more than there are")
}

/// A number in a range.
pub fn within(holds: bool, fact: impl FnOnce() -> String, range: &'static str) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::range(fact(), range)) }
}

/// Whatever else must hold.
pub fn need(holds: bool, fact: impl FnOnce() -> String, want: &'static str) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::conflict(fact(), want)) }
}
