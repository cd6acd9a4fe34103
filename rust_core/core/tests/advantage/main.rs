//! Estimators: the numbers of the published code, plain models, and laws that hold for any input.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used)]

mod groups;
mod laws;
mod nodes;
mod tokens;
mod worked;

use proptest::prelude::*;
use trunkline_core::advantage::{Estimator, Setting};

#[expect(clippy::cast_precision_loss, reason = "a few rows or nodes")]
fn count(len: usize) -> f64 {
    len as f64
}

fn mean(numbers: impl IntoIterator<Item = f64>) -> f64 {
    let numbers: Vec<f64> = numbers.into_iter().collect();
    numbers.iter().sum::<f64>() / count(numbers.len())
}

fn close(found: &[f64], expected: &[f64]) -> Result<(), TestCaseError> {
    prop_assert_eq!(found.len(), expected.len());
    for (a, b) in found.iter().zip(expected) {
        let near = (a - b).abs() <= 1e-9 * (1.0 + b.abs()) || (a.is_nan() && b.is_nan());
        prop_assert!(near, "found {:?}, expected {:?}", found, expected);
    }
    Ok(())
}

/// A preset with other options.
fn with(name: &str, settings: &[(&str, Setting)]) -> Estimator {
    let mut estimator = Estimator::preset(name).unwrap();
    for (option, setting) in settings {
        estimator.set(option, setting).unwrap();
    }
    estimator
}

fn text(word: &str) -> Setting {
    Setting::Text(word.to_owned())
}
