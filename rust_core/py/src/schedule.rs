//! `Tally`.

use pyo3::prelude::*;
use pyo3::types::PyString;
use trunkline_core as core;
use trunkline_core::{Answer, Votes};

use crate::guard::Guard;
use crate::input::{Text, Unsigned, number};

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
