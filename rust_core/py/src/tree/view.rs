//! `NodeView` and `RolloutView`: what is read of a tree at one moment, by name.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use trunkline_core as core;
use trunkline_core::ContextId;
use trunkline_core::reply::per_vocabulary;

use crate::input::number;

/// Numbers that Python sees as a tuple.
pub struct Numbers<T>(Box<[T]>);

impl<'py, T: Copy + IntoPyObject<'py>> IntoPyObject<'py> for &Numbers<T> {
    type Target = PyTuple;
    type Output = Bound<'py, PyTuple>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        PyTuple::new(py, self.0.iter().copied())
    }
}

/// One node, as it was when it was read.
#[pyclass(frozen, get_all, module = "trunkline._core")]
pub struct NodeView {
    /// The node before; the root's is itself.
    parent: u32,
    /// What it is: one of the module's constants.
    kind: u8,
    /// Nodes above it; 0 for the root.
    depth: u32,
    /// Model turns from the root to here, this one included.
    turns: u32,
    /// The speaker.
    agent: String,
    /// Model, sampling parameters and weight version.
    namespace: String,
    /// Why the model stopped.
    finish: String,
    /// Prompt tokens as first reported.
    prompt: Option<u32>,
    /// Completion tokens as first reported.
    generated: Option<u32>,
    /// What was sent, where it is not the path.
    context: Option<u32>,
    /// Mean entropy in nats of the regions think, tool and all; NaN where not known.
    entropy: (f32, f32, f32),
    /// Its exponential.
    perplexity: (f32, f32, f32),
    /// The entropies of its first twenty places summed up, in nats; NaN where not known.
    opening: f32,
    /// Scored rollouts whose path holds it.
    visits: u32,
    /// The sum of their rewards.
    value: f64,
    /// Rollouts that pass or end here, scored or not.
    passes: u32,
}

impl From<core::NodeView<'_>> for NodeView {
    fn from(view: core::NodeView<'_>) -> Self {
        Self {
            parent: view.parent.get(),
            kind: view.kind as u8,
            depth: view.depth,
            turns: view.turns,
            agent: view.agent.to_owned(),
            namespace: view.namespace.to_owned(),
            finish: view.finish.to_owned(),
            prompt: view.prompt.get(),
            generated: view.generated.get(),
            context: view.context.map(ContextId::get),
            entropy: view.uncertainty.entropy.into(),
            perplexity: view.uncertainty.perplexity.into(),
            opening: view.uncertainty.opening,
            visits: view.visits,
            value: view.value,
            passes: view.passes,
        }
    }
}

#[pymethods]
impl NodeView {
    /// The uncertainty of ARPO.
    #[pyo3(signature = (vocabulary, /))]
    fn arpo(&self, #[pyo3(from_py_with = number)] vocabulary: u32) -> f64 {
        per_vocabulary(self.opening.into(), vocabulary)
    }

    fn __repr__(&self) -> String {
        format!("<NodeView: kind {}, depth {}, parent {}>", self.kind, self.depth, self.parent)
    }
}

/// One rollout, as it was when it was read.
#[pyclass(frozen, get_all, module = "trunkline._core")]
pub struct RolloutView {
    /// Where it was opened.
    point: u32,
    /// Where it is, or ended.
    leaf: u32,
    /// Its fork path.
    path: Numbers<u32>,
    /// Which sample of its fork point it is.
    draw: u32,
    /// Its lane; None once it has ended.
    lane: Option<u32>,
    /// The initial chain it was expanded for.
    subgroup: u32,
    /// How it ended; None while it grows.
    termination: Option<&'static str>,
    /// Its answer.
    answer: Option<String>,
    /// What went wrong.
    error: Option<String>,
    /// Its reward; NaN while unscored.
    reward: f64,
    /// What was noted on it last.
    note: Option<String>,
    /// What its own calls cost, in the order of `trunkline.types.Usage`.
    usage: Numbers<u64>,
    /// Model turns from the root to its leaf, shared ones included.
    turns: u32,
    /// Wall time of its own model calls, in microseconds.
    llm_micros: u64,
    /// Wall time of its own tool calls, in microseconds.
    tool_micros: u64,
}

impl From<core::RolloutView<'_>> for RolloutView {
    fn from(view: core::RolloutView<'_>) -> Self {
        Self {
            point: view.point.get(),
            leaf: view.leaf.get(),
            path: Numbers(view.path.into()),
            draw: view.draw,
            lane: view.lane,
            subgroup: view.subgroup,
            termination: view.termination.map(core::Termination::as_str),
            answer: view.answer.map(str::to_owned),
            error: view.error.map(str::to_owned),
            reward: view.reward,
            note: view.note.map(str::to_owned),
            usage: Numbers(view.usage.counts().into()),
            turns: view.turns,
            llm_micros: view.usage.llm_micros,
            tool_micros: view.usage.tool_micros,
        }
    }
}

#[pymethods]
impl RolloutView {
    fn __repr__(&self) -> String {
        let ended = self.termination.unwrap_or("growing");
        format!("<RolloutView: {ended}, point {}, leaf {}, {} turns>", self.point, self.leaf, self.turns)
    }
}

/// What a rollout's row is made of.
pub struct RolloutRow {
    view: RolloutView,
    length: Option<u64>,
    first: Option<u32>,
}

impl From<core::RolloutFacts<'_>> for RolloutRow {
    fn from(facts: core::RolloutFacts<'_>) -> Self {
        Self { view: facts.view.into(), length: facts.length, first: facts.first.map(core::NodeId::get) }
    }
}

impl RolloutRow {
    /// The columns of the row, with the first turn in the place of its action.
    pub fn columns<'py>(self, py: Python<'py>, rollout: u32) -> PyResult<Bound<'py, PyTuple>> {
        let Self { view, length, first } = self;
        let path = view.path.0.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let reward = Some(view.reward).filter(|reward| !reward.is_nan());
        let mut columns: Vec<Bound<'py, PyAny>> = Vec::with_capacity(25);
        columns.push(rollout.into_pyobject(py)?.into_any());
        columns.push(path.into_pyobject(py)?.into_any());
        columns.push(view.subgroup.into_pyobject(py)?.into_any());
        columns.push(view.leaf.into_pyobject(py)?.into_any());
        columns.push(view.termination.into_pyobject(py)?.into_any());
        columns.push(view.answer.into_pyobject(py)?.into_any());
        columns.push(view.error.into_pyobject(py)?.into_any());
        columns.push(reward.into_pyobject(py)?.into_any());
        columns.push(view.note.into_pyobject(py)?.into_any());
        columns.push(view.turns.into_pyobject(py)?.into_any());
        for &count in &view.usage.0 {
            columns.push(count.into_pyobject(py)?.into_any());
        }
        columns.push(view.llm_micros.into_pyobject(py)?.into_any());
        columns.push(view.tool_micros.into_pyobject(py)?.into_any());
        columns.push(length.into_pyobject(py)?.into_any());
        columns.push(first.into_pyobject(py)?.into_any());
        PyTuple::new(py, columns)
    }
}
