//! What a strategy is going to cost, and a total split evenly.

use pyo3::prelude::*;
use trunkline_core::select::budget;

use crate::buffer::{Column, view};
use crate::guard::call;
use crate::input::number;

use super::View;

/// Leaves of a planned tree.
#[pyfunction]
#[pyo3(signature = (starts, points, rounds, samples=1))]
pub fn tree_leaves(
    py: Python<'_>,
    #[pyo3(from_py_with = number)] starts: u32,
    #[pyo3(from_py_with = number)] points: u32,
    #[pyo3(from_py_with = number)] rounds: u32,
    #[pyo3(from_py_with = number)] samples: u32,
) -> PyResult<u64> {
    call(py, false, || budget::leaves(starts, points, rounds, samples))
}

/// Expected steps of one Tree-GRPO round, as a tree and as chains.
#[pyfunction]
#[pyo3(signature = (trees, forks, steps))]
pub fn tree_steps(
    #[pyo3(from_py_with = number)] trees: u32,
    #[pyo3(from_py_with = number)] forks: u32,
    #[pyo3(from_py_with = number)] steps: u32,
) -> (f64, f64) {
    let cost = budget::steps(trees, forks, steps);
    (cost.tree, cost.flat)
}

/// What Tree-GRPO saves on long chains.
#[pyfunction]
#[pyo3(signature = (forks, rounds))]
pub fn tree_ratio(#[pyo3(from_py_with = number)] forks: u32, #[pyo3(from_py_with = number)] rounds: u32) -> f64 {
    budget::ideal_ratio(forks, rounds)
}

/// Fresh rollouts that fill up a budget.
#[pyfunction]
#[pyo3(signature = (budget, branched, top_k, rounds, samples))]
pub fn partial_top_up(
    py: Python<'_>,
    #[pyo3(from_py_with = number)] budget: u32,
    branched: Column<u32>,
    #[pyo3(from_py_with = number)] top_k: u32,
    #[pyo3(from_py_with = number)] rounds: u32,
    #[pyo3(from_py_with = number)] samples: u32,
) -> View<'_> {
    view(py, &call(py, false, || budget::top_up(budget, &branched, [top_k, rounds, samples]))?)
}

/// Split a total evenly.
#[pyfunction]
#[pyo3(signature = (total, paths))]
pub fn split_evenly(
    py: Python<'_>,
    #[pyo3(from_py_with = number)] total: u32,
    #[pyo3(from_py_with = number)] paths: u32,
) -> View<'_> {
    view(py, &call(py, false, || budget::split_evenly(total, paths))?)
}
