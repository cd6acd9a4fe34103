//! `read_reply`, `ParsedReply` and `ParsedChoice`.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use trunkline_core::reply::{self, Entropy, Form, Tags, UsageCounts};
use trunkline_core::{Keyword, Result};

use crate::buffer::view;
use crate::error::raise;
use crate::guard::call;
use crate::input::{Data, Text, number};
use crate::tokens::TokenBuffer;

/// Bytes from which on reading takes tens of microseconds.
const LARGE: usize = 1 << 14;

/// Read the body of a completion.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "they are options by keyword")]
#[pyo3(
    signature = (data, /, *, form="chat", entropy="consistent", top=None, version=-1, think=None, tool=None, max_tokens=None),
    text_signature = "(data, /, *, form='chat', entropy='consistent', top=None, version=-1, think=None, tool=None, max_tokens=None)"
)]
pub fn read_reply(
    py: Python<'_>,
    data: Data<'_>,
    form: &str,
    entropy: &str,
    top: Option<Bound<'_, PyAny>>,
    #[pyo3(from_py_with = number)] version: i32,
    think: Option<(Text<'_>, Text<'_>)>,
    tool: Option<(Text<'_>, Text<'_>)>,
    max_tokens: Option<Bound<'_, PyAny>>,
) -> PyResult<ParsedReply> {
    let top = top.as_ref().map(number).transpose()?;
    let max_tokens = max_tokens.as_ref().map(number).transpose()?;
    let options = options(form, entropy, top, version, think, tool, max_tokens).map_err(|error| raise(py, &error))?;
    let found = read(py, &data, &options)?;
    let choices =
        found.choices.into_iter().map(|choice| ParsedChoice::new(py, choice)).collect::<PyResult<Vec<_>>>()?;
    Ok(ParsedReply {
        choices: PyTuple::new(py, choices)?.unbind(),
        counts: found.counts,
        served: found.served,
        estimated: found.estimated,
        prompt_ids: found.prompt_ids,
    })
}

/// How replies are read, checked once.
#[pyclass(frozen, module = "trunkline._core")]
pub struct ReplyOptions(pub reply::ReplyOptions);

#[pymethods]
impl ReplyOptions {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "they are options by keyword")]
    #[pyo3(
        signature = (*, form="chat", entropy="consistent", top=None, version=-1, ids=true, think=None, tool=None, max_tokens=None),
        text_signature = "(*, form='chat', entropy='consistent', top=None, version=-1, ids=True, think=None, tool=None, max_tokens=None)"
    )]
    fn new(
        py: Python<'_>,
        form: &str,
        entropy: &str,
        top: Option<Bound<'_, PyAny>>,
        #[pyo3(from_py_with = number)] version: i32,
        ids: bool,
        think: Option<(Text<'_>, Text<'_>)>,
        tool: Option<(Text<'_>, Text<'_>)>,
        max_tokens: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let top = top.as_ref().map(number).transpose()?;
        let max_tokens = max_tokens.as_ref().map(number).transpose()?;
        let options =
            options(form, entropy, top, version, think, tool, max_tokens).map_err(|error| raise(py, &error))?;
        Ok(Self(reply::ReplyOptions { ids, ..options }))
    }
}

/// Read a body, and let other threads run meanwhile if it is large.
pub fn read(py: Python<'_>, data: &Data<'_>, options: &reply::ReplyOptions) -> PyResult<reply::ParsedReply> {
    call(py, data.len() >= LARGE, || Ok(reply::read(data, options)?))
}

fn options(
    form: &str,
    entropy: &str,
    top: Option<u32>,
    version: i32,
    think: Option<(Text<'_>, Text<'_>)>,
    tool: Option<(Text<'_>, Text<'_>)>,
    max_tokens: Option<u32>,
) -> Result<reply::ReplyOptions> {
    let tags = |pair: (Text<'_>, Text<'_>)| Tags::new(&*pair.0, &*pair.1);
    let options = reply::ReplyOptions {
        form: Form::from_word(form)?,
        entropy: Entropy::from_word(entropy)?,
        top: top.map_or(usize::MAX, |top| top as usize),
        version,
        ids: true,
        think: think.map_or_else(|| Ok(Tags::think()), tags)?,
        tool: tool.map_or_else(|| Ok(Tags::tool()), tags)?,
        max_tokens,
    };
    options.check()?;
    Ok(options)
}

/// What a reply says.
#[pyclass(frozen, module = "trunkline._core")]
pub struct ParsedReply {
    #[pyo3(get)]
    choices: Py<PyTuple>,
    #[pyo3(get)]
    served: String,
    #[pyo3(get)]
    estimated: u32,
    counts: UsageCounts,
    prompt_ids: Option<Vec<u32>>,
}

#[pymethods]
impl ParsedReply {
    /// Tokens of the prompt.
    #[getter]
    const fn prompt(&self) -> Option<u32> {
        self.counts.prompt
    }

    /// Of these, cached ones.
    #[getter]
    const fn cached(&self) -> Option<u32> {
        self.counts.cached
    }

    /// Tokens of all choices.
    #[getter]
    const fn generated(&self) -> Option<u32> {
        self.counts.generated
    }

    /// Of these, tokens of reasoning.
    #[getter]
    const fn reasoning(&self) -> Option<u32> {
        self.counts.reasoning
    }

    /// Token ids of the prompt (u32), or None.
    #[getter]
    fn prompt_ids<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.prompt_ids.as_ref().map(|ids| view(py, ids)).transpose()
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!("<ParsedReply: {} choices>", self.choices.bind_borrowed(py).as_any().len().unwrap_or_default())
    }
}

/// One completion.
#[pyclass(frozen, module = "trunkline._core")]
pub struct ParsedChoice {
    inner: reply::ParsedChoice,
    /// Those of the choice, made once.
    tokens: Py<TokenBuffer>,
    #[pyo3(get)]
    has_ids: bool,
    #[pyo3(get)]
    aligned: bool,
}

impl ParsedChoice {
    fn new(py: Python<'_>, mut choice: reply::ParsedChoice) -> PyResult<Self> {
        let (has_ids, aligned, uncertainty) = (choice.tokens.is_some(), choice.is_aligned(), choice.uncertainty());
        let tokens = TokenBuffer { tokens: choice.tokens.take().unwrap_or_default(), uncertainty };
        Ok(Self { inner: choice, tokens: Py::new(py, tokens)?, has_ids, aligned })
    }
}

#[pymethods]
impl ParsedChoice {
    /// Its number.
    #[getter]
    const fn index(&self) -> u32 {
        self.inner.index
    }

    /// Who speaks.
    #[getter]
    fn role(&self) -> &str {
        &self.inner.message.role
    }

    /// The visible text.
    #[getter]
    fn content(&self) -> &str {
        self.inner.message.text()
    }

    /// Why the model would not answer.
    #[getter]
    fn refusal(&self) -> Option<&str> {
        self.inner.message.refusal.as_deref()
    }

    /// What it thought beside the text.
    #[getter]
    fn reasoning(&self) -> Option<&str> {
        self.inner.message.reasoning.as_deref()
    }

    /// Its calls as (id, name, arguments).
    #[getter]
    fn tool_calls(&self) -> Vec<(&str, &str, &str)> {
        self.inner.message.tool_calls.iter().map(|call| (&*call.id, &*call.name, &*call.arguments)).collect()
    }

    /// Why it ended.
    #[getter]
    fn finish(&self) -> &str {
        &self.inner.finish
    }

    /// Its tokens; none where the server gave no ids.
    #[getter]
    const fn tokens(&self) -> &Py<TokenBuffer> {
        &self.tokens
    }

    /// Log-probabilities (f32), or None.
    #[getter]
    fn logprobs<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.inner.listed.as_ref().map(|listed| view(py, &listed.logprobs)).transpose()
    }

    /// Entropies (f32), or None.
    #[getter]
    fn entropies<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.inner.listed.as_ref().map(|listed| view(py, &listed.entropies)).transpose()
    }

    /// The uncertainty of ARPO.
    #[pyo3(signature = (vocabulary, /))]
    fn arpo(&self, #[pyo3(from_py_with = number)] vocabulary: u32) -> f64 {
        self.inner.listed.as_ref().map_or(f64::NAN, |listed| listed.arpo.over(vocabulary))
    }

    /// The message for the history.
    #[pyo3(signature = (turn, /))]
    fn message<'py>(&self, py: Python<'py>, #[pyo3(from_py_with = number)] turn: u32) -> PyResult<Bound<'py, PyBytes>> {
        let message = call(py, false, || self.inner.message.canonical(turn))?;
        Ok(PyBytes::new(py, &message))
    }

    fn __repr__(&self) -> String {
        let (calls, length) = (self.inner.message.tool_calls.len(), self.inner.message.text().chars().count());
        format!("<ParsedChoice {}: {:?}, {length} characters, {calls} tool calls>", self.inner.index, self.inner.finish)
    }
}
