//! Where to fork next, and what to keep.

use pyo3::prelude::*;
use trunkline_core::select::{
    self, Adaptive, EntropyRow, Formula, LeafChoice, LogprobColumns, Ranking, Rule, Scoring, budget,
};
use trunkline_core::{Forest, Keyword, Random, Region};

use crate::buffer::{Column, view};
use crate::error::{raise, refine};
use crate::guard::{Guard, call};
use crate::input::{Text, number};

/// Elements from which on work is worth releasing the interpreter for.
const LARGE: usize = 1 << 12;

type ViewResult<'py> = PyResult<Bound<'py, PyAny>>;

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

fn named<T: Keyword>(value: &Bound<'_, PyAny>) -> PyResult<T> {
    T::from_word(&value.extract::<Text<'_>>()?).map_err(|error| raise(value.py(), &error))
}

/// Fork points on the paths of rollouts.
#[pyfunction]
#[pyo3(signature = (parents, kinds, leaves))]
pub fn fork_points(py: Python<'_>, parents: Column<u32>, kinds: Column<u8>, leaves: Column<u32>) -> ViewResult<'_> {
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
) -> ViewResult<'_> {
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
) -> ViewResult<'_> {
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
        let runs = LogprobColumns { offsets: &offsets, logprobs: &logprobs, flags: &flags, cuts: cuts.as_deref() };
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
        let rows = EntropyRow::zip(&entropies, &baselines)?;
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
#[pyo3(signature = (correct, k, seed, *, choice=LeafChoice::Random, ratio=None))]
#[pyo3(text_signature = "(correct, k, seed, *, choice='random', ratio=None)")]
pub fn choose_leaves(
    py: Python<'_>,
    correct: Column<u8>,
    #[pyo3(from_py_with = number)] k: u32,
    #[pyo3(from_py_with = seed)] seed: u64,
    #[pyo3(from_py_with = named)] choice: LeafChoice,
    #[pyo3(from_py_with = optional)] ratio: Option<f64>,
) -> ViewResult<'_> {
    let work = || {
        let choice = ratio.map_or(Ok(choice), |ratio| choice.sharing(ratio))?;
        choice.pick(&correct, k as usize, &mut Random::new(seed))
    };
    view(py, &call(py, correct.len() > LARGE, work)?)
}

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
) -> ViewResult<'_> {
    view(py, &call(py, false, || budget::top_up(budget, &branched, [top_k, rounds, samples]))?)
}

/// Split a total evenly.
#[pyfunction]
#[pyo3(signature = (total, paths))]
pub fn split_evenly(
    py: Python<'_>,
    #[pyo3(from_py_with = number)] total: u32,
    #[pyo3(from_py_with = number)] paths: u32,
) -> ViewResult<'_> {
    view(py, &call(py, false, || budget::split_evenly(total, paths))?)
}

/// A search over a forest: what is known of every node, and the picks in flight.
#[pyclass(frozen, module = "trunkline._core")]
pub struct Search(Guard<select::Search>);

#[pymethods]
impl Search {
    #[new]
    #[pyo3(signature = (parents, visits, values, *, leaves=None, in_flight=None, formula=Formula::Uct, c=1.0, offset=1.0,
                        loss=0.0))]
    #[pyo3(
        text_signature = "(parents, visits, values, *, leaves=None, in_flight=None, formula='uct', c=1.0, offset=1.0, \
                             loss=0.0)"
    )]
    #[expect(clippy::too_many_arguments, reason = "options are keywords in Python")]
    fn new(
        py: Python<'_>,
        parents: Column<u32>,
        visits: Column<u32>,
        values: Column<f64>,
        leaves: Option<Column<u32>>,
        in_flight: Option<Column<u32>>,
        #[pyo3(from_py_with = named)] formula: Formula,
        #[pyo3(from_py_with = real)] c: f64,
        #[pyo3(from_py_with = real)] offset: f64,
        #[pyo3(from_py_with = real)] loss: f64,
    ) -> PyResult<Self> {
        let in_flight = in_flight.map_or_else(|| vec![0; parents.len()], Column::into_inner);
        let scoring = Scoring { formula, c, offset, loss };
        let large = parents.len() > LARGE;
        let work = || {
            let forest = Forest::new(parents.into_inner(), leaves.map_or_else(Vec::new, Column::into_inner))?;
            select::Search::new(forest, visits.into_inner(), values.into_inner(), in_flight, scoring)
        };
        call(py, large, work).map(|search| Self(Guard::new(search)))
    }

    /// How each node rates against its siblings (f64); infinity for roots.
    fn scores<'py>(&self, py: Python<'py>) -> ViewResult<'py> {
        view(py, &self.0.with_long(py, large, |search| Ok(search.scores()))?)
    }

    /// Picks in flight through each node (u32).
    #[getter]
    fn in_flight<'py>(&self, py: Python<'py>) -> ViewResult<'py> {
        view(py, &self.0.with_long(py, large, |search| Ok(search.in_flight().to_vec()))?)
    }

    /// Nodes to expand, found by going down from `start`.
    #[pyo3(signature = (room, k, *, start=0))]
    fn descend<'py>(
        &self,
        py: Python<'py>,
        room: Column<u32>,
        #[pyo3(from_py_with = number)] k: u32,
        #[pyo3(from_py_with = number)] start: u32,
    ) -> ViewResult<'py> {
        view(py, &self.0.with_long(py, large, |search| search.descend(start, &room, k as usize))?)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.0.with(py, |search| Ok(search.in_flight().len()))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        self.0.with(py, |search| Ok(format!("<Search: {} nodes>", search.in_flight().len())))
    }
}

fn large(search: &select::Search) -> bool {
    search.in_flight().len() > LARGE
}
