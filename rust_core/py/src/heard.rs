//! `Heard`: a reply that was read, and lands on a tree later.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use trunkline_core::reply::{Choice, Counts, Message, Reply, ToolCall};
use trunkline_core::{Asked, ContextId, Entry, Error, Landed, Taken};

use crate::guard::call;
use crate::input::{Data, Text, number};
use crate::reply::{Reading, read};
use crate::take::told;
use crate::tree::Tree;

/// Node, size, turns, first, prompt, generated.
type Told = (u32, usize, u32, bool, Option<u32>, Option<u32>);

/// A reply whose first choice can be a turn.
#[pyclass(frozen, module = "trunkline._core")]
pub struct Heard(Reply);

/// Read the body of a completion whose first choice will be a turn.
#[pyfunction]
#[pyo3(signature = (reading, data, turn, /))]
pub fn hear<'py>(
    py: Python<'py>,
    reading: &Reading,
    data: Data<'_>,
    #[pyo3(from_py_with = number)] turn: u32,
) -> PyResult<(Heard, Bound<'py, PyTuple>)> {
    let reply = read(py, &data, &reading.0)?;
    let first = reply.choices.first();
    let size = call(py, false, || Ok(first.map(|choice| choice.size(turn))))?;
    let taken = size.map(|size| size.map_or_else(Taken::Fault, |size| Taken::Turn(0.into(), size)));
    let told = told(py, &reply, taken.as_slice())?;
    Ok((Heard(reply), told))
}

#[pymethods]
impl Heard {
    #[new]
    #[pyo3(signature = (content, reasoning, calls, finish, prompt, cached, generated, /))]
    fn new(
        content: &str,
        reasoning: Option<String>,
        calls: Vec<(String, String, String)>,
        finish: &str,
        prompt: i64,
        cached: i64,
        generated: i64,
    ) -> Self {
        let calls = calls.into_iter().map(|(id, name, arguments)| ToolCall { id, name, arguments });
        let message =
            Message { content: content.to_owned(), reasoning, tool_calls: calls.collect(), ..Message::default() };
        let count = |count: i64| u32::try_from(count).ok();
        let counts =
            Counts { prompt: count(prompt), cached: count(cached), generated: count(generated), reasoning: None };
        let choice = Choice { index: 0, message, finish: finish.to_owned(), tokens: None, listed: None };
        Self(Reply { choices: vec![choice], prompt_ids: None, counts, served: String::new() })
    }

    /// Put the turn on a tree, and the record of it.
    #[pyo3(signature = (
        tree, rollout, agent, namespace, sent, retries, micros, nth, asked, leaf, context, how, note, alone, /
    ))]
    #[expect(clippy::too_many_arguments, reason = "positional arguments cost less than an object per turn")]
    fn land(
        &self,
        py: Python<'_>,
        tree: &Tree,
        #[pyo3(from_py_with = number)] rollout: u32,
        agent: Text<'_>,
        namespace: Text<'_>,
        #[pyo3(from_py_with = number)] sent: Option<u32>,
        #[pyo3(from_py_with = number)] retries: u32,
        #[pyo3(from_py_with = number)] micros: u64,
        #[pyo3(from_py_with = number)] nth: u32,
        #[pyo3(from_py_with = number)] asked: u32,
        #[pyo3(from_py_with = number)] leaf: u32,
        #[pyo3(from_py_with = number)] context: Option<u32>,
        #[pyo3(from_py_with = number)] how: u32,
        note: Option<Data<'_>>,
        alone: bool,
    ) -> PyResult<Told> {
        let landed = tree.with(py, |tree| {
            let note = note.as_deref().map(std::str::from_utf8).transpose();
            let note = note.map_err(|_| Error::Text { what: "a note" })?;
            let entry = Entry {
                nth,
                asked,
                leaf: leaf.into(),
                context: context.map(ContextId::new),
                namespace: how.into(),
                note,
                alone,
            };
            let asked = Asked {
                agent: tree.name(&agent)?,
                namespace: tree.name(&namespace)?,
                context: sent.map(ContextId::new),
                retries,
                micros,
                ..Asked::default()
            };
            tree.land(rollout.into(), &self.0, asked, &entry)
        })?;
        let Landed { node, size, turns, first, prompt, generated } = landed;
        Ok((node.get(), size, turns, first, prompt, generated))
    }
}
