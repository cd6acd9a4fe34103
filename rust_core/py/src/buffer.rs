//! Columns across the boundary: little-endian numbers through the buffer protocol, in both directions.
//!
//! What comes in is copied, because another thread could change it while the core reads it. What goes out is a read-only
//! `memoryview` with a format, which numpy, torch and `array` all take without a copy.

use std::ops::Deref;

use pyo3::buffer::{Element, PyBuffer, PyUntypedBuffer};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};
use trunkline_core::Error;

use crate::error::{raise, refine};

/// A number that columns are made of.
pub trait Cell: Element + Copy {
    /// What `memoryview.format` calls it.
    const FORMAT: &'static str;
    /// What people call it.
    const NAME: &'static str;
    /// Write it at the start of `out`.
    fn put(self, out: &mut [u8]);
}

macro_rules! cells {
    ($($number:ty: $format:literal, $name:literal;)*) => {
        $(impl Cell for $number {
            const FORMAT: &'static str = $format;
            const NAME: &'static str = $name;

            fn put(self, out: &mut [u8]) {
                out.copy_from_slice(&self.to_le_bytes());
            }
        })*
    };
}

cells! {
    u8: "B", "uint8";
    u32: "I", "uint32";
    i32: "i", "int32";
    u64: "Q", "uint64";
    f32: "f", "float32";
    f64: "d", "float64";
}

/// A column from Python: anything with a one-dimensional buffer of the right type, or as a convenience a sequence.
pub struct Column<T>(Vec<T>);

impl<T> Column<T> {
    /// The numbers.
    pub fn into_inner(self) -> Vec<T> {
        self.0
    }
}

impl<T> Deref for Column<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<'py, T> FromPyObject<'_, 'py> for Column<T>
where
    T: Cell + for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let py = value.py();
        let Ok(untyped) = PyUntypedBuffer::get(&value) else {
            let text = format!("a number in a column of {} is out of range", T::NAME);
            return value.extract().map(Self).map_err(|error| refine(py, error, &text));
        };
        let refuse = |found: String| {
            let value = format!("a column has {found}");
            raise(py, &Error::Value { value, want: T::NAME })
        };
        if untyped.dimensions() != 1 {
            return Err(refuse(format!("{} dimensions", untyped.dimensions())));
        }
        // numpy's masks are bool, one byte each.
        if T::FORMAT == "B" && untyped.format() == c"?" {
            let bytes = PyMemoryView::from(&value)?.call_method1("cast", ("B",))?;
            return PyBuffer::<T>::get(&bytes)?.to_vec(py).map(Self);
        }
        match PyBuffer::<T>::get(&value) {
            Ok(buffer) => buffer.to_vec(py).map(Self),
            // An empty array has no address, which PyO3 takes for damage.
            Err(_) if untyped.item_count() == 0 && untyped.item_size() == size_of::<T>() => Ok(Self(Vec::new())),
            Err(_) => Err(refuse(format!("the format {:?}", untyped.format().to_string_lossy()))),
        }
    }
}

/// A read-only `memoryview` over a copy of a column.
pub fn view<'py, T: Cell>(py: Python<'py>, column: &[T]) -> PyResult<Bound<'py, PyAny>> {
    let bytes = PyBytes::new_with(py, size_of_val(column), |out| {
        for (slot, &number) in out.chunks_exact_mut(size_of::<T>()).zip(column) {
            number.put(slot);
        }
        Ok(())
    })?;
    PyMemoryView::from(&bytes)?.call_method1("cast", (T::FORMAT,))
}
