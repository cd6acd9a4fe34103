//! `Forest`.

use pyo3::prelude::*;
use trunkline_core as core;

use crate::buffer::{Column, view};
use crate::error::raise;

/// The shape of trees side by side: a node's parent has a smaller number, a root is its own parent.
#[pyclass(frozen, module = "trunkline._core")]
pub struct Forest(pub core::Forest);

#[pymethods]
impl Forest {
    #[new]
    #[pyo3(signature = (parents, leaves, /))]
    fn new(py: Python<'_>, parents: Column<u32>, leaves: Column<u32>) -> PyResult<Self> {
        core::Forest::new(parents.into_inner(), leaves.into_inner()).map(Self).map_err(|error| raise(py, &error))
    }

    /// Per node its parent (u32).
    #[getter]
    fn parents<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        view(py, self.0.parents())
    }

    /// Per rollout the node it ends at (u32).
    #[getter]
    fn leaves<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        view(py, self.0.leaves())
    }

    /// Per node how many nodes are above it (u32).
    fn depths<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        view(py, &py.detach(|| self.0.depths()))
    }

    /// Per node how many rollouts pass or end there (u32).
    fn passes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        view(py, &py.detach(|| self.0.passes()))
    }

    fn __len__(&self) -> usize {
        self.0.parents().len()
    }

    fn __repr__(&self) -> String {
        format!("<Forest: {} nodes, {} rollouts>", self.0.parents().len(), self.0.leaves().len())
    }
}
