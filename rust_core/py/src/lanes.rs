//! `Lanes`.

use pyo3::prelude::*;
use trunkline_core as core;

use crate::guard::Guard;
use crate::input::number;

/// A set of lanes 0..n-1 that can only shrink: termination is monotone.
#[pyclass(frozen, module = "trunkline._core")]
pub struct Lanes(Guard<core::Lanes>);

impl Lanes {
    /// A copy, so that combining two sets, or one with itself, never holds two locks.
    fn copy(&self, py: Python<'_>) -> PyResult<core::Lanes> {
        self.0.with(py, |lanes| Ok(lanes.clone()))
    }
}

#[pymethods]
impl Lanes {
    #[new]
    #[pyo3(signature = (n, /))]
    fn new(py: Python<'_>, #[pyo3(from_py_with = number)] n: u32) -> PyResult<Self> {
        let lanes = core::Lanes::new(n as usize).map_err(|error| crate::error::raise(py, &error))?;
        Ok(Self(Guard::new(lanes)))
    }

    /// Take a lane out; raises if it is out already.
    #[pyo3(signature = (lane, /))]
    fn finish(&self, py: Python<'_>, #[pyo3(from_py_with = number)] lane: u32) -> PyResult<()> {
        self.0.with(py, |lanes| lanes.finish(lane as usize))
    }

    /// Whether a lane is active.
    #[pyo3(signature = (lane, /))]
    fn active(&self, py: Python<'_>, #[pyo3(from_py_with = number)] lane: u32) -> PyResult<bool> {
        self.0.with(py, |lanes| lanes.active(lane as usize))
    }

    /// Active lanes, ascending.
    fn ones(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        self.0.with(py, |lanes| Ok(lanes.ones()))
    }

    /// Lanes active in both; raises if the sizes differ.
    #[pyo3(signature = (other, /))]
    fn and_(&self, py: Python<'_>, other: &Self) -> PyResult<Self> {
        let other = other.copy(py)?;
        self.0.with(py, |lanes| lanes.and(&other)).map(|both| Self(Guard::new(both)))
    }

    /// Lanes active here and not in `other`.
    #[pyo3(signature = (other, /))]
    fn and_not(&self, py: Python<'_>, other: &Self) -> PyResult<Self> {
        let other = other.copy(py)?;
        self.0.with(py, |lanes| lanes.and_not(&other)).map(|rest| Self(Guard::new(rest)))
    }

    /// Whether any lane is active.
    fn any(&self, py: Python<'_>) -> PyResult<bool> {
        self.0.with(py, |lanes| Ok(lanes.any()))
    }

    /// How many lanes are active.
    fn count(&self, py: Python<'_>) -> PyResult<usize> {
        self.0.with(py, |lanes| Ok(lanes.count()))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.0.with(py, |lanes| Ok(lanes.len()))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        self.0.with(py, |lanes| Ok(format!("<Lanes: {} of {} active>", lanes.count(), lanes.len())))
    }
}
