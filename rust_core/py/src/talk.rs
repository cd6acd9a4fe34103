//! `Talk`.

use pyo3::prelude::*;
use trunkline_core as core;
use trunkline_core::{ContextId, FragmentId};

use crate::guard::Guard;
use crate::input::{Data, Text, number, numbers};
use crate::tree::Tree;

/// What the members of a team said in one rollout, and the prompts that are made of it.
#[pyclass(frozen, module = "trunkline._core")]
pub struct Talk {
    tree: Py<Tree>,
    // Never held while the tree is.
    talk: Guard<core::Talk>,
}

#[pymethods]
impl Talk {
    #[new]
    #[pyo3(signature = (tree, /))]
    fn new(tree: Py<Tree>) -> Self {
        Self { tree, talk: Guard::new(core::Talk::default()) }
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
        self.talk.with(py, |talk| {
            talk.add(member, piece);
            Ok(FragmentId::get(piece))
        })
    }

    /// Forget what was said.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.talk.with(py, |talk| {
            talk.clear();
            Ok(())
        })
    }

    /// Set the prompt of a member: the pieces around what was said.
    #[pyo3(signature = (member, parts, sees, /))]
    fn frame(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] member: u32,
        parts: Vec<Vec<u32>>,
        #[pyo3(from_py_with = optional)] sees: Option<Vec<u32>>,
    ) -> PyResult<()> {
        self.talk.with(py, |talk| talk.frame(member, parts, sees))
    }

    /// The context that a member's prompt is now.
    #[pyo3(signature = (member, /))]
    fn prompt(&self, py: Python<'_>, #[pyo3(from_py_with = number)] member: u32) -> PyResult<u32> {
        let list = self.talk.with(py, |talk| talk.prompt(member))?;
        self.tree.get().with(py, |tree| tree.context(&list)).map(ContextId::get)
    }
}

fn optional(value: &Bound<'_, PyAny>) -> PyResult<Option<Vec<u32>>> {
    if value.is_none() { Ok(None) } else { numbers(value).map(Some) }
}
