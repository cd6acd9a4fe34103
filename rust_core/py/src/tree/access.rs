//! How methods reach the tree behind the guard: shortly, or letting other threads run meanwhile.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use trunkline_core as core;
use trunkline_core::{NodeId, Source, TokenSlice};

use super::CoreTree;
use crate::error::raise;
use crate::tokens::TokenBuffer;

/// Sizes from which a sweep over a tree takes tens of microseconds, so that other threads should run meanwhile.
const LARGE_TREE: u32 = 2048;
pub(super) const LARGE_BYTES: usize = 1 << 18;
const LARGE_RUN: usize = 1 << 14;

/// Path, turn, next draw and subgroup of a state.
pub(super) type State = (Vec<u32>, u32, u32, Option<u32>);

/// What rollouts left on nodes: visits, values, passes.
pub(super) type Statistics = (Vec<u32>, Vec<f64>, Vec<u32>);

impl CoreTree {
    /// Read for long if the tree is large.
    pub fn sweep<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut core::Tree) -> core::Result<R> + Send,
    ) -> PyResult<R> {
        let large = |tree: &core::Tree| {
            tree.nodes().saturating_add(tree.rollouts()) >= LARGE_TREE || tree.size() >= LARGE_BYTES
        };
        self.0.with_long(py, large, work)
    }

    /// Read what may be long in a small tree.
    pub fn copy<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut core::Tree) -> core::Result<R> + Send,
    ) -> PyResult<R> {
        self.0.with_long(py, |_| true, work)
    }

    /// Do something short.
    pub fn with<R>(&self, py: Python<'_>, work: impl FnOnce(&mut core::Tree) -> core::Result<R>) -> PyResult<R> {
        self.0.with(py, work)
    }

    /// Do something from inside the core.
    pub fn within<R>(&self, work: impl FnOnce(&mut core::Tree) -> core::Result<R>) -> core::Result<R> {
        self.0.within(work)
    }

    /// Do something with tokens, and let other threads run if there are many.
    pub(super) fn say<R: Send>(
        &self,
        py: Python<'_>,
        tokens: Option<&TokenBuffer>,
        work: impl FnOnce(&mut core::Tree, Option<TokenSlice<'_>>) -> core::Result<R> + Send,
    ) -> PyResult<R> {
        let tokens = tokens.map(|tokens| tokens.tokens.as_slice());
        let large = tokens.is_some_and(|tokens| tokens.len() >= LARGE_RUN);
        let work = |tree: &mut core::Tree| work(tree, tokens);
        if large { self.0.with_long(py, |_| true, work) } else { self.0.with(py, work) }
    }

    /// A copy of what rollouts left on every node.
    pub(super) fn left_behind(&self, py: Python<'_>) -> PyResult<Statistics> {
        self.sweep(py, |tree| {
            let (visits, value, passes) = tree.statistics();
            Ok((visits.to_vec(), value.to_vec(), passes.to_vec()))
        })
    }

    /// What a model turn said beside its message, as text.
    pub(super) fn said_beside(&self, py: Python<'_>, node: NodeId) -> PyResult<Option<String>> {
        let aside = self.0.with(py, |tree| Ok(tree.aside(node)?.map(<[u8]>::to_vec)))?;
        let text = aside.map(String::from_utf8).transpose();
        text.map_err(|_| raise(py, &core::Error::Text { what: "the aside" }))
    }

    /// Join a body straight into the object that Python gets.
    pub(super) fn body<'py>(
        &self,
        py: Python<'py>,
        source: Source,
        head: &[u8],
        tail: &[u8],
    ) -> PyResult<Bound<'py, PyBytes>> {
        let len = self.0.with(py, |tree| tree.body_len(source, head, tail))?;
        // What a node or a context says never changes, so the length still holds when the bytes are written.
        PyBytes::new_with(py, len, |out| self.0.with(py, |tree| tree.body_into(source, head, tail, out)))
    }
}
