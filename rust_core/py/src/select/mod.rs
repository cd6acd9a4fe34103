//! Where to fork next, and what to keep.

pub mod budget;
pub mod search;

use std::str::FromStr;

use pyo3::prelude::*;
use trunkline_core::select::{self, Adaptive, Choice, Ranking, Row, Rule, Runs};
use trunkline_core::{Error, Forest, Random, Region};

use crate::buffer::{Column, view};
use crate::error::{raise, refine};
use crate::guard::call;
use crate::input::{Text, number};

/// Elements from which on work is worth releasing the interpreter for.
const LARGE: usize = 1 << 12;

type View<'py> = PyResult<Bound<'py, PyAny>>;

fn seed(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    let text = "a seed is out of range: it is 0 to 18446744073709551615";
    value.extract().map_err(|error| refine(value.py(), error, text))
}

pub fn real(value: &Bound<'_, PyAny>) -> PyResult<f64> {
    value.extract().map_err(|error| refine(value.py(), error, "a number is too large for a float"))
}

fn optional(value: &Bound<'_, PyAny>) -> PyResult<Option<f64>> {
    if value.is_none() { Ok(None) } else { real(value).map(Some) }
}

fn named<T: FromStr<Err = Error>>(value: &Bound<'_, PyAny>) -> PyResult<T> {
    value.extract::<Text<'_>>()?.parse().map_err(|error| raise(value.py(), &error))
}

/// Fork points on the paths of rollouts.
#[pyfunction]
#[pyo3(signature = (parents, kinds, leaves))]
pub fn fork_points(py: Python<'_>, parents: Column<u32>, kinds: Column<u8>, leaves: Column<u32>) -> View<'_> {
    let large = kinds.len() > LARGE;
    let work = || select::fork_points(&Forest::new(parents.into_inner(), leaves.into_inner())?, &kinds);
    view(py, &call(py, large, work)?)
}

/// Points, each as likely as any other.
#[pyfunction]
#[pyo3(signature = (points, k, seed, *, replace=false))]
pub fn draw_points(
    py: Python<'_>,
    points: Column<u32>,
    #[pyo3(from_py_with = number)] k: u32,
    #[pyo3(from_py_with = seed)] seed: u64,
    replace: bool,
) -> View<'_> {
    let work = || select::uniform(&points, k as usize, replace, &mut Random::new(seed));
    view(py, &call(py, points.len().max(k as usize) > LARGE, work)?)
}

/// The most uncertain turns.
#[pyfunction]
#[pyo3(signature = (perplexities, k, *, region=Ranking::By(Region::Tool), duplicates=false))]
#[pyo3(text_signature = "(perplexities, k, *, region='tool', duplicates=False)")]
pub fn top_turns(
    py: Python<'_>,
    perplexities: Column<f32>,
    #[pyo3(from_py_with = number)] k: u32,
    #[pyo3(from_py_with = named)] region: Ranking,
    duplicates: bool,
) -> View<'_> {
    let work = || select::top_turns(&perplexities, k as usize, region.repeating(duplicates)?);
    view(py, &call(py, perplexities.len() > LARGE, work)?)
}

/// The most surprising tokens.
#[pyfunction]
#[pyo3(signature = (parents, leaves, offsets, logprobs, flags, k, *, cuts=None, limit=u32::MAX, diverse=false))]
#[pyo3(
    text_signature = "(parents, leaves, offsets, logprobs, flags, k, *, cuts=None, limit=4294967295, diverse=False)"
)]
#[expect(clippy::too_many_arguments, reason = "options are keywords in Python")]
pub fn surprising_tokens(
    py: Python<'_>,
    parents: Column<u32>,
    leaves: Column<u32>,
    offsets: Column<u64>,
    logprobs: Column<f32>,
    flags: Column<u8>,
    #[pyo3(from_py_with = number)] k: u32,
    cuts: Option<Column<u32>>,
    #[pyo3(from_py_with = number)] limit: u32,
    diverse: bool,
) -> PyResult<(Bound<'_, PyAny>, Bound<'_, PyAny>)> {
    let large = parents.len().max(logprobs.len()) > LARGE;
    let work = || {
        let forest = Forest::new(parents.into_inner(), leaves.into_inner())?;
        let runs = Runs { offsets: &offsets, logprobs: &logprobs, flags: &flags, cuts: cuts.as_deref() };
        select::surprising(&forest, &runs, k as usize, limit, diverse)
    };
    let found = call(py, large, work)?;
    let (nodes, tokens): (Vec<u32>, Vec<u32>) = found.into_iter().map(|at| (at.node, at.token)).unzip();
    Ok((view(py, &nodes)?, view(py, &tokens)?))
}

/// The probability of a branch.
#[pyfunction]
#[pyo3(signature = (change, *, rule=Rule::Arpo, probability=0.5, weight=0.2, streak=0))]
#[pyo3(text_signature = "(change, *, rule='arpo', probability=0.5, weight=0.2, streak=0)")]
pub fn branch_probability(
    py: Python<'_>,
    #[pyo3(from_py_with = real)] change: f64,
    #[pyo3(from_py_with = named)] rule: Rule,
    #[pyo3(from_py_with = real)] probability: f64,
    #[pyo3(from_py_with = real)] weight: f64,
    #[pyo3(from_py_with = number)] streak: u32,
) -> PyResult<f64> {
    call(py, false, || Adaptive { rule, probability, weight, beam: 1 }.probability(change, streak))
}

/// How often rows branch after a tool round.
#[pyfunction]
#[pyo3(signature = (entropies, baselines, free, seed, *, rule=Rule::Arpo, probability=0.5, weight=0.2, beam=2, streak=0))]
#[pyo3(
    text_signature = "(entropies, baselines, free, seed, *, rule='arpo', probability=0.5, weight=0.2, beam=2, streak=0)"
)]
#[expect(clippy::too_many_arguments, reason = "options are keywords in Python")]
pub fn branch_rows(
    py: Python<'_>,
    entropies: Column<f64>,
    baselines: Column<f64>,
    #[pyo3(from_py_with = number)] free: u32,
    #[pyo3(from_py_with = seed)] seed: u64,
    #[pyo3(from_py_with = named)] rule: Rule,
    #[pyo3(from_py_with = real)] probability: f64,
    #[pyo3(from_py_with = real)] weight: f64,
    #[pyo3(from_py_with = number)] beam: u32,
    #[pyo3(from_py_with = number)] streak: u32,
) -> PyResult<(Bound<'_, PyAny>, u32)> {
    let work = || {
        let rows = Row::zip(&entropies, &baselines)?;
        Adaptive { rule, probability, weight, beam }.branch(&rows, free, streak, &mut Random::new(seed))
    };
    let (branches, streak) = call(py, entropies.len() > LARGE, work)?;
    Ok((view(py, &branches)?, streak))
}

/// How many rollouts start from scratch.
#[pyfunction]
#[pyo3(signature = (total, root, tool))]
pub fn initial_chains(
    py: Python<'_>,
    #[pyo3(from_py_with = number)] total: u32,
    #[pyo3(from_py_with = real)] root: f64,
    tool: Column<f64>,
) -> PyResult<u32> {
    call(py, false, || select::initial_chains(total, root, &tool))
}

/// Which leaves to keep.
#[pyfunction]
#[pyo3(signature = (correct, k, seed, *, choice=Choice::Random, ratio=None))]
#[pyo3(text_signature = "(correct, k, seed, *, choice='random', ratio=None)")]
pub fn choose_leaves(
    py: Python<'_>,
    correct: Column<u8>,
    #[pyo3(from_py_with = number)] k: u32,
    #[pyo3(from_py_with = seed)] seed: u64,
    #[pyo3(from_py_with = named)] choice: Choice,
    #[pyo3(from_py_with = optional)] ratio: Option<f64>,
) -> View<'_> {
    let work = || {
        let choice = ratio.map_or(Ok(choice), |ratio| choice.sharing(ratio))?;
        choice.pick(&correct, k as usize, &mut Random::new(seed))
    };
    view(py, &call(py, correct.len() > LARGE, work)?)
}
