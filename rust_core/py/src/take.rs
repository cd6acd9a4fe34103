//! `take`: a reply on a tree, in one crossing.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use trunkline_core::reply::{Choice, Reply};
use trunkline_core::{Asked, ContextId, Kept, Taken};

use crate::error::raise;
use crate::ids;
use crate::input::{Data, Text, number, numbers};
use crate::reply::{Reading, read};
use crate::tree::Tree;

/// Read the body of a completion and append its choices to a tree as turns: choice i to rollout i.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "positional arguments cost less than an object per turn")]
#[pyo3(signature = (tree, rollouts, reading, data, agent, namespace, turn, retries, micros, context=None, /))]
pub fn take<'py>(
    py: Python<'py>,
    tree: &Tree,
    #[pyo3(from_py_with = numbers)] rollouts: Vec<u32>,
    reading: &Reading,
    data: Data<'_>,
    #[pyo3(from_py_with = number)] agent: u32,
    #[pyo3(from_py_with = number)] namespace: u32,
    #[pyo3(from_py_with = number)] turn: u32,
    #[pyo3(from_py_with = number)] retries: u32,
    #[pyo3(from_py_with = number)] micros: u64,
    #[pyo3(from_py_with = number)] context: Option<u32>,
) -> PyResult<Bound<'py, PyTuple>> {
    let reply = read(py, &data, &reading.0)?;
    let rollouts = rollouts.into_iter().map(Into::into).collect::<Vec<_>>();
    let asked = Asked {
        agent: agent.into(),
        namespace: namespace.into(),
        context: context.map(ContextId::new),
        turn,
        retries,
        micros,
        exact: false,
        kept: None,
    };
    let taken = tree.with(py, |tree| tree.take(&rollouts, &reply, asked))?;
    told(py, &reply, &taken)
}

/// The same for a reply to the conversation at a node whose every token must be known.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "as above")]
#[pyo3(signature = (
    tree, rollouts, reading, data, agent, namespace, turn, retries, micros, node, context=None, parting=None,
    kept=None, /
))]
pub fn take_ids<'py>(
    py: Python<'py>,
    tree: &Tree,
    #[pyo3(from_py_with = numbers)] rollouts: Vec<u32>,
    reading: &Reading,
    data: Data<'_>,
    #[pyo3(from_py_with = number)] agent: u32,
    #[pyo3(from_py_with = number)] namespace: u32,
    #[pyo3(from_py_with = number)] turn: u32,
    #[pyo3(from_py_with = number)] retries: u32,
    #[pyo3(from_py_with = number)] micros: u64,
    #[pyo3(from_py_with = number)] node: u32,
    #[pyo3(from_py_with = number)] context: Option<u32>,
    parting: Option<(Text<'_>, u32)>,
    kept: Option<(u32, usize, Text<'_>)>,
) -> PyResult<Bound<'py, PyTuple>> {
    let parting = parting.map(|(policy, limit)| ids::parting(&policy, limit)).transpose();
    let parting = parting.map_err(|error| raise(py, &error))?;
    let reply = read(py, &data, &reading.0)?;
    let rollouts = rollouts.into_iter().map(Into::into).collect::<Vec<_>>();
    let asked = Asked {
        agent: agent.into(),
        namespace: namespace.into(),
        context: context.map(ContextId::new),
        turn,
        retries,
        micros,
        exact: true,
        kept: kept.as_ref().map(|(turn, tokens, text)| Kept { turn: (*turn).into(), tokens: *tokens, text }),
    };
    let taken = tree.with(py, |tree| tree.take_exact(&rollouts, &reply, asked, node.into(), parting))?;
    told(py, &reply, &taken)
}

/// What Python is told of a reply and of what became of it.
pub fn told<'py>(py: Python<'py>, reply: &Reply, taken: &[Taken]) -> PyResult<Bound<'py, PyTuple>> {
    let choices = PyList::empty(py);
    for (choice, taken) in reply.choices.iter().zip(taken) {
        choices.append(said(py, choice, taken)?)?;
    }
    let count = |count: Option<u32>| count.map_or(-1, i64::from);
    let counts = reply.counts;
    (choices, count(counts.prompt), count(counts.cached), count(counts.generated), &*reply.served).into_pyobject(py)
}

/// One choice: content, reasoning, calls, finish, node, size, fault.
fn said<'py>(py: Python<'py>, choice: &Choice, taken: &Taken) -> PyResult<Bound<'py, PyTuple>> {
    let (node, size, fault) = match taken {
        Taken::Turn(node, size) => (i64::from(node.get()), *size, ""),
        Taken::Fault(fault) => (-1, 0, &**fault),
    };
    let message = &choice.message;
    let calls = message.tool_calls.iter().map(|call| (&*call.id, &*call.name, &*call.arguments)).collect::<Vec<_>>();
    (message.text(), message.reasoning.as_deref(), calls, &*choice.finish, node, size, fault).into_pyobject(py)
}
