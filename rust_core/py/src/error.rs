//! Errors of the core become those of `trunkline.errors`.

use pyo3::PyErrArguments;
use pyo3::exceptions::{PyBufferError, PyOverflowError, PyUnicodeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use trunkline_core::Error;
use trunkline_core::reply::ReplyError;

/// The error of ours that an error of the core becomes.
pub fn raise(py: Python<'_>, error: &Error) -> PyErr {
    static TREE: Class = Class::new();
    match error {
        Error::Reply(reply) => unreadable(py, reply),
        Error::Length { .. } | Error::Value(_) | Error::Lane { .. } | Error::LaneFinished { .. } => {
            argument(py, &error.to_string())
        }
        _ => make(py, &TREE, "TreeError", (error.to_string(),)),
    }
}

/// An `ArgumentError`: a value or a column that the core cannot work with.
pub fn argument(py: Python<'_>, text: &str) -> PyErr {
    static ARGUMENT: Class = Class::new();
    make(py, &ARGUMENT, "ArgumentError", (text.to_owned(),))
}

/// A `ReplyError`: bytes that are no chat completion, and where.
fn unreadable(py: Python<'_>, error: &ReplyError) -> PyErr {
    static REPLY: Class = Class::new();
    make(py, &REPLY, "ReplyError", (error.to_string(), error.offset))
}

/// A `CoreError`: something that should not have happened.
pub fn broken(py: Python<'_>, text: &str) -> PyErr {
    static CORE: Class = Class::new();
    make(py, &CORE, "CoreError", (text.to_owned(),))
}

/// An argument of the right type whose value the core cannot take is one of our errors; a wrong type stays a `TypeError`.
pub fn refine(py: Python<'_>, error: PyErr, text: &str) -> PyErr {
    let ours = error.is_instance_of::<PyOverflowError>(py)
        || error.is_instance_of::<PyUnicodeError>(py)
        || error.is_instance_of::<PyBufferError>(py);
    if ours { argument(py, text) } else { error }
}

type Class = PyOnceLock<Py<PyType>>;

/// An error of this class, or the error that kept its class from being imported.
fn make(py: Python<'_>, class: &Class, name: &str, arguments: impl PyErrArguments + 'static) -> PyErr {
    match class.import(py, "trunkline.errors", name) {
        Ok(class) => PyErr::from_type(class.clone(), arguments),
        Err(failed) => failed,
    }
}
