//! `harvest` and what it gives.

use pyo3::prelude::*;
use trunkline_core as core;

use crate::buffer::view;
use crate::tree::CoreTree;

/// Trees side by side, as columns: nodes and rollouts are numbered through, tree by tree.
#[pyclass(frozen, get_all, module = "trunkline._core")]
pub struct Harvest {
    /// Per node its parent (u32).
    parents: Py<PyAny>,
    /// Per node what it is (u8).
    kinds: Py<PyAny>,
    /// Per node its speaker (u32), a position in `names`.
    agents: Py<PyAny>,
    /// Names of agents, common to all trees.
    names: Vec<String>,
    /// Where each node's tokens start (u64), and at the end where the last ones end.
    offsets: Py<PyAny>,
    /// Token ids (u32).
    ids: Py<PyAny>,
    /// Log-probabilities (f32).
    logprobs: Py<PyAny>,
    /// Weight versions (i32).
    versions: Py<PyAny>,
    /// Flags (u8).
    flags: Py<PyAny>,
    /// Per rollout the node it ends at (u32).
    leaves: Py<PyAny>,
    /// Per rollout its reward (f64); NaN while unscored.
    rewards: Py<PyAny>,
    /// Per rollout the position of its tree (u32).
    groups: Py<PyAny>,
    /// Per rollout the initial chain it was expanded for (u32).
    subgroups: Py<PyAny>,
    /// Per rollout which sample of its fork point it is (u32).
    draws: Py<PyAny>,
    /// Per rollout the code of its termination (u8).
    terminations: Py<PyAny>,
    /// Per sample that ends before its rollout does the node where (u32).
    segment_leaves: Py<PyAny>,
    /// Per such sample its rollout (u32).
    segment_rollouts: Py<PyAny>,
}

impl Harvest {
    fn new(py: Python<'_>, columns: core::Harvest) -> PyResult<Self> {
        Ok(Self {
            parents: view(py, &columns.parents)?.unbind(),
            kinds: view(py, &columns.kinds)?.unbind(),
            agents: view(py, &columns.agents)?.unbind(),
            offsets: view(py, &columns.offsets)?.unbind(),
            ids: view(py, &columns.tokens.ids)?.unbind(),
            logprobs: view(py, &columns.tokens.logprobs)?.unbind(),
            versions: view(py, &columns.tokens.versions)?.unbind(),
            flags: view(py, &columns.tokens.flags)?.unbind(),
            leaves: view(py, &columns.leaves)?.unbind(),
            rewards: view(py, &columns.rewards)?.unbind(),
            groups: view(py, &columns.groups)?.unbind(),
            subgroups: view(py, &columns.subgroups)?.unbind(),
            draws: view(py, &columns.draws)?.unbind(),
            terminations: view(py, &columns.terminations)?.unbind(),
            segment_leaves: view(py, &columns.segment_leaves)?.unbind(),
            segment_rollouts: view(py, &columns.segment_rollouts)?.unbind(),
            names: columns.names,
        })
    }
}

/// Put trees side by side.
#[pyfunction]
#[pyo3(signature = (trees, /))]
pub fn harvest(py: Python<'_>, trees: Vec<PyRef<'_, CoreTree>>) -> PyResult<Harvest> {
    let mut columns = core::Harvest::new();
    for tree in trees {
        tree.copy(py, |tree| columns.add(tree))?;
    }
    Harvest::new(py, columns)
}
