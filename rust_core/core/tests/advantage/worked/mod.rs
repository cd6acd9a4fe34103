//! Estimators reproduce the numbers that the published code gives on small inputs.

mod nodes;
mod rollouts;
mod steps;

use trunkline_core::Forest;
use trunkline_core::advantage::{Batch, Setting};

use super::with;

/// Two trees of three leaves each, flat.
const E6: [f64; 6] = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0];

/// q -> A{A1, A2, A3}, B{B1{B1a, B1b}, B2}, rewards in leaf order as in E6. Nodes: q A B A1 A2 A3 B1 B2 B1a B1b.
fn d6() -> Forest {
    Forest::new(vec![0, 0, 0, 1, 1, 1, 2, 2, 6, 6], vec![3, 4, 5, 8, 9, 7]).unwrap()
}

#[track_caller]
fn close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-5 || (a.is_nan() && b.is_nan());
    assert!(found.iter().zip(expected).all(near), "found {found:?}\nexpected {expected:?}");
}

#[track_caller]
fn gives(preset: &str, settings: &[(&str, Setting)], batch: &Batch, expected: &[f64]) {
    close(&with(preset, settings).estimate(batch).unwrap().values, expected);
}

#[track_caller]
fn one_group(preset: &str, rewards: &[f64], expected: &[f64]) {
    let group = vec![0; rewards.len()];
    gives(preset, &[], &Batch { rewards, group: Some(&group), ..Batch::default() }, expected);
}

/// The six rewards, each times `size`, with the sign of the reward less a half.
fn signs(size: f64) -> Vec<f64> {
    E6.iter().map(|reward| size * (2.0 * reward - 1.0)).collect()
}
