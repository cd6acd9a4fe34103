//! `Roster`.

use pyo3::prelude::*;
use trunkline_core as core;

use crate::guard::Guard;
use crate::input::Number;

/// Lanes that come and go: each runs, asks at a queue, or is away, until it ends.
#[pyclass(frozen, module = "trunkline._core")]
pub struct Roster(Guard<core::Roster>);

#[pymethods]
impl Roster {
    #[new]
    fn new() -> Self {
        Self(Guard::new(core::Roster::default()))
    }

    /// Add a lane that runs, and return it.
    fn open(&self, py: Python<'_>) -> PyResult<u64> {
        self.0.with(py, core::Roster::open)
    }

    /// A lane goes on.
    #[pyo3(signature = (lane, /))]
    fn run(&self, py: Python<'_>, lane: Number<u64>) -> PyResult<()> {
        self.0.with(py, |roster| roster.run(lane.0))
    }

    /// A lane waits at a queue. Whether it was the last that ran.
    #[pyo3(signature = (lane, queue, /))]
    fn ask(&self, py: Python<'_>, lane: Number<u64>, queue: Number<u16>) -> PyResult<bool> {
        self.0.with(py, |roster| roster.ask(lane.0, queue.0))
    }

    /// A lane is somewhere else, and will ask again. Whether it was the last that ran.
    #[pyo3(signature = (lane, /))]
    fn leave(&self, py: Python<'_>, lane: Number<u64>) -> PyResult<bool> {
        self.0.with(py, |roster| roster.leave(lane.0))
    }

    /// A lane is done for good. Whether none runs now.
    #[pyo3(signature = (lane, /))]
    fn end(&self, py: Python<'_>, lane: Number<u64>) -> PyResult<bool> {
        self.0.with(py, |roster| roster.end(lane.0))
    }

    /// How many lanes run.
    #[getter]
    fn running(&self, py: Python<'_>) -> PyResult<usize> {
        self.0.with(py, |roster| Ok(roster.running()))
    }

    /// How many lanes ask, at whatever queue.
    #[getter]
    fn asking(&self, py: Python<'_>) -> PyResult<usize> {
        self.0.with(py, |roster| Ok(roster.asking()))
    }

    /// How many lanes are away.
    #[getter]
    fn away(&self, py: Python<'_>) -> PyResult<usize> {
        self.0.with(py, |roster| Ok(roster.away()))
    }

    /// How many lanes ask at a queue.
    #[pyo3(signature = (queue, /))]
    fn asking_of(&self, py: Python<'_>, queue: Number<u16>) -> PyResult<usize> {
        self.0.with(py, |roster| Ok(roster.asking_of(queue.0)))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        self.0.with(py, |roster| {
            let (running, asking, away) = (roster.running(), roster.asking(), roster.away());
            Ok(format!("<Roster: {running} run, {asking} ask, {away} away>"))
        })
    }
}
