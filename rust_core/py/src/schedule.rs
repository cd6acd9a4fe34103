//! `Scheduler`, `Start` and `Refused`.

use pyo3::prelude::*;
use trunkline_core as core;
use trunkline_core::{Amount, Bounds, Work, WorkKind};

use crate::guard::{Guard, attached};
use crate::input::number;
use crate::ledger::{Ledger, Refusal, bounds};

/// Draws of a fork point, or rows of a waiting batch, that may start now.
#[pyclass(frozen, get_all, module = "trunkline._core")]
pub struct Start {
    /// Whose it is.
    task: u32,
    /// Whether these are rows of a waiting batch.
    rows: bool,
    /// The fork point, or the number of the batch.
    point: u32,
    /// The first draw or row.
    first: u32,
    /// How many.
    n: u32,
    /// The number of the first rollout that it starts; None for rows.
    rollout: Option<u32>,
    /// What the ledger holds for it.
    reservation: u64,
}

impl From<core::Start> for Start {
    fn from(start: core::Start) -> Self {
        let core::Start { task, work: Work { kind, point, first, n }, rollout, reservation } = start;
        Self { task, rows: kind == WorkKind::Rows, point, first, n, rollout, reservation: reservation.0 }
    }
}

#[pymethods]
impl Start {
    fn __repr__(&self) -> String {
        let what = if self.rows { "rows" } else { "draws" };
        format!("<Start: task {}, {} {what} of {} from {}>", self.task, self.n, self.point, self.first)
    }
}

/// Work that the ledger does not allow.
#[pyclass(frozen, get_all, module = "trunkline._core")]
pub struct Refused {
    /// Whose it is.
    task: u32,
    /// Whether these are rows of a waiting batch.
    rows: bool,
    /// The fork point, or the number of the batch.
    point: u32,
    /// The first draw or row.
    first: u32,
    /// How many.
    n: u32,
    /// What is short.
    refusal: Refusal,
}

impl From<core::Refused> for Refused {
    fn from(refused: core::Refused) -> Self {
        let core::Refused { task, work: Work { kind, point, first, n }, refusal } = refused;
        Self { task, rows: kind == WorkKind::Rows, point, first, n, refusal: refusal.into() }
    }
}

#[pymethods]
impl Refused {
    fn __repr__(&self) -> String {
        let what = if self.rows { "rows" } else { "draws" };
        format!("<Refused: task {}, {} {what} of {} from {}>", self.task, self.n, self.point, self.first)
    }
}

/// The ready work of many tasks, and which of their rollouts run.
#[pyclass(frozen, module = "trunkline._core")]
pub struct Scheduler(Guard<core::Scheduler>);

impl Scheduler {
    fn push(&self, py: Python<'_>, task: u32, work: Work, most: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let each = most.map_or(Ok(Bounds::from(Amount::ZERO)), bounds)?;
        self.0.with(py, |scheduler| scheduler.push(task, work, each))
    }
}

#[pymethods]
impl Scheduler {
    #[new]
    #[pyo3(signature = (limit=None, batch=None))]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = number)] limit: Option<u32>,
        #[pyo3(from_py_with = number)] batch: Option<u32>,
    ) -> PyResult<Self> {
        let [limit, batch] = [limit, batch].map(|limit| limit.unwrap_or(u32::MAX));
        attached(py, || core::Scheduler::new(limit, batch)).map(|scheduler| Self(Guard::new(scheduler)))
    }

    /// Add a task and return its number.
    #[pyo3(signature = (weight=1, limit=None))]
    fn add(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] weight: u32,
        #[pyo3(from_py_with = number)] limit: Option<u32>,
    ) -> PyResult<u32> {
        self.0.with(py, |scheduler| scheduler.add(weight, limit.unwrap_or(u32::MAX)))
    }

    /// Make draws of a fork point ready.
    #[pyo3(signature = (task, point, n, first=0, most=None))]
    fn draws(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] task: u32,
        #[pyo3(from_py_with = number)] point: u32,
        #[pyo3(from_py_with = number)] n: u32,
        #[pyo3(from_py_with = number)] first: u32,
        most: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.push(py, task, Work { kind: WorkKind::Draws, point, first, n }, most)
    }

    /// Make a batch of waiting rows ready.
    #[pyo3(signature = (task, batch, n, most=None))]
    fn rows(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] task: u32,
        #[pyo3(from_py_with = number)] batch: u32,
        #[pyo3(from_py_with = number)] n: u32,
        most: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.push(py, task, Work { kind: WorkKind::Rows, point: batch, first: 0, n }, most)
    }

    /// What may start now, and what the ledger refuses.
    #[pyo3(signature = (max, ledger, /))]
    fn next(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] max: u32,
        ledger: &Ledger,
    ) -> PyResult<(Vec<Start>, Vec<Refused>)> {
        let round = self.0.with(py, |scheduler| Ok(ledger.with(py, |ledger| scheduler.next(max, ledger))))??;
        let refused = round.refused.into_iter().map(Refused::from);
        Ok((round.starts.into_iter().map(Start::from).collect(), refused.collect()))
    }

    /// A rollout has ended.
    #[pyo3(signature = (rollout, /))]
    fn done(&self, py: Python<'_>, #[pyo3(from_py_with = number)] rollout: u32) -> PyResult<()> {
        self.0.with(py, |scheduler| scheduler.done(rollout))
    }

    /// Drop what a task has ready, and take no more of it.
    #[pyo3(signature = (task, /))]
    fn cancel(&self, py: Python<'_>, #[pyo3(from_py_with = number)] task: u32) -> PyResult<u64> {
        self.0.with(py, |scheduler| scheduler.cancel(task))
    }

    /// How many draws and rows a task has ready, and how many of its rollouts run.
    #[pyo3(signature = (task, /))]
    fn counts(&self, py: Python<'_>, #[pyo3(from_py_with = number)] task: u32) -> PyResult<(u64, u32)> {
        self.0.with(py, |scheduler| scheduler.counts(task))
    }

    /// How many rollouts run.
    #[getter]
    fn running(&self, py: Python<'_>) -> PyResult<u32> {
        self.0.with(py, |scheduler| Ok(scheduler.live()))
    }
}
