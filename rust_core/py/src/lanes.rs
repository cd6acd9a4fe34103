//! `ActivityCounter` and `BatchQueue`.

use pyo3::prelude::*;
use trunkline_core as core;

use crate::guard::Guard;
use crate::input::{Text, Unsigned};

/// Lanes that come and go: each runs, asks, or is away, until it ends.
#[pyclass(frozen, module = "trunkline._core")]
pub struct ActivityCounter(Guard<core::ActivityCounter>);

#[pymethods]
impl ActivityCounter {
    #[new]
    fn new() -> Self {
        Self(Guard::new(core::ActivityCounter::default()))
    }

    /// Add a lane that runs, and return it.
    fn open(&self, py: Python<'_>) -> PyResult<u64> {
        self.0.with(py, core::ActivityCounter::open)
    }

    /// A lane runs again.
    #[pyo3(signature = (lane, /))]
    fn run(&self, py: Python<'_>, lane: Unsigned<u64>) -> PyResult<()> {
        self.0.with(py, |counter| counter.run(lane.0))
    }

    /// A lane asks, and waits. Whether it was the last that ran.
    #[pyo3(signature = (lane, /))]
    fn ask(&self, py: Python<'_>, lane: Unsigned<u64>) -> PyResult<bool> {
        self.0.with(py, |counter| counter.ask(lane.0))
    }

    /// A lane is away, and will ask again. Whether it was the last that ran.
    #[pyo3(signature = (lane, /))]
    fn leave(&self, py: Python<'_>, lane: Unsigned<u64>) -> PyResult<bool> {
        self.0.with(py, |counter| counter.leave(lane.0))
    }

    /// A lane is done for good. Whether none runs now.
    #[pyo3(signature = (lane, /))]
    fn end(&self, py: Python<'_>, lane: Unsigned<u64>) -> PyResult<bool> {
        self.0.with(py, |counter| counter.end(lane.0))
    }

    /// How many lanes run.
    #[getter]
    fn running(&self, py: Python<'_>) -> PyResult<usize> {
        self.0.with(py, |counter| Ok(counter.running()))
    }

    /// How many lanes ask.
    #[getter]
    fn asking(&self, py: Python<'_>) -> PyResult<usize> {
        self.0.with(py, |counter| Ok(counter.asking()))
    }

    /// How many lanes are away.
    #[getter]
    fn away(&self, py: Python<'_>) -> PyResult<usize> {
        self.0.with(py, |counter| Ok(counter.away()))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        self.0.with(py, |counter| {
            let (running, asking, away) = (counter.running(), counter.asking(), counter.away());
            Ok(format!("<ActivityCounter: {running} run, {asking} ask, {away} away>"))
        })
    }
}

/// Batches of rows that are due, and when the next one is.
type DueBatches = (Vec<Vec<Py<PyAny>>>, Option<f64>);

/// The rows that wait for a batch engine, and when a batch of them leaves.
#[pyclass(frozen, module = "trunkline._core")]
pub struct BatchQueue(Guard<core::BatchQueue<Py<PyAny>>>);

// Rows are objects of Python. What is taken out is dropped only where the lock is free again.
#[pymethods]
impl BatchQueue {
    #[new]
    #[pyo3(signature = (most, max_wait, away_wait, fuse, regroup, /))]
    fn new(most: Unsigned<u64>, max_wait: f64, away_wait: f64, fuse: bool, regroup: bool) -> Self {
        let rules = core::BatchRules { most: most.0, max_wait, away_wait, fuse, regroup };
        Self(Guard::new(core::BatchQueue::new(rules)))
    }

    /// Add a row and return its number.
    #[pyo3(signature = (row, model, role, step, n, now, /))]
    #[expect(clippy::too_many_arguments, reason = "they are what says where a row waits")]
    fn add(
        &self,
        py: Python<'_>,
        row: Py<PyAny>,
        model: Text<'_>,
        role: Text<'_>,
        step: (Unsigned<u32>, Unsigned<u32>),
        n: Unsigned<u32>,
        now: f64,
    ) -> PyResult<u64> {
        let step = (step.0.0, step.1.0);
        self.0.with(py, |queue| Ok(queue.add(row, &model, &role, step, n.0, now)))
    }

    /// Drop rows that have not left.
    #[pyo3(signature = (numbers, /))]
    fn drop(&self, py: Python<'_>, numbers: Vec<Unsigned<u64>>) -> PyResult<()> {
        let numbers: Vec<u64> = numbers.into_iter().map(|number| number.0).collect();
        self.0.with(py, |queue| Ok(queue.drop_rows(&numbers))).map(drop)
    }

    /// Drop all rows, and return them.
    fn clear(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        self.0.with(py, |queue| Ok(queue.clear()))
    }

    /// The engine has ended a call.
    #[pyo3(signature = (now, /))]
    fn freed(&self, py: Python<'_>, now: f64) -> PyResult<()> {
        self.0.with(py, |queue| {
            queue.freed(now);
            Ok(())
        })
    }

    /// Whether rows fill a batch.
    #[getter]
    fn full(&self, py: Python<'_>) -> PyResult<bool> {
        self.0.with(py, |queue| Ok(queue.full()))
    }

    /// At most `calls` batches that are due, and when the next one is.
    #[pyo3(signature = (now, calls, running, away, /))]
    fn next(
        &self,
        py: Python<'_>,
        now: f64,
        calls: Unsigned<u32>,
        running: Unsigned<u32>,
        away: Unsigned<u32>,
    ) -> PyResult<DueBatches> {
        self.0.with(py, |queue| Ok(queue.next(now, calls.0 as usize, running.0 as usize, away.0 as usize)))
    }

    /// Whether a row waits.
    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        self.0.with(py, |queue| Ok(!queue.is_empty()))
    }
}
