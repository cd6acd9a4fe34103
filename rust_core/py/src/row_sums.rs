//! Checksums of rows of a run file, and the rows of finished tasks, which hold theirs.

use std::iter::once;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use trunkline_core::RowSum;

use crate::input::Text;

/// The checksum of a row's values, continued from the rows before it.
fn continued<'py>(before: u32, values: impl ExactSizeIterator<Item = Bound<'py, PyAny>>) -> PyResult<u32> {
    let mut sum = RowSum::row(before, values.len());
    for value in values {
        if let Ok(whole) = value.cast::<PyInt>() {
            sum.whole(whole.extract()?);
        } else if value.is_none() {
            sum.null();
        } else if value.cast::<PyString>().is_ok() {
            sum.text(&value.extract::<Text<'_>>()?);
        } else if let Ok(real) = value.cast::<PyFloat>() {
            sum.real(real.value());
        } else if let Ok(bytes) = value.cast::<PyBytes>() {
            sum.blob(bytes.as_bytes());
        } else if let Ok(bytes) = value.cast::<PyByteArray>() {
            sum.blob(&bytes.to_vec());
        } else {
            return Err(PyTypeError::new_err(format!("a row of a run file has no {}", value.get_type().name()?)));
        }
    }
    Ok(sum.sum())
}

/// The checksum of some rows, each a tuple or a list of values as `SQLite` returns them, continued from the rows before.
#[pyfunction]
#[pyo3(signature = (rows, before=0, /))]
pub fn checksum(rows: &Bound<'_, PyAny>, before: u32) -> PyResult<u32> {
    let mut found = before;
    for row in rows.try_iter()? {
        let row = row?;
        found = match row.cast::<PyTuple>() {
            Ok(values) => continued(found, values.iter())?,
            Err(_) => continued(found, row.cast::<PyList>()?.iter())?,
        };
    }
    Ok(found)
}

type Tuples<'py> = Vec<Bound<'py, PyTuple>>;
type Finished<'py> = (Bound<'py, PyAny>, Bound<'py, PyList>, Vec<Bound<'py, PyList>>);

/// The rows of finished tasks in `trees` and in `rollouts`, as they are bound: `SQLite` stores NaN as NULL, and `sqlite3`
/// looks for an adapter of None each time. `sums` are of each task's calls and tool calls; `taken` has rows that were
/// taken over, by task.
#[pyfunction]
#[pyo3(signature = (finished, sums, taken, /))]
pub fn finished_rows<'py>(
    py: Python<'py>,
    finished: Vec<Finished<'py>>,
    sums: Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>,
    taken: &Bound<'py, PyDict>,
) -> PyResult<(Tuples<'py>, Tuples<'py>)> {
    let null = PyFloat::new(py, f64::NAN).into_any();
    let bound = |value: Bound<'py, PyAny>| if value.is_none() { null.clone() } else { value };
    let (mut trees, mut rollouts) = (Vec::with_capacity(finished.len()), Vec::new());
    for ((task, tree, own), (calls, tools)) in finished.into_iter().zip(sums) {
        let mut sum = continued(0, tree.iter())?;
        if let Some(rows) = taken.get_item(&task)? {
            sum = checksum(&rows, sum)?;
        }
        for row in own {
            sum = continued(sum, row.iter())?;
            let values: Vec<_> = once(task.clone()).chain(row.iter().map(bound)).collect();
            rollouts.push(PyTuple::new(py, values)?);
        }
        let sums = [sum.into_pyobject(py)?.into_any(), calls, tools];
        let values: Vec<_> = once(task).chain(tree.iter().chain(sums).map(bound)).collect();
        trees.push(PyTuple::new(py, values)?);
    }
    Ok((trees, rollouts))
}

fn begun(sums: &Bound<'_, PyDict>, task: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
    sums.get_item(task)?.map(|sum| sum.extract()).transpose()
}

/// Continue the checksum of each row's task, which is the first of its values, with the others. Returns the tasks of rows
/// that are not in the dict.
#[pyfunction]
#[pyo3(signature = (rows, sums, /))]
pub fn chain_sums<'py>(rows: Vec<Bound<'py, PyTuple>>, sums: &Bound<'py, PyDict>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let mut missing = Vec::new();
    for row in rows {
        let mut values = row.iter();
        let Some(task) = values.next() else { continue };
        match begun(sums, &task)? {
            Some(before) => sums.set_item(task, continued(before, values)?)?,
            None => missing.push(task),
        }
    }
    Ok(missing)
}

/// Add the checksum of the first values of each row, so many, to that of its task, which is the first of them; modulo 2**32.
#[pyfunction]
#[pyo3(signature = (rows, columns, sums, /))]
pub fn add_sums(rows: Vec<Bound<'_, PyTuple>>, columns: usize, sums: &Bound<'_, PyDict>) -> PyResult<()> {
    for row in rows {
        let task = row.get_item(0)?;
        let before = begun(sums, &task)?.unwrap_or_default();
        let sum = continued(0, row.get_slice(0, columns).iter())?;
        sums.set_item(task, before.wrapping_add(sum))?;
    }
    Ok(())
}
