//! Taking arguments apart.

use std::ops::Deref;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::error::refine;

/// A number that fits; one that does not is an `ArgumentError`.
pub fn number<'py, T>(value: &Bound<'py, PyAny>) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    let text = "a number is out of range: ids and counts are 0 to 4294967295";
    value.extract().map_err(|error| refine(value.py(), error, text))
}

/// An argument that is a `u16`, a `u32` or a `u64`; one that does not fit is an `ArgumentError`.
#[derive(Clone, Copy)]
pub struct Unsigned<T>(pub T);

impl<'py, T> FromPyObject<'_, 'py> for Unsigned<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let most = u64::MAX >> (64 - 8 * size_of::<T>());
        let text = || format!("a number is out of range: it must be 0 to {most}");
        value.extract().map(Self).map_err(|error| refine(value.py(), error, &text()))
    }
}

/// Ids, from any sequence of them. A list, which it mostly is, is read without asking it how.
pub fn numbers(value: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    let Ok(list) = value.cast::<PyList>() else { return number(value) };
    let mut ids = Vec::with_capacity(list.len());
    for item in list {
        ids.push(number(&item)?);
    }
    Ok(ids)
}

/// A string that UTF-8 can hold.
#[derive(Clone, Copy)]
pub struct Text<'a>(&'a str);

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        self.0
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Text<'a> {
    type Error = PyErr;

    fn extract(value: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let text = "a string holds lone surrogates and cannot be written as UTF-8";
        value.extract().map(Self).map_err(|error| refine(value.py(), error, text))
    }
}

/// Bytes from anything with a buffer: those of a `bytes` object as they are, of anything else a copy, because another
/// thread could change it.
pub enum Data<'a> {
    /// Of an immutable object.
    Borrowed(&'a [u8]),
    /// Copied.
    Owned(Vec<u8>),
}

impl Deref for Data<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }
}

impl<'a> Data<'a> {
    /// Bytes of a `bytes` object as they are, of anything else a copy in memory that is used again.
    pub fn copied(value: &'a Bound<'_, PyAny>, memory: &'a mut Vec<u8>) -> PyResult<&'a [u8]> {
        if let Ok(bytes) = value.cast::<PyBytes>() {
            return Ok(bytes.as_bytes());
        }
        let py = value.py();
        let copy = PyBuffer::<u8>::get(value).and_then(|buffer| {
            let len = buffer.item_count();
            if memory.len() < len {
                memory.resize(len, 0);
            }
            let (copy, _) = memory.split_at_mut(len);
            buffer.copy_to_slice(py, copy).map(|()| &*copy)
        });
        copy.map_err(|error| refine(py, error, PLAIN))
    }
}

const PLAIN: &str = "a buffer must hold plain bytes";

impl<'a, 'py> FromPyObject<'a, 'py> for Data<'a> {
    type Error = PyErr;

    fn extract(value: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if value.is_instance_of::<PyBytes>() {
            return value.extract().map(Self::Borrowed).map_err(PyErr::from);
        }
        let copy = PyBuffer::<u8>::get(&value).and_then(|buffer| buffer.to_vec(value.py()));
        copy.map(Self::Owned).map_err(|error| refine(value.py(), error, PLAIN))
    }
}
