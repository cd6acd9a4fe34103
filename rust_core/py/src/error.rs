//! Errors of the core become `trunkline.errors.TreeError`.

use std::fmt::Display;

use pyo3::exceptions::{PyBufferError, PyOverflowError, PyUnicodeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// A `TreeError` with this text, or the error that kept its class from being imported.
pub fn raise(py: Python<'_>, error: impl Display) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    match CLASS.import(py, "trunkline.errors", "TreeError") {
        Ok(class) => PyErr::from_type(class.clone(), (error.to_string(),)),
        Err(failed) => failed,
    }
}

/// An argument of the right type whose value the core cannot take is a `TreeError` too; a wrong type stays a `TypeError`.
pub fn refine(py: Python<'_>, error: PyErr, text: &str) -> PyErr {
    let ours = error.is_instance_of::<PyOverflowError>(py)
        || error.is_instance_of::<PyUnicodeError>(py)
        || error.is_instance_of::<PyBufferError>(py);
    if ours { raise(py, text) } else { error }
}
