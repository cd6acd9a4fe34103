//! `Scheduler` and what it starts and refuses, and `Tally`.

use pyo3::prelude::*;
use pyo3::types::PyString;
use trunkline_core as core;
use trunkline_core::{Amount, Answer, Votes, Work, WorkKind};

use crate::guard::{Guard, attached};
use crate::input::{Text, Unsigned, number};
use crate::ledger::{Ledger, Most, Refusal};

/// Draws of a fork point, or rows of a waiting batch, that may start now.
#[pyclass(frozen, get_all, module = "trunkline._core")]
pub struct Start {
    task: u32,
    rows: bool,
    point: u32,
    first: u32,
    n: u32,
    rollout: Option<u64>,
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
pub struct RefusedStart {
    task: u32,
    rows: bool,
    point: u32,
    first: u32,
    n: u32,
    refusal: Refusal,
}

impl From<core::RefusedStart> for RefusedStart {
    fn from(refused: core::RefusedStart) -> Self {
        let core::RefusedStart { task, work: Work { kind, point, first, n }, refusal } = refused;
        Self { task, rows: kind == WorkKind::Rows, point, first, n, refusal: refusal.into() }
    }
}

#[pymethods]
impl RefusedStart {
    fn __repr__(&self) -> String {
        let what = if self.rows { "rows" } else { "draws" };
        format!("<RefusedStart: task {}, {} {what} of {} from {}>", self.task, self.n, self.point, self.first)
    }
}

/// The ready work of many tasks, and which of their rollouts run.
#[pyclass(frozen, module = "trunkline._core")]
pub struct Scheduler(Guard<core::Scheduler>);

impl Scheduler {
    fn push(&self, py: Python<'_>, task: u32, work: Work, most: Option<Most>) -> PyResult<()> {
        let each = most.map_or(Amount::ZERO.into(), |most| most.0);
        self.0.with(py, |scheduler| scheduler.push(task, work, each))
    }
}

#[pymethods]
impl Scheduler {
    #[new]
    #[pyo3(signature = (limit=None, batch=None))]
    fn new(py: Python<'_>, limit: Option<Unsigned<u32>>, batch: Option<Unsigned<u32>>) -> PyResult<Self> {
        let [limit, batch] = [limit, batch].map(most);
        attached(py, || core::Scheduler::new(limit, batch)).map(|scheduler| Self(Guard::new(scheduler)))
    }

    /// Add a task and return its number.
    #[pyo3(signature = (weight=1, limit=None))]
    fn add(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] weight: u32,
        limit: Option<Unsigned<u32>>,
    ) -> PyResult<u32> {
        self.0.with(py, |scheduler| scheduler.add(weight, most(limit)))
    }

    /// Make draws of a fork point ready.
    #[pyo3(signature = (task, point, n, first=0, most=None))]
    fn draws(
        &self,
        py: Python<'_>,
        task: Unsigned<u32>,
        point: Unsigned<u32>,
        n: Unsigned<u32>,
        #[pyo3(from_py_with = number)] first: u32,
        most: Option<Most>,
    ) -> PyResult<()> {
        self.push(py, task.0, Work { kind: WorkKind::Draws, point: point.0, first, n: n.0 }, most)
    }

    /// Make a batch of waiting rows ready.
    #[pyo3(signature = (task, batch, n, most=None))]
    fn rows(
        &self,
        py: Python<'_>,
        task: Unsigned<u32>,
        batch: Unsigned<u32>,
        n: Unsigned<u32>,
        most: Option<Most>,
    ) -> PyResult<()> {
        self.push(py, task.0, Work { kind: WorkKind::Rows, point: batch.0, first: 0, n: n.0 }, most)
    }

    /// What may start now, and what the ledger refuses.
    #[pyo3(signature = (max, ledger, /))]
    fn next(&self, py: Python<'_>, max: Unsigned<u32>, ledger: &Ledger) -> PyResult<(Vec<Start>, Vec<RefusedStart>)> {
        let round = self.0.with(py, |state| Ok(ledger.with(py, |ledger| Ok(state.next(max.0, ledger)))))??;
        let refused = round.refused.into_iter().map(RefusedStart::from);
        Ok((round.starts.into_iter().map(Start::from).collect(), refused.collect()))
    }

    /// A rollout has ended.
    #[pyo3(signature = (rollout, /))]
    fn done(&self, py: Python<'_>, rollout: Unsigned<u64>) -> PyResult<()> {
        self.0.with(py, |scheduler| scheduler.done(rollout.0))
    }

    /// Drop what a task has ready, and take no more of it.
    #[pyo3(signature = (task, /))]
    fn cancel(&self, py: Python<'_>, task: Unsigned<u32>) -> PyResult<u64> {
        self.0.with(py, |scheduler| scheduler.cancel(task.0))
    }

    /// How many draws and rows a task has ready, and how many of its rollouts run.
    #[pyo3(signature = (task, /))]
    fn counts(&self, py: Python<'_>, task: Unsigned<u32>) -> PyResult<(u64, u32)> {
        self.0.with(py, |scheduler| scheduler.counts(task.0))
    }

    /// How many rollouts run.
    #[getter]
    fn running(&self, py: Python<'_>) -> PyResult<u32> {
        self.0.with(py, |scheduler| Ok(scheduler.running()))
    }
}

/// A limit; None for no limit.
fn most(limit: Option<Unsigned<u32>>) -> u32 {
    limit.map_or(u32::MAX, |limit| limit.0)
}

/// What Python sees of an answer: the number of a cluster, or a text.
#[derive(IntoPyObject)]
pub enum Key {
    /// A cluster.
    Cluster(u32),
    /// A text.
    Text(String),
}

impl From<&Votes> for Key {
    fn from(votes: &Votes) -> Self {
        match &votes.answer {
            Answer::Cluster(cluster) => Self::Cluster(*cluster),
            Answer::Text(text) => Self::Text(text.to_string()),
        }
    }
}

fn answer(value: &Bound<'_, PyAny>) -> PyResult<Option<Answer>> {
    if value.is_none() {
        Ok(None)
    } else if value.is_instance_of::<PyString>() {
        value.extract().map(|text: Text<'_>| Some(Answer::Text((*text).into())))
    } else {
        number(value).map(|cluster| Some(Answer::Cluster(cluster)))
    }
}

/// Weighted votes, counted in the order in which they are given.
#[pyclass(frozen, module = "trunkline._core")]
pub struct Tally(Guard<core::Tally>);

#[pymethods]
impl Tally {
    #[new]
    fn new() -> Self {
        Self(Guard::new(core::Tally::new()))
    }

    /// Count a vote, or with None an abstention.
    #[pyo3(signature = (answer, weight=1.0, /))]
    fn vote(&self, py: Python<'_>, #[pyo3(from_py_with = answer)] answer: Option<Answer>, weight: f64) -> PyResult<()> {
        self.0.with(py, |tally| tally.vote(answer, weight))
    }

    /// Every answer with its weight and its number of votes, in order of first votes.
    fn answers(&self, py: Python<'_>) -> PyResult<Vec<(Key, f64, u32)>> {
        let list = |tally: &mut core::Tally| {
            Ok(tally.answers().iter().map(|votes| (Key::from(votes), votes.weight, votes.count)).collect())
        };
        self.0.with(py, list)
    }

    /// The answer that wins as things are.
    #[getter]
    fn leader(&self, py: Python<'_>) -> PyResult<Option<Key>> {
        self.0.with(py, |tally| Ok(tally.leader().map(Key::from)))
    }

    /// The answer that would win without the leader.
    #[getter]
    fn runner_up(&self, py: Python<'_>) -> PyResult<Option<Key>> {
        self.0.with(py, |tally| Ok(tally.runner_up().map(Key::from)))
    }

    /// How much weight the leader has more than the runner-up.
    #[getter]
    fn margin(&self, py: Python<'_>) -> PyResult<f64> {
        self.0.with(py, |tally| Ok(tally.margin()))
    }

    /// How many did not vote for anything.
    #[getter]
    fn abstained(&self, py: Python<'_>) -> PyResult<u32> {
        self.0.with(py, |tally| Ok(tally.abstained()))
    }

    /// Whether the leader leads whatever the remaining tries say.
    #[pyo3(signature = (tries, heaviest=1.0, /))]
    fn settled(&self, py: Python<'_>, tries: Unsigned<u32>, heaviest: f64) -> PyResult<bool> {
        self.0.with(py, |tally| tally.settled(tries.0, heaviest))
    }
}
