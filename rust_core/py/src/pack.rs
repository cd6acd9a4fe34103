//! `pack_padded`, `pack_ragged`, `pack_tree` and what they return.

use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};
use trunkline_core::pack::{
    self, Export, Fit, ForestTokens, Oversize, PackReport, Per, TokenValues, Unknown, Weighting,
};
use trunkline_core::{self as core, Forest, Keyword, Result, TokenSlice, Uncertainty};

use crate::buffer::{Cell, Column, view};
use crate::error::raise;
use crate::guard::call;
use crate::input::number;
use crate::tokens::TokenBuffer;

/// What all layouts are asked for.
struct Request<'a> {
    parents: Column<u32>,
    leaves: Column<u32>,
    offsets: Column<u64>,
    tokens: core::TokenBuffer,
    values: Option<Vec<f64>>,
    per: &'a str,
    kept: Option<Column<u8>>,
    rollouts: Option<Column<u32>>,
    masked: Option<Column<u8>>,
    keep_masked: bool,
    splits: Option<Column<u32>>,
    unknown: &'a str,
}

impl Request<'_> {
    fn pack<T: Send>(
        self,
        py: Python<'_>,
        pack: impl FnOnce(&ForestTokens<'_>, &Export<'_>) -> Result<T> + Send,
    ) -> PyResult<T> {
        let unknown = keyword(py, Unknown::OPTION, self.unknown)?;
        let per = keyword(py, Per::OPTION, self.per)?;
        call(py, true, move || {
            let forest = Forest::new(self.parents.into_inner(), self.leaves.into_inner())?;
            let core::TokenBuffer { ids, logprobs, versions, flags } = &self.tokens;
            let runs = ForestTokens::new(&forest, &self.offsets, TokenSlice::new(ids, logprobs, versions, flags)?)?;
            let export = Export {
                rollouts: self.rollouts.as_deref(),
                masked: self.masked.as_deref(),
                leave_out: !self.keep_masked,
                splits: self.splits.as_deref(),
                values: match (&self.values, per) {
                    (None, _) => TokenValues::Nothing,
                    (Some(values), Per::Rollout) => TokenValues::Rollout(values),
                    (Some(values), Per::Node) => TokenValues::Node(values),
                    (Some(values), Per::Token) => TokenValues::Token(values),
                },
                kept: self.kept.as_deref(),
                unknown,
            };
            pack(&runs, &export)
        })
    }
}

/// The value of a word.
fn keyword<T: Keyword>(py: Python<'_>, option: &str, word: &str) -> PyResult<T> {
    T::from_option(option, word).map_err(|error| raise(py, &error))
}

/// Values as 64-bit floats, or as 32-bit ones.
fn figures(value: &Bound<'_, PyAny>) -> PyResult<Option<Vec<f64>>> {
    if value.is_none() {
        return Ok(None);
    }
    let widen = |column: Column<f32>| column.iter().map(|&figure| figure.into()).collect();
    let wide = value.extract().map(Column::into_inner);
    wide.or_else(|error| value.extract().map(widen).map_err(|_: PyErr| error)).map(Some)
}

/// A limit: a number or None.
fn limit(value: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
    if value.is_none() { Ok(None) } else { number(value).map(Some) }
}

fn fit(py: Python<'_>, merge: bool, max: [Option<u32>; 2], long: [&str; 2]) -> PyResult<Fit> {
    let long_prompt = keyword(py, "long_prompt", long[0])?;
    let long_response = keyword(py, "long_response", long[1])?;
    Ok(Fit { merge, max_prompt: max[0], max_response: max[1], long_prompt, long_response })
}

/// Rollouts as rectangles: prompts padded on the left, responses on the right.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "keywords of a Python function")]
#[pyo3(signature = (
    parents, leaves, offsets, ids, logprobs, versions, flags, *, values=None, per="rollout", kept=None, rollouts=None, masked=None,
    keep_masked=true, splits=None, unknown="error", merge=false, max_prompt=None, max_response=None, long_prompt="error",
    long_response="error", pad=0
))]
pub fn pack_padded(
    py: Python<'_>,
    parents: Column<u32>,
    leaves: Column<u32>,
    offsets: Column<u64>,
    ids: Column<u32>,
    logprobs: Column<f32>,
    versions: Column<i32>,
    flags: Column<u8>,
    #[pyo3(from_py_with = figures)] values: Option<Vec<f64>>,
    per: &str,
    kept: Option<Column<u8>>,
    rollouts: Option<Column<u32>>,
    masked: Option<Column<u8>>,
    keep_masked: bool,
    splits: Option<Column<u32>>,
    unknown: &str,
    merge: bool,
    #[pyo3(from_py_with = limit)] max_prompt: Option<u32>,
    #[pyo3(from_py_with = limit)] max_response: Option<u32>,
    long_prompt: &str,
    long_response: &str,
    #[pyo3(from_py_with = number)] pad: u32,
) -> PyResult<Padded> {
    let tokens = buffer(ids, logprobs, versions, flags);
    let fit = fit(py, merge, [max_prompt, max_response], [long_prompt, long_response])?;
    Request { parents, leaves, offsets, tokens, values, per, kept, rollouts, masked, keep_masked, splits, unknown }
        .pack(py, move |runs, export| pack::Padded::new(runs, export, &fit, pad))
        .map(Padded)
}

/// Rollouts end to end, with offsets.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "keywords of a Python function")]
#[pyo3(signature = (
    parents, leaves, offsets, ids, logprobs, versions, flags, *, values=None, per="rollout", kept=None, rollouts=None, masked=None,
    keep_masked=true, splits=None, unknown="error", merge=false, max_prompt=None, max_response=None, long_prompt="error",
    long_response="error"
))]
pub fn pack_ragged(
    py: Python<'_>,
    parents: Column<u32>,
    leaves: Column<u32>,
    offsets: Column<u64>,
    ids: Column<u32>,
    logprobs: Column<f32>,
    versions: Column<i32>,
    flags: Column<u8>,
    #[pyo3(from_py_with = figures)] values: Option<Vec<f64>>,
    per: &str,
    kept: Option<Column<u8>>,
    rollouts: Option<Column<u32>>,
    masked: Option<Column<u8>>,
    keep_masked: bool,
    splits: Option<Column<u32>>,
    unknown: &str,
    merge: bool,
    #[pyo3(from_py_with = limit)] max_prompt: Option<u32>,
    #[pyo3(from_py_with = limit)] max_response: Option<u32>,
    long_prompt: &str,
    long_response: &str,
) -> PyResult<Ragged> {
    let tokens = buffer(ids, logprobs, versions, flags);
    let fit = fit(py, merge, [max_prompt, max_response], [long_prompt, long_response])?;
    Request { parents, leaves, offsets, tokens, values, per, kept, rollouts, masked, keep_masked, splits, unknown }
        .pack(py, move |runs, export| pack::Ragged::new(runs, export, &fit))
        .map(Ragged)
}

/// Trees in rows, each token once.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "keywords of a Python function")]
#[pyo3(signature = (
    parents, leaves, offsets, ids, logprobs, versions, flags, *, values=None, per="rollout", kept=None, rollouts=None, masked=None,
    keep_masked=true, splits=None, unknown="error", weights="share", max_tokens=None, oversize="error"
))]
pub fn pack_tree(
    py: Python<'_>,
    parents: Column<u32>,
    leaves: Column<u32>,
    offsets: Column<u64>,
    ids: Column<u32>,
    logprobs: Column<f32>,
    versions: Column<i32>,
    flags: Column<u8>,
    #[pyo3(from_py_with = figures)] values: Option<Vec<f64>>,
    per: &str,
    kept: Option<Column<u8>>,
    rollouts: Option<Column<u32>>,
    masked: Option<Column<u8>>,
    keep_masked: bool,
    splits: Option<Column<u32>>,
    unknown: &str,
    weights: &str,
    #[pyo3(from_py_with = limit)] max_tokens: Option<u32>,
    oversize: &str,
) -> PyResult<TreePacked> {
    let tokens = buffer(ids, logprobs, versions, flags);
    let weights = keyword(py, Weighting::OPTION, weights)?;
    let oversize = keyword(py, Oversize::OPTION, oversize)?;
    Request { parents, leaves, offsets, tokens, values, per, kept, rollouts, masked, keep_masked, splits, unknown }
        .pack(py, move |runs, export| pack::TreePacked::new(runs, export, weights, max_tokens, oversize))
        .map(TreePacked)
}

fn buffer(ids: Column<u32>, logprobs: Column<f32>, versions: Column<i32>, flags: Column<u8>) -> core::TokenBuffer {
    core::TokenBuffer {
        ids: ids.into_inner(),
        logprobs: logprobs.into_inner(),
        versions: versions.into_inner(),
        flags: flags.into_inner(),
    }
}

/// A read-only view of `rows` rows. Where one of its sides is 0 it is one-dimensional, which is all that Python can cast.
fn square<'py, T: Cell>(py: Python<'py>, column: &[T], rows: usize) -> PyResult<Bound<'py, PyAny>> {
    let flat = view(py, column)?;
    if column.is_empty() {
        return Ok(flat);
    }
    flat.call_method1("cast", ("B",))?.call_method1("cast", (T::FORMAT, (rows, column.len() / rows.max(1))))
}

fn places<'py>(py: Python<'py>, offsets: &[usize]) -> PyResult<Bound<'py, PyAny>> {
    view(py, &offsets.iter().map(|&offset| offset as u64).collect::<Vec<u64>>())
}

fn counts<'py>(py: Python<'py>, report: &PackReport) -> PyResult<Bound<'py, PyDict>> {
    let PackReport { left_out, merged, dropped, cut_prompts, cut_responses, cut_tokens, unknown, repeated } = *report;
    let rows = [("left_out", left_out), ("merged", merged), ("dropped", dropped), ("cut_prompts", cut_prompts)];
    let tokens = [("cut_tokens", cut_tokens), ("unknown", unknown), ("repeated", repeated)];
    rows.into_iter().chain([("cut_responses", cut_responses)]).chain(tokens).into_py_dict(py)
}

/// Methods of a layout: views of its columns by name, and what all layouts have.
macro_rules! layout {
    ($class:ident.unpack($number:ident)
     flat[$($flat:ident = $($field:ident).+;)*]
     square[$($wide:ident)*]
     copies[$($copy:ident)*]
     offsets[$($offsets:ident = $($place:ident).+;)*]) => {
        #[pymethods]
        impl $class {
            $(#[getter]
            fn $flat<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                view(py, &self.0.$($field).+)
            })*

            $(#[getter]
            fn $wide<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                square(py, &self.0.$wide, self.0.rows.lengths.len())
            })*

            $(#[getter]
            fn $offsets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                places(py, &self.0.$($place).+)
            })*

            $(#[getter]
            fn $copy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                let copy = self.0.$copy().map_err(|error| raise(py, &error))?;
                square(py, &copy, self.0.rows.lengths.len())
            })*

            /// What was left out, cut, merged or repeated.
            #[getter]
            fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                counts(py, &self.0.report)
            }

            /// The tokens as the forest has them.
            #[pyo3(signature = ($number, /))]
            fn unpack(&self, py: Python<'_>, #[pyo3(from_py_with = number)] $number: u32) -> PyResult<TokenBuffer> {
                let tokens = call(py, true, || self.0.unpack($number as usize))?;
                Ok(TokenBuffer { tokens, uncertainty: Uncertainty::UNKNOWN })
            }
        }
    };
}

/// Rollouts as rectangles.
#[pyclass(frozen, module = "trunkline._core")]
pub struct Padded(pack::Padded);

layout! {
    Padded.unpack(row)
    flat[rollouts = rows.rollouts; weights = rows.weights; prompt_lengths = rows.prompt_lengths; lengths = rows.lengths;
        cut_prompts = rows.cut_prompts; cut_responses = rows.cut_responses; rows = rows.rows;]
    square[input_ids attention_mask position_ids flags response_mask logprobs versions advantages]
    copies[prompts responses]
    offsets[]
}

/// Rollouts end to end.
#[pyclass(frozen, module = "trunkline._core")]
pub struct Ragged(pack::Ragged);

layout! {
    Ragged.unpack(row)
    flat[ids = ids; position_ids = position_ids; loss_mask = loss_mask; logprobs = logprobs; versions = versions;
        flags = flags; advantages = advantages; rollouts = rows.rollouts; weights = rows.weights;
        prompt_lengths = rows.prompt_lengths; lengths = rows.lengths; cut_prompts = rows.cut_prompts;
        cut_responses = rows.cut_responses; rows = rows.rows;]
    square[]
    copies[]
    offsets[offsets = offsets;]
}

/// Trees in rows, each token once.
#[pyclass(frozen, module = "trunkline._core")]
pub struct TreePacked(pack::TreePacked);

layout! {
    TreePacked.unpack(rollout)
    flat[ids = ids; position_ids = position_ids; loss_mask = loss_mask; weights = weights; advantages = advantages;
        gains = gains; logprobs = logprobs; versions = versions; flags = flags; parents = parents; subtree_ends = subtree_ends;
        rows = rows; last_segments = last_segments; segment_nodes = segments.nodes; segment_starts = segments.starts;
        segment_ends = segments.ends; segment_subtree_ends = segments.subtree_ends; segment_parents = segments.parents;
        segment_rollouts = segments.rollouts; segment_repeated = segments.repeated;]
    square[]
    copies[]
    offsets[offsets = offsets; segment_offsets = segments.offsets;]
}
