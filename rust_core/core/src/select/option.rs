//! What options and columns must be, said in one way.

use crate::error::{Error, Result};

/// A number that is neither infinite nor NaN.
pub fn finite(name: &str, value: f64) -> Result<()> {
    need(value.is_finite(), || format!("{name} is {value}"), "a finite number")
}

/// A finite number that is not negative.
pub fn positive(name: &str, value: f64) -> Result<()> {
    need(value.is_finite() && value >= 0.0, || format!("{name} is {value}"), "a finite number, 0 or more")
}

/// A number in `[0, 1]`.
pub fn probability(name: &str, value: f64) -> Result<()> {
    need((0.0..=1.0).contains(&value), || format!("{name} is {value}"), "between 0 and 1")
}

/// A whole number of at least 1.
pub fn at_least_one(name: &str, value: usize) -> Result<()> {
    need(value > 0, || format!("{name} is {value}"), "1 or more")
}

/// As many picks as there is something to pick, at most.
pub fn enough(what: &str, count: usize, have: usize) -> Result<()> {
    need(count <= have, || format!("k is {count}, with {have} {what} to choose from"), "no more than there are")
}

/// A column of the right length.
pub fn length(what: &'static str, need: usize, have: usize) -> Result<()> {
    if need == have { Ok(()) } else { Err(Error::Length { what, need, have }) }
}

/// One of a few names.
pub fn named<T: Copy>(option: &str, text: &str, known: &[(&str, T)], want: &'static str) -> Result<T> {
    let found = known.iter().find(|(name, _)| *name == text).map(|&(_, value)| value);
    found.ok_or_else(|| Error::Value {
        value: format!("{option} is {:?}", text.chars().take(40).collect::<String>()),
        want,
    })
}

/// An empty column with memory for `count` numbers.
pub fn reserve<T>(name: &str, count: usize) -> Result<Vec<T>> {
    let mut column = Vec::new();
    need(column.try_reserve_exact(count).is_ok(), || format!("{name} is {count}"), "no more than memory can hold")?;
    Ok(column)
}

/// Whatever else must hold.
pub fn need(holds: bool, value: impl FnOnce() -> String, want: &'static str) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Value { value: value(), want }) }
}
