//! A reply on a tree: parsed and appended in one crossing, or parsed first and appended later; and the transcript of a team.

pub mod prompt_ids;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyList, PyTuple};
use trunkline_core as core;
use trunkline_core::reply::{ParsedChoice, ParsedReply};
use trunkline_core::{AppendedChoice, AppendedTurn, ContextId, Error, FragmentId, KeptPrefix, RequestInfo, TurnRecord};

use crate::buffer::Column;
use crate::error::raise;
use crate::guard::{Guard, call};
use crate::input::{Data, Text, number, numbers};
use crate::reply::{ReplyOptions, read};
use crate::tree::CoreTree;

/// Read the body of a completion and append its choices to a tree as turns: choice i to rollout i. With a node, it replies
/// to the conversation there, and its every token must be known.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "positional arguments cost less than an object per turn")]
#[pyo3(signature = (
    tree, rollouts, options, data, agent, namespace, turn, retries, micros, node=None, context=None, drift=None,
    kept=None, /
))]
pub fn append_reply<'py>(
    py: Python<'py>,
    tree: &CoreTree,
    #[pyo3(from_py_with = numbers)] rollouts: Vec<u32>,
    options: &ReplyOptions,
    data: Data<'_>,
    agent: Text<'_>,
    namespace: Text<'_>,
    #[pyo3(from_py_with = number)] turn: u32,
    #[pyo3(from_py_with = number)] retries: u32,
    #[pyo3(from_py_with = number)] micros: u64,
    #[pyo3(from_py_with = number)] node: Option<u32>,
    #[pyo3(from_py_with = number)] context: Option<u32>,
    drift: Option<(Text<'_>, u32)>,
    kept: Option<(u32, usize, Text<'_>)>,
) -> PyResult<Bound<'py, PyTuple>> {
    let drift = drift.map(|(policy, limit)| prompt_ids::drift_options(&policy, limit)).transpose();
    let drift = drift.map_err(|error| raise(py, &error))?;
    let reply = read(py, &data, &options.0)?;
    let rollouts = rollouts.into_iter().map(Into::into).collect::<Vec<_>>();
    let appended = tree.with(py, |tree| {
        let request = RequestInfo {
            agent: tree.name(&agent)?,
            namespace: tree.name(&namespace)?,
            context: context.map(ContextId::new),
            turn,
            retries,
            micros,
            exact: node.is_some(),
            kept: kept.as_ref().map(|(turn, tokens, text)| KeptPrefix { turn: (*turn).into(), tokens: *tokens, text }),
        };
        match node {
            Some(node) => tree.append_ids_reply(&rollouts, &reply, request, node.into(), drift),
            None => tree.append_reply(&rollouts, &reply, request),
        }
    })?;
    summary(py, &reply, &appended)
}

/// What Python is told of a reply and of what became of it.
pub fn summary<'py>(
    py: Python<'py>,
    reply: &ParsedReply,
    appended: &[AppendedChoice],
) -> PyResult<Bound<'py, PyTuple>> {
    let choices = PyList::empty(py);
    for (choice, appended) in reply.choices.iter().zip(appended) {
        choices.append(choice_summary(py, choice, appended)?)?;
    }
    let count = |count: Option<u32>| count.map_or(-1, i64::from);
    let counts = reply.counts;
    let (prompt, cached, generated) = (count(counts.prompt), count(counts.cached), count(counts.generated));
    (choices, prompt, cached, generated, &*reply.served, reply.estimated).into_pyobject(py)
}

/// One choice: content, reasoning, calls, finish, node, size, fault.
fn choice_summary<'py>(
    py: Python<'py>,
    choice: &ParsedChoice,
    appended: &AppendedChoice,
) -> PyResult<Bound<'py, PyTuple>> {
    let (node, size, fault) = match appended {
        AppendedChoice::Turn(node, size) => (i64::from(node.get()), *size, ""),
        AppendedChoice::Fault(fault) => (-1, 0, &**fault),
    };
    let message = &choice.message;
    let calls = message.tool_calls.iter().map(|call| (&*call.id, &*call.name, &*call.arguments)).collect::<Vec<_>>();
    (message.text(), message.reasoning.as_deref(), calls, &*choice.finish, node, size, fault).into_pyobject(py)
}

/// Node, size, turns, first, prompt, generated.
type TurnSummary = (u32, usize, u32, bool, Option<u32>, Option<u32>);

/// A reply whose first choice can be a turn, and the ids of its prompt where its every token is known.
#[pyclass(frozen, module = "trunkline._core")]
pub struct PendingReply(pub ParsedReply, pub Option<Vec<u32>>);

/// Read the body of a completion whose first choice will be a turn, whose every token must be known if `exact`.
#[pyfunction]
#[pyo3(signature = (options, data, turn, exact=false, prompt=None, /))]
pub fn parse_reply<'py>(
    py: Python<'py>,
    options: &ReplyOptions,
    data: Data<'_>,
    #[pyo3(from_py_with = number)] turn: u32,
    exact: bool,
    prompt: Option<Column<u32>>,
) -> PyResult<(PendingReply, Bound<'py, PyTuple>)> {
    let reply = read(py, &data, &options.0)?;
    let sent = prompt.map(|column| column.to_vec());
    let (size, prompt) = call(py, false, || {
        let size = reply.choices.first().map(|choice| choice.size(turn, exact));
        if !exact {
            return Ok((size, None));
        }
        Ok(match reply.prompt(sent) {
            Ok(prompt) => (size, Some(prompt)),
            Err(fault) => (size.map(|size| size.and(Err(fault))), None),
        })
    })?;
    let appended =
        size.map(|size| size.map_or_else(AppendedChoice::Fault, |size| AppendedChoice::Turn(0.into(), size)));
    let summary = summary(py, &reply, appended.as_slice())?;
    Ok((PendingReply(reply, prompt), summary))
}

#[pymethods]
impl PendingReply {
    /// Append the turn to a tree, and the record of it.
    #[pyo3(signature = (
        tree, rollout, agent, namespace, sent, retries, micros, nth, asked, leaf, context, how, note, alone, drift=None,
        /
    ))]
    #[expect(clippy::too_many_arguments, reason = "positional arguments cost less than an object per turn")]
    fn append_turn(
        &self,
        py: Python<'_>,
        tree: &CoreTree,
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
        drift: Option<(Text<'_>, u32)>,
    ) -> PyResult<TurnSummary> {
        let drift = drift.map(|(policy, limit)| prompt_ids::drift_options(&policy, limit)).transpose();
        let drift = drift.map_err(|error| raise(py, &error))?;
        let appended = tree.with(py, |tree| {
            let note = note.as_deref().map(std::str::from_utf8).transpose();
            let note = note.map_err(|_| Error::Text { what: "a note" })?;
            let record = TurnRecord {
                nth,
                asked,
                leaf: leaf.into(),
                context: context.map(ContextId::new),
                namespace: how.into(),
                note,
                alone,
                prompt: self.1.as_deref().zip(drift),
            };
            let request = RequestInfo {
                agent: tree.name(&agent)?,
                namespace: tree.name(&namespace)?,
                context: sent.map(ContextId::new),
                retries,
                micros,
                ..RequestInfo::default()
            };
            tree.append_turn(rollout.into(), &self.0, request, &record)
        })?;
        let AppendedTurn { node, size, turns, first, prompt, generated } = appended;
        Ok((node.get(), size, turns, first, prompt, generated))
    }
}

/// What the members of a team said in one rollout, and the prompts that are made of it.
#[pyclass(frozen, module = "trunkline._core")]
pub struct Transcript {
    tree: Py<CoreTree>,
    // Never held while the tree is.
    transcript: Guard<core::Transcript>,
}

#[pymethods]
impl Transcript {
    #[new]
    #[pyo3(signature = (tree, /))]
    fn new(tree: Py<CoreTree>) -> Self {
        Self { tree, transcript: Guard::new(core::Transcript::default()) }
    }

    /// Keep what a member said, as a piece of the tree.
    #[pyo3(signature = (member, before, text, after, /))]
    fn add(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] member: u32,
        before: Data<'_>,
        text: Text<'_>,
        after: Data<'_>,
    ) -> PyResult<u32> {
        let piece = self.tree.get().with(py, |tree| tree.piece(&before, &text, &after))?;
        self.transcript.with(py, |transcript| {
            transcript.add(member, piece);
            Ok(FragmentId::get(piece))
        })
    }

    /// Forget what was said.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.transcript.with(py, |transcript| {
            transcript.clear();
            Ok(())
        })
    }

    /// Set the prompt of a member: the pieces around what was said, interned in the tree.
    #[pyo3(signature = (member, parts, sees, /))]
    fn frame(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] member: u32,
        parts: Vec<Vec<PyBackedBytes>>,
        #[pyo3(from_py_with = optional)] sees: Option<Vec<u32>>,
    ) -> PyResult<()> {
        let parts = self.tree.get().with(py, |tree| {
            let intern = |part: &Vec<PyBackedBytes>| part.iter().map(|piece| Ok(tree.fragment(piece)?.get())).collect();
            parts.iter().map(intern).collect()
        })?;
        self.transcript.with(py, |transcript| {
            transcript.frame(member, parts, sees);
            Ok(())
        })
    }

    /// The context that a member's prompt is now.
    #[pyo3(signature = (member, /))]
    fn prompt(&self, py: Python<'_>, #[pyo3(from_py_with = number)] member: u32) -> PyResult<u32> {
        let list = self.transcript.with(py, |transcript| transcript.prompt(member))?;
        self.tree.get().with(py, |tree| tree.context(&list)).map(ContextId::get)
    }
}

fn optional(value: &Bound<'_, PyAny>) -> PyResult<Option<Vec<u32>>> {
    if value.is_none() { Ok(None) } else { numbers(value).map(Some) }
}
