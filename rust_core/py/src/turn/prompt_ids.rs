//! Token ids of a tree: bodies made of them, prompts beside them, drifts.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use trunkline_core::{ContextId, DriftOptions, DriftPolicy, Keyword, NodeId, Result, Uncertainty};

use crate::buffer::{Column, view};
use crate::error::raise;
use crate::input::{Data, Text, number};
use crate::tokens::TokenBuffer;
use crate::tree::CoreTree;

/// Join `head`, the ids that a model is given at `node` as decimal numbers, and `tail`, in one allocation.
#[pyfunction]
#[pyo3(signature = (tree, node, head, tail, context=None, /))]
pub fn request_ids<'py>(
    py: Python<'py>,
    tree: &CoreTree,
    #[pyo3(from_py_with = number)] node: u32,
    head: Data<'_>,
    tail: Data<'_>,
    #[pyo3(from_py_with = number)] context: Option<u32>,
) -> PyResult<Bound<'py, PyBytes>> {
    let (node, context): (NodeId, _) = (node.into(), context.map(ContextId::new));
    let len = tree.with(py, |tree| tree.ids_len(node, context, &head, &tail))?;
    // The ids of a path never change once all of them are known, so the length still holds when they are written.
    PyBytes::new_with(py, len, |out| tree.with(py, |tree| tree.ids_into(node, context, &head, &tail, out)))
}

/// The last ids that a model is given at `node` (u32).
#[pyfunction]
#[pyo3(signature = (tree, node, most=u32::MAX, /), text_signature = "(tree, node, most=4294967295, /)")]
pub fn last_ids<'py>(
    py: Python<'py>,
    tree: &CoreTree,
    #[pyo3(from_py_with = number)] node: u32,
    #[pyo3(from_py_with = number)] most: u32,
) -> PyResult<Bound<'py, PyAny>> {
    let found = tree.with(py, |tree| tree.last_ids(node.into(), most as usize))?;
    view(py, &found)
}

/// `(common, known, pending)`: how far the ids of a prompt go along with those of a path.
#[pyfunction]
#[pyo3(signature = (tree, node, prompt, /))]
pub fn align_ids(
    py: Python<'_>,
    tree: &CoreTree,
    #[pyo3(from_py_with = number)] node: u32,
    prompt: Column<u32>,
) -> PyResult<(usize, usize, Vec<u32>)> {
    let found = tree.with(py, |tree| tree.align(node.into(), &prompt))?;
    Ok((found.common, found.known, found.pending.into_iter().map(NodeId::get).collect()))
}

/// Settle the ids of a prompt on a path; the context that a drift makes, or None.
#[pyfunction]
#[pyo3(signature = (tree, node, prompt, policy, limit, /))]
pub fn settle_ids(
    py: Python<'_>,
    tree: &CoreTree,
    #[pyo3(from_py_with = number)] node: u32,
    prompt: Column<u32>,
    policy: Text<'_>,
    #[pyo3(from_py_with = number)] limit: u32,
) -> PyResult<Option<u32>> {
    let options = drift_options(&policy, limit).map_err(|error| raise(py, &error))?;
    tree.with(py, |tree| tree.settle(node.into(), &prompt, options)).map(|context| context.map(ContextId::get))
}

/// Give ids to the nodes up to this one that have none: all to the last, none to those before.
#[pyfunction]
#[pyo3(signature = (tree, node, ids, /))]
pub fn give_ids(
    py: Python<'_>,
    tree: &CoreTree,
    #[pyo3(from_py_with = number)] node: u32,
    ids: Column<u32>,
) -> PyResult<()> {
    tree.with(py, |tree| tree.give(node.into(), &ids))
}

/// Record that a prompt has only the first `keep` ids of its path, and return the context for the turn.
#[pyfunction]
#[pyo3(signature = (tree, policy, keep, given=None, /))]
pub fn drift(
    py: Python<'_>,
    tree: &CoreTree,
    policy: Text<'_>,
    #[pyo3(from_py_with = number)] keep: u32,
    given: Option<&TokenBuffer>,
) -> PyResult<u32> {
    let given = given.map(|tokens| tokens.tokens.as_slice());
    tree.with(py, |tree| tree.drift(DriftPolicy::from_word(&policy)?, keep, given)).map(ContextId::get)
}

/// `(policy, keep, given)` of a turn whose prompt drifted, or None.
#[pyfunction]
#[pyo3(signature = (tree, node, /))]
pub fn drift_of(
    py: Python<'_>,
    tree: &CoreTree,
    #[pyo3(from_py_with = number)] node: u32,
) -> PyResult<Option<(&'static str, u32, TokenBuffer)>> {
    tree.with(py, |tree| {
        Ok(tree.drift_of(node.into())?.map(|drift| {
            let given = TokenBuffer { tokens: drift.given.into(), uncertainty: Uncertainty::UNKNOWN };
            (drift.policy.as_str(), drift.keep, given)
        }))
    })
}

/// What to do with a prompt that drifts.
pub fn drift_options(policy: &str, limit: u32) -> Result<DriftOptions> {
    DriftPolicy::from_word(policy).map(|policy| DriftOptions { policy, limit })
}
