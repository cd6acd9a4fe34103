//! `TurnEngine`.

use pyo3::prelude::*;
use trunkline_core as core;
use trunkline_core::engine::{AgentPlan, FlightView, SharedTree};
use trunkline_core::{Result, Tree};

use crate::guard::Guard;
use crate::input::{Data, Text, number};
use crate::reply::ReplyOptions;
use crate::tree::CoreTree;

struct Shared(Py<CoreTree>);

impl SharedTree for Shared {
    fn with<R>(&self, work: impl FnOnce(&mut Tree) -> Result<R>) -> Result<R> {
        self.0.get().within(work)
    }
}

/// Which rollouts want a turn of a model, and the requests that are on their way for them.
#[pyclass(frozen, module = "trunkline._core")]
pub struct TurnEngine {
    engine: Guard<core::engine::TurnEngine<Shared, Py<PyAny>>>,
}

#[pymethods]
impl TurnEngine {
    #[new]
    fn new() -> Self {
        Self { engine: Guard::new(core::engine::TurnEngine::default()) }
    }

    /// Open the queue of a model.
    #[pyo3(signature = (siblings, /))]
    fn model(&self, py: Python<'_>, siblings: bool) -> PyResult<u32> {
        self.engine.with(py, |engine| Ok(engine.model(siblings)))
    }

    /// Register an agent.
    #[pyo3(signature = (model, head, constant, reading, name, namespace, seeded, /))]
    #[expect(clippy::too_many_arguments, reason = "they are the fields of a plan")]
    fn agent(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] model: u32,
        head: Data<'_>,
        constant: Data<'_>,
        reading: &ReplyOptions,
        name: Text<'_>,
        namespace: Text<'_>,
        seeded: bool,
    ) -> PyResult<u32> {
        let plan = AgentPlan {
            model,
            head: head.to_vec(),
            constant: constant.to_vec(),
            reading: reading.0.clone(),
            name: (*name).to_owned(),
            namespace: (*namespace).to_owned(),
            seeded,
        };
        self.engine.with(py, |engine| engine.agent(plan))
    }

    /// Register a tree of a run with a seed; `task` is its task's id in UTF-8.
    #[pyo3(signature = (tree, seed, task, /))]
    fn open(&self, py: Python<'_>, tree: Py<CoreTree>, seed: i64, task: Data<'_>) -> PyResult<usize> {
        self.engine.with(py, |engine| Ok(engine.open(Shared(tree), seed, task.to_vec())))
    }

    /// Forget a tree.
    #[pyo3(signature = (tree, /))]
    fn close(&self, py: Python<'_>, tree: usize) -> PyResult<()> {
        self.engine.with(py, |engine| engine.close(tree))
    }

    /// A rollout wants its next turn.
    #[pyo3(signature = (tree, rollout, agent, waiter, kept=None, /))]
    fn ask(
        &self,
        py: Python<'_>,
        tree: usize,
        #[pyo3(from_py_with = number)] rollout: u32,
        #[pyo3(from_py_with = number)] agent: u32,
        waiter: Py<PyAny>,
        kept: Option<(u32, u32)>,
    ) -> PyResult<usize> {
        let kept = kept.map(|(turn, tokens)| (turn.into(), tokens));
        self.engine.with(py, |engine| engine.ask(tree, rollout.into(), agent, kept, waiter))
    }

    /// A rollout does not wait for its turn any more.
    #[pyo3(signature = (ask, /))]
    fn give_up(&self, py: Python<'_>, ask: usize) -> PyResult<()> {
        // What waited is dropped behind the lock, as that can run Python.
        self.engine.with(py, |engine| engine.give_up(ask)).map(drop)
    }

    /// Gather what was asked for, and take all requests out of a model's queue, as (leaf, turns, seed, waiters).
    #[pyo3(signature = (model, /))]
    fn take(&self, py: Python<'_>, #[pyo3(from_py_with = number)] model: u32) -> PyResult<Vec<Taken>> {
        self.engine.with(py, |engine| {
            engine.gather();
            let mut taken = Vec::new();
            while let Some(flight) = engine.next(model)? {
                let FlightView { leaf, turns, seed, .. } = engine.view(flight)?;
                let waiters = engine.release(flight)?.into_iter().map(|(waiter, _)| waiter).collect();
                taken.push((leaf.get(), turns, seed, waiters));
            }
            Ok(taken)
        })
    }
}

/// Leaf, turns and seed of a request, and what waits for its draws.
type Taken = (u32, u32, i64, Vec<Py<PyAny>>);
