//! `Prefix`, and what is read of it.

use pyo3::prelude::*;
use trunkline_core as core;
use trunkline_core::{PrefixId, SpaceId, Uncertainty};

use crate::buffer::{Column, view};
use crate::guard::Guard;
use crate::input::{Text, number};
use crate::tokens::TokenBuffer;

/// Sizes from which work takes tens of microseconds, so that other threads should run meanwhile.
const LONG_RUN: usize = 1 << 14;
const LARGE_INDEX: u32 = 1 << 10;

/// An exact radix tree over token ids, which stores what token paths share once.
#[pyclass(frozen, module = "trunkline._core")]
pub struct Prefix(Guard<core::Prefix>);

#[pymethods]
impl Prefix {
    #[new]
    fn new() -> Self {
        Self(Guard::new(core::Prefix::default()))
    }

    /// The id of the space of this name, made if there is none.
    #[pyo3(signature = (name, /))]
    fn space(&self, py: Python<'_>, name: Text<'_>) -> PyResult<u32> {
        self.0.with(py, |prefix| prefix.space(&name)).map(SpaceId::get)
    }

    /// Count one path from the root of a space, and return the node it ends at.
    #[pyo3(signature = (space, tokens, /))]
    fn insert(&self, py: Python<'_>, #[pyo3(from_py_with = number)] space: u32, tokens: &TokenBuffer) -> PyResult<u32> {
        let tokens = tokens.tokens.as_slice();
        let insert = |prefix: &mut core::Prefix| prefix.insert(space.into(), &tokens);
        self.0.with_long(py, |_| tokens.len() >= LONG_RUN, insert).map(PrefixId::get)
    }

    /// Move one path that ends at a node on, and return the node it ends at now.
    #[pyo3(signature = (node, tokens, /))]
    fn append(&self, py: Python<'_>, #[pyo3(from_py_with = number)] node: u32, tokens: &TokenBuffer) -> PyResult<u32> {
        let tokens = tokens.tokens.as_slice();
        let append = |prefix: &mut core::Prefix| prefix.append(node.into(), &tokens);
        self.0.with_long(py, |_| tokens.len() >= LONG_RUN, append).map(PrefixId::get)
    }

    /// Count one more path from the root to the end of a node.
    #[pyo3(signature = (node, /))]
    fn fork(&self, py: Python<'_>, #[pyo3(from_py_with = number)] node: u32) -> PyResult<()> {
        self.0.with(py, |prefix| prefix.fork(node.into()))
    }

    /// How far ids are in a space.
    #[pyo3(signature = (space, ids, /))]
    fn r#match(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] space: u32,
        ids: Column<u32>,
    ) -> PyResult<PrefixMatch> {
        let longest = |prefix: &mut core::Prefix| prefix.longest(space.into(), &ids);
        let core::PrefixMatch { node, matched, offset } = self.0.with_long(py, |_| ids.len() >= LONG_RUN, longest)?;
        Ok(PrefixMatch { node: node.get(), matched, offset })
    }

    /// The node that every path of a space starts at.
    #[pyo3(signature = (space, /))]
    fn root(&self, py: Python<'_>, #[pyo3(from_py_with = number)] space: u32) -> PyResult<u32> {
        self.0.with(py, |prefix| prefix.root(space.into())).map(PrefixId::get)
    }

    /// One node.
    #[pyo3(signature = (node, /))]
    fn node(&self, py: Python<'_>, #[pyo3(from_py_with = number)] node: u32) -> PyResult<PrefixNode> {
        let view = self.0.with(py, |prefix| prefix.node(node.into()))?;
        let core::PrefixNode { parent, space, len, depth, generated, passes, ends } = view;
        Ok(PrefixNode { parent: parent.get(), space: space.get(), len, depth, generated, passes, ends })
    }

    /// The tokens that are a node's own.
    #[pyo3(signature = (node, /))]
    fn span(&self, py: Python<'_>, #[pyo3(from_py_with = number)] node: u32) -> PyResult<TokenBuffer> {
        self.0.with(py, |prefix| prefix.span(node.into()).map(core::TokenBuffer::from)).map(tokens)
    }

    /// The tokens from the root to the end of a node.
    #[pyo3(signature = (node, /))]
    fn path(&self, py: Python<'_>, #[pyo3(from_py_with = number)] node: u32) -> PyResult<TokenBuffer> {
        let long = |prefix: &core::Prefix| prefix.node(node.into()).is_ok_and(|node| node.depth >= LONG_RUN);
        self.0.with_long(py, long, |prefix| prefix.path(node.into())).map(tokens)
    }

    /// The paths that end at some nodes, as the columns that packing is fed with.
    #[pyo3(signature = (ends, /))]
    fn columns(&self, py: Python<'_>, ends: Column<u32>) -> PyResult<PrefixColumns> {
        let ends: Vec<PrefixId> = ends.iter().copied().map(PrefixId::new).collect();
        PrefixColumns::new(py, self.0.with_long(py, |_| true, |prefix| prefix.columns(&ends))?)
    }

    /// What sharing saves in one space, or in all of them.
    #[pyo3(signature = (space=None, /))]
    fn reuse(&self, py: Python<'_>, #[pyo3(from_py_with = number)] space: Option<u32>) -> PyResult<Reuse> {
        let reuse = |prefix: &mut core::Prefix| space.map_or(Ok(prefix.total()), |space| prefix.reuse(space.into()));
        self.0.with(py, reuse).map(Reuse::from)
    }

    /// Bytes that memory is held for.
    #[getter]
    fn memory(&self, py: Python<'_>) -> PyResult<usize> {
        self.0.with(py, |prefix| Ok(prefix.memory()))
    }

    /// Forget everything, spaces included, and keep the memory.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.0.with(py, |prefix| {
            prefix.reset();
            Ok(())
        })
    }

    /// Walk every invariant.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.0.with_long(py, |prefix| prefix.nodes() >= LARGE_INDEX, |prefix| prefix.check())
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.0.with(py, |prefix| Ok(prefix.nodes() as usize))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let text = |prefix: &mut core::Prefix| {
            let core::Reuse { paths, unique, .. } = prefix.total();
            Ok(format!("<Prefix: {paths} paths, {unique} tokens, {} spaces>", prefix.spaces()))
        };
        self.0.with(py, text)
    }
}

fn tokens(tokens: core::TokenBuffer) -> TokenBuffer {
    TokenBuffer { tokens, uncertainty: Uncertainty::UNKNOWN }
}

/// Paths as a forest, parents first, with a run of tokens a node.
#[pyclass(frozen, get_all, module = "trunkline._core")]
pub struct PrefixColumns {
    /// Per node its parent (u32); a root's is itself.
    parents: Py<PyAny>,
    /// Per path the node it ends at (u32).
    leaves: Py<PyAny>,
    /// Where each node's tokens start (u64), and at the end where the last ones end.
    offsets: Py<PyAny>,
    /// Token ids (u32).
    ids: Py<PyAny>,
    /// Log-probabilities (f32).
    logprobs: Py<PyAny>,
    /// Weight versions (i32).
    versions: Py<PyAny>,
    /// Flags (u8).
    flags: Py<PyAny>,
    /// Per node its id in the index (u32).
    nodes: Py<PyAny>,
}

impl PrefixColumns {
    fn new(py: Python<'_>, columns: core::PrefixColumns) -> PyResult<Self> {
        let nodes: Vec<u32> = columns.nodes.into_iter().map(PrefixId::get).collect();
        Ok(Self {
            parents: view(py, &columns.parents)?.unbind(),
            leaves: view(py, &columns.leaves)?.unbind(),
            offsets: view(py, &columns.offsets)?.unbind(),
            ids: view(py, &columns.tokens.ids)?.unbind(),
            logprobs: view(py, &columns.tokens.logprobs)?.unbind(),
            versions: view(py, &columns.tokens.versions)?.unbind(),
            flags: view(py, &columns.tokens.flags)?.unbind(),
            nodes: view(py, &nodes)?.unbind(),
        })
    }
}

/// How far some ids are in an index.
#[pyclass(frozen, get_all, module = "trunkline._core")]
pub struct PrefixMatch {
    /// The last node of which something matches.
    node: u32,
    /// How many of the ids match in all.
    matched: usize,
    /// How many tokens of the node match.
    offset: usize,
}

#[pymethods]
impl PrefixMatch {
    fn __repr__(&self) -> String {
        format!("<PrefixMatch: {} tokens, to token {} of node {}>", self.matched, self.offset, self.node)
    }
}

/// One node, as it was when it was read.
#[pyclass(frozen, get_all, module = "trunkline._core")]
pub struct PrefixNode {
    /// The node before; a root's is itself.
    parent: u32,
    /// The space it is in.
    space: u32,
    /// How many tokens are its own.
    len: usize,
    /// Tokens from the root to its end.
    depth: usize,
    /// Of its own tokens, how many were sampled.
    generated: u32,
    /// Paths through it, those that end there among them.
    passes: u32,
    /// Paths that end there.
    ends: u32,
}

#[pymethods]
impl PrefixNode {
    fn __repr__(&self) -> String {
        format!("<PrefixNode: {} tokens to depth {}, {} paths>", self.len, self.depth, self.passes)
    }
}

/// What sharing saves, in tokens.
#[pyclass(frozen, get_all, module = "trunkline._core")]
pub struct Reuse {
    /// Paths counted.
    paths: u64,
    /// Tokens of every path.
    flat: u64,
    /// Tokens stored.
    unique: u64,
    /// Of `flat`, what was sampled.
    flat_generated: u64,
    /// Of `unique`, what was sampled.
    unique_generated: u64,
    /// Tokens of the longest path.
    longest: u64,
    /// `1 - unique / flat`.
    ratio: f64,
    /// `flat / unique`.
    ideal: f64,
    /// The same of what was sampled.
    ideal_generated: f64,
}

impl From<core::Reuse> for Reuse {
    fn from(reuse: core::Reuse) -> Self {
        let (ratio, ideal, ideal_generated) = (reuse.ratio(), reuse.ideal(), reuse.ideal_generated());
        let core::Reuse { paths, flat, unique, flat_generated, unique_generated, longest } = reuse;
        Self { paths, flat, unique, flat_generated, unique_generated, longest, ratio, ideal, ideal_generated }
    }
}

#[pymethods]
impl Reuse {
    fn __repr__(&self) -> String {
        format!("<Reuse: {} paths, {} tokens stored as {}>", self.paths, self.flat, self.unique)
    }
}
