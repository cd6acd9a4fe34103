//! What a strategy is going to cost, and how a width is planned.

use pyo3::prelude::*;
use trunkline_core::select::{budget, width};

use crate::buffer::{Column, view};
use crate::guard::call;
use crate::input::number;

use super::{View, real};

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

/// Segments of a tree with fixed widths, and of chains.
#[pyfunction]
#[pyo3(signature = (widths))]
pub fn segment_costs(py: Python<'_>, widths: Column<u32>) -> PyResult<(f64, f64)> {
    call(py, false, || budget::segments(&widths)).map(|cost| (cost.tree, cost.flat))
}

/// Segments of a tree of capped width, and of chains.
#[pyfunction]
#[pyo3(signature = (target, branches, depth))]
pub fn capped_segment_costs(
    #[pyo3(from_py_with = number)] target: u32,
    #[pyo3(from_py_with = number)] branches: u32,
    #[pyo3(from_py_with = number)] depth: u32,
) -> (f64, f64) {
    let cost = budget::capped_segments(target, branches, depth);
    (cost.tree, cost.flat)
}

/// How many paths go on.
#[pyfunction]
#[pyo3(signature = (target, finished, ended, live, branches))]
pub fn next_width(
    #[pyo3(from_py_with = number)] target: u32,
    #[pyo3(from_py_with = number)] finished: u32,
    #[pyo3(from_py_with = number)] ended: u32,
    #[pyo3(from_py_with = number)] live: u32,
    #[pyo3(from_py_with = number)] branches: u32,
) -> u32 {
    width::next(target, finished, ended, live, branches)
}

/// Split a width evenly.
#[pyfunction]
#[pyo3(signature = (total, paths))]
pub fn split_evenly(
    py: Python<'_>,
    #[pyo3(from_py_with = number)] total: u32,
    #[pyo3(from_py_with = number)] paths: u32,
) -> View<'_> {
    view(py, &call(py, false, || width::even(total, paths))?)
}

/// Split a width by weight.
#[pyfunction]
#[pyo3(signature = (total, weights))]
pub fn split_by_weight(py: Python<'_>, #[pyo3(from_py_with = number)] total: u32, weights: Column<f64>) -> View<'_> {
    view(py, &call(py, false, || width::weighted(total, &weights))?)
}

/// Split a width by score.
#[pyfunction]
#[pyo3(signature = (total, scores, temperature=1.0))]
pub fn split_by_score(
    py: Python<'_>,
    #[pyo3(from_py_with = number)] total: u32,
    scores: Column<f64>,
    #[pyo3(from_py_with = real)] temperature: f64,
) -> View<'_> {
    view(py, &call(py, false, || width::by_score(total, &scores, temperature))?)
}
