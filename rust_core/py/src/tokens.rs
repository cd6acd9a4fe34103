//! `TokenBuffer`.

use pyo3::prelude::*;
use trunkline_core as core;
use trunkline_core::{SAMPLED, TokenSlice, Uncertainty};

use crate::buffer::{Column, view};
use crate::error::raise;

/// A run of tokens in four columns, and how sure the model was of them.
#[pyclass(frozen, module = "trunkline._core")]
pub struct TokenBuffer {
    /// The columns.
    pub tokens: core::TokenBuffer,
    /// By region.
    pub uncertainty: Uncertainty,
}

#[pymethods]
impl TokenBuffer {
    #[new]
    #[pyo3(signature = (ids, logprobs=None, versions=None, flags=None))]
    fn new(
        py: Python<'_>,
        ids: Column<u32>,
        logprobs: Option<Column<f32>>,
        versions: Option<Column<i32>>,
        flags: Option<Column<u8>>,
    ) -> PyResult<Self> {
        let len = ids.len();
        // Tokens with log-probabilities were sampled unless the caller says otherwise.
        let flag = if logprobs.is_some() { SAMPLED } else { 0 };
        let tokens = core::TokenBuffer {
            ids: ids.into_inner(),
            logprobs: logprobs.map_or_else(|| vec![0.0; len], Column::into_inner),
            versions: versions.map_or_else(|| vec![-1; len], Column::into_inner),
            flags: flags.map_or_else(|| vec![flag; len], Column::into_inner),
        };
        TokenSlice::new(&tokens.ids, &tokens.logprobs, &tokens.versions, &tokens.flags)
            .map_err(|error| raise(py, &error))?;
        Ok(Self { tokens, uncertainty: Uncertainty::UNKNOWN })
    }

    /// Token ids (u32).
    #[getter]
    fn ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        view(py, &self.tokens.ids)
    }

    /// Log-probabilities (f32) in nats; 0 where not sampled, NaN where not known.
    #[getter]
    fn logprobs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        view(py, &self.tokens.logprobs)
    }

    /// Weight version (i32) that sampled a token; -1 where not sampled or not known.
    #[getter]
    fn versions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        view(py, &self.tokens.versions)
    }

    /// Flags (u8): `SAMPLED`, `SYNTHETIC`, `TRUNCATED`.
    #[getter]
    fn flags<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        view(py, &self.tokens.flags)
    }

    /// Mean entropy in nats of the regions think, tool and all; NaN where not known.
    #[getter]
    fn entropy(&self) -> (f32, f32, f32) {
        self.uncertainty.entropy.into()
    }

    /// Perplexity of the regions think, tool and all; NaN where not known.
    #[getter]
    fn perplexity(&self) -> (f32, f32, f32) {
        self.uncertainty.perplexity.into()
    }

    fn __len__(&self) -> usize {
        self.tokens.ids.len()
    }

    fn __repr__(&self) -> String {
        format!("<TokenBuffer: {}>", self.tokens.ids.len())
    }
}
