//! Calls of models and tools: into a delta, out of it, and as rows of a run file.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};
use trunkline_core as core;

use crate::guard::{Guard, call};
use crate::input::Data;
use crate::tree::CoreTree;

/// Bytes of deltas from which on other Python threads run meanwhile.
const LARGE: usize = 1 << 16;

pub type ModelFields = (PyBackedStr, u32, i64, i64, i64, u64, u64, i64, u64, i64, PyBackedStr);
pub type ToolFields = (u32, PyBackedStr, bool, u64, u64);

/// Calls of models and of tools as Python has them: tuples in the order of their rows.
pub fn log<'a>(models: &'a [ModelFields], tools: &'a [ToolFields]) -> core::CallLog<'a> {
    let known = |figure: i64| u64::try_from(figure).ok();
    let models = models.iter().map(|fields| {
        let &(ref endpoint, draws, prompt, cached, generated, attempts, queue, first, micros, started, ref agent) =
            fields;
        core::ModelCall {
            endpoint,
            draws,
            prompt: known(prompt),
            cached: known(cached),
            generated: known(generated),
            attempts,
            queue,
            first: known(first),
            micros,
            started: known(started).unwrap_or(0),
            agent,
        }
    });
    let tools = tools.iter().map(|&(rollout, ref tool, failed, micros, started)| core::ToolCall {
        rollout,
        tool,
        failed,
        micros,
        started,
    });
    core::CallLog { models: models.collect(), tools: tools.collect() }
}

type Tuples<'py> = Vec<Bound<'py, PyTuple>>;

/// The calls that came with a delta, of models and of tools, as tuples in the order of their rows; None of a delta that is
/// older than they are.
#[pyfunction]
#[pyo3(signature = (delta, /))]
pub fn calls_of<'py>(py: Python<'py>, delta: Data<'_>) -> PyResult<Option<(Tuples<'py>, Tuples<'py>)>> {
    let bytes: &[u8] = &delta;
    let Some(found) = call(py, bytes.len() > LARGE, || core::calls_of(bytes))? else { return Ok(None) };
    let known = |figure: Option<u64>| figure.map_or(-1, u64::cast_signed);
    let models = found.models.iter().map(|call| {
        let core::ModelCall { endpoint, draws, attempts, queue, micros, started, agent, .. } = *call;
        let (prompt, cached, generated, first) =
            (known(call.prompt), known(call.cached), known(call.generated), known(call.first));
        (endpoint, draws, prompt, cached, generated, attempts, queue, first, micros, started, agent).into_pyobject(py)
    });
    let tools = found
        .tools
        .iter()
        .map(|call| (call.rollout, call.tool, call.failed, call.micros, call.started).into_pyobject(py));
    Ok(Some((models.collect::<PyResult<_>>()?, tools.collect::<PyResult<_>>()?)))
}

type Calls<'py> = (PyRef<'py, CoreTree>, Bound<'py, PyList>, Bound<'py, PyList>);

/// What changed in each tree since its last delta, with the calls that go along, and how many of its rollouts have ended.
/// The lists of calls are emptied.
#[pyfunction]
#[pyo3(signature = (trees, /))]
pub fn deltas<'py>(py: Python<'py>, trees: Vec<Calls<'py>>) -> PyResult<Vec<(Option<Bound<'py, PyBytes>>, usize)>> {
    let taken = trees.iter().map(|(tree, models, tools)| {
        let fields: (Vec<ModelFields>, Vec<ToolFields>) = (models.extract()?, tools.extract()?);
        let calls = log(&fields.0, &fields.1);
        let (delta, ended) = tree.with(py, |tree| {
            let delta = tree.delta_with(&calls)?;
            Ok((delta, (tree.rollouts() as usize).saturating_sub(tree.growing_count())))
        })?;
        models.del_slice(0, models.len())?;
        tools.del_slice(0, tools.len())?;
        Ok((delta.map(|bytes| PyBytes::new(py, &bytes)), ended))
    });
    taken.collect()
}

/// The rows of a commit, for `calls` and `uses`, or the names that have no number yet.
#[pyclass(frozen, get_all, module = "trunkline._core")]
pub struct CommitRows {
    /// Endpoints without a number; then there are no rows.
    endpoints: Vec<String>,
    /// Agents without a number.
    agents: Vec<String>,
    /// Rows of model calls, as they are inserted.
    models: Py<PyAny>,
    /// Rows of tool calls.
    tools: Py<PyAny>,
    /// For each finished task, the added checksums of its model calls and of its tool calls.
    sums: Vec<(u32, u32)>,
    /// The same of all unfinished tasks together.
    open: (u32, u32),
    /// Prompt tokens, generated tokens, retries and microseconds of the calls that were sent.
    totals: (u64, u64, u64, u64),
    /// Seconds of the last ones that brought something.
    latencies: Vec<f64>,
    /// Microseconds of tools, by name.
    tool_micros: Vec<(String, u64)>,
}

impl CommitRows {
    fn new(py: Python<'_>, rows: &core::CommitRows<'_>) -> PyResult<Self> {
        let models: Vec<_> = rows.models.iter().map(|row| PyTuple::new(py, row.columns())).collect::<PyResult<_>>()?;
        let mut names: HashMap<&str, Bound<'_, PyString>> = HashMap::new();
        let mut tools = Vec::with_capacity(rows.tools.len());
        for &core::ToolRow { task, seq, started, call } in &rows.tools {
            let tool = names.entry(call.tool).or_insert_with(|| PyString::new(py, call.tool));
            let row = (task, seq, call.rollout, &*tool, u8::from(call.failed), call.micros, started);
            tools.push(row.into_pyobject(py)?);
        }
        let figures = &rows.figures;
        #[expect(clippy::cast_precision_loss, reason = "a latency is shown in seconds")]
        let latencies = figures.latencies.iter().map(|&micros| micros as f64 / 1e6).collect();
        Ok(Self {
            endpoints: Vec::new(),
            agents: Vec::new(),
            models: models.into_pyobject(py)?.into_any().unbind(),
            tools: tools.into_pyobject(py)?.into_any().unbind(),
            sums: rows.sums.clone(),
            open: rows.open,
            totals: (figures.prompt, figures.generated, figures.retries, figures.micros),
            latencies,
            tool_micros: figures.tools.iter().map(|&(name, micros)| (name.to_owned(), micros)).collect(),
        })
    }

    fn missing(py: Python<'_>, names: &core::NewNames<'_>) -> Self {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Self {
            endpoints: owned(&names.endpoints),
            agents: owned(&names.agents),
            models: py.None(),
            tools: py.None(),
            sums: Vec::new(),
            open: (0, 0),
            totals: (0, 0, 0, 0),
            latencies: Vec::new(),
            tool_micros: Vec::new(),
        }
    }
}

/// Makes the rows of a run's calls out of its deltas, and adds up their checksums by task.
#[pyclass(frozen, module = "trunkline._core")]
pub struct CallRows(Guard<core::CallRows>);

#[pymethods]
impl CallRows {
    #[new]
    #[pyo3(signature = (began, /))]
    fn new(began: i64) -> Self {
        Self(Guard::new(core::CallRows::new(began)))
    }

    /// Add to the checksums of an unfinished task: of rows that are in the file.
    #[pyo3(signature = (task, models, tools, /))]
    fn add_sums(&self, py: Python<'_>, task: u32, models: u32, tools: u32) -> PyResult<()> {
        self.0.with(py, |rows| {
            rows.add_sums(task, (models, tools));
            Ok(())
        })
    }

    /// Make the rows of a commit: deltas, each with the numbers of its task and of itself, and tasks that finish. `endpoints`
    /// and `agents` have the numbers of names that were missing before.
    #[pyo3(signature = (deltas, finished, endpoints, agents, /))]
    fn rows(
        &self,
        py: Python<'_>,
        deltas: Vec<(u32, u32, Bound<'_, PyBytes>)>,
        finished: Vec<u32>,
        endpoints: HashMap<String, u32>,
        agents: HashMap<String, u32>,
    ) -> PyResult<CommitRows> {
        let deltas: Vec<_> = deltas.iter().map(|(task, seq, data)| (*task, *seq, data.as_bytes())).collect();
        let large = deltas.iter().map(|(_, _, data)| data.len()).sum::<usize>() > LARGE;
        let named = [endpoints, agents].map(|names| names.into_iter().map(|(name, id)| (name.into(), id)).collect());
        match self.0.with_long(py, |_| large, |rows| Ok(rows.rows(&deltas, &finished, named)))? {
            Ok(rows) => CommitRows::new(py, &rows),
            Err(missing) => Ok(CommitRows::missing(py, &missing)),
        }
    }

    /// Note that the commit is in the file.
    fn keep(&self, py: Python<'_>) -> PyResult<()> {
        self.0.with(py, |rows| {
            rows.keep();
            Ok(())
        })
    }
}
