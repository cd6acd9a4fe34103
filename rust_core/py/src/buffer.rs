//! Columns across the boundary: little-endian numbers through the buffer protocol, in both directions.
//!
//! What comes in is copied, because another thread could change it while the core reads it. What goes out is a
//! `memoryview` with a format over memory of its own, which numpy, torch and `array` all take without a copy.

use pyo3::buffer::{Element, PyBuffer, PyUntypedBuffer};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyMemoryView};
use std::ops::Deref;

use crate::error::{argument, refine};

/// A number that columns are made of.
pub trait Cell: Element + Copy {
    /// What `memoryview.format` calls it.
    const FORMAT: &'static str;
    /// What numpy calls it.
    const NAME: &'static str;
    /// Write a column as bytes.
    fn write(column: &[Self], out: &mut [u8]);
}

macro_rules! cells {
    ($($number:ty: $format:literal, $name:literal;)*) => {
        $(impl Cell for $number {
            const FORMAT: &'static str = $format;
            const NAME: &'static str = $name;

            fn write(column: &[Self], out: &mut [u8]) {
                for (slot, number) in out.as_chunks_mut().0.iter_mut().zip(column) {
                    *slot = number.to_le_bytes();
                }
            }
        })*
    };
}

cells! {
    u8: "B", "uint8";
    u32: "I", "uint32";
    i32: "i", "int32";
    u64: "Q", "uint64";
    i64: "q", "int64";
    f32: "f", "float32";
    f64: "d", "float64";
}

/// What a buffer holds, by its format as the `struct` module writes it.
struct CellFormat<'f> {
    format: &'f [u8],
    size: usize,
}

impl CellFormat<'_> {
    /// The letter of its type, and whether its bytes are in the order of this machine.
    fn letter(&self) -> Option<(u8, bool)> {
        match *self.format {
            [letter] | [b'@' | b'=', letter] => Some((letter, true)),
            [b'<', letter] => Some((letter, cfg!(target_endian = "little"))),
            [b'>' | b'!', letter] => Some((letter, cfg!(target_endian = "big"))),
            _ => None,
        }
    }

    /// Whether it holds what `T` is, byte for byte.
    fn is<T: Cell>(&self) -> bool {
        let same = |letter| !family(letter).is_empty() && T::NAME.starts_with(family(letter));
        self.size == size_of::<T>()
            && self.letter().is_some_and(|(letter, ours)| same(letter) && (ours || self.size == 1))
    }

    /// Whether it holds bools.
    fn is_mask(&self) -> bool {
        matches!(self.letter(), Some((b'?', _)))
    }

    /// What numpy calls it, where numpy has a name for it.
    fn name(&self) -> String {
        match self.letter() {
            Some((b'?', _)) => "bool".into(),
            Some((letter, ours)) if !family(letter).is_empty() => {
                let foreign = if cfg!(target_endian = "little") { "big-endian " } else { "little-endian " };
                let order = if ours || self.size == 1 { "" } else { foreign };
                format!("{order}{}{}", family(letter), 8 * self.size)
            }
            _ => format!("the format {:?}", beginning(&String::from_utf8_lossy(self.format))),
        }
    }
}

/// The family of numbers that a letter stands for; the size is another matter.
const fn family(letter: u8) -> &'static str {
    match letter {
        b'b' | b'h' | b'i' | b'l' | b'q' | b'n' => "int",
        b'c' | b'B' | b'H' | b'I' | b'L' | b'Q' | b'N' => "uint",
        b'e' | b'f' | b'd' | b'g' => "float",
        _ => "",
    }
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
        let buffer = match PyUntypedBuffer::get(&value) {
            Err(error) if error.is_instance_of::<PyTypeError>(py) => return sequence(value),
            // The arrays of ctypes leave out where the next number is, which `memoryview` knows.
            Err(_) => PyMemoryView::from(&value)
                .map_err(|error| unreadable::<T>(py, &error))
                .map(|view| PyUntypedBuffer::get(&view).ok())?,
            Ok(buffer) => Some(buffer),
        };
        // A single number has no shape, for which there is no buffer.
        let dimensions = buffer.as_ref().map_or(0, PyUntypedBuffer::dimensions);
        let Some(buffer) = buffer.filter(|_| dimensions == 1) else {
            let value = format!("a column of {} has {dimensions} dimensions", T::NAME);
            return Err(argument(py, &format!("{value}; it must be one-dimensional")));
        };
        let held = CellFormat { format: buffer.format().to_bytes(), size: buffer.item_size() };
        // A mask of numpy's is bool, one byte each.
        let mask = T::NAME == u8::NAME && held.is_mask();
        if !mask && !held.is::<T>() {
            let value = format!("a column holds {}", held.name());
            return Err(argument(py, &format!("{value}; it must be {}", T::NAME)));
        }
        // An empty array has no address, which PyO3 takes for damage.
        if buffer.item_count() == 0 {
            return Ok(Self(Vec::new()));
        }
        if let Ok(typed) = buffer.into_typed::<T>() {
            return typed.to_vec(py).map(Self);
        }
        // What PyO3 does not read: bools, numbers that are not aligned, a byte order that is spelled out.
        let bytes = PyMemoryView::from(&value)?.call_method0("tobytes")?;
        let plain = PyMemoryView::from(&bytes)?.call_method1("cast", (T::FORMAT,))?;
        PyBuffer::<T>::get(&plain)?.to_vec(py).map(Self)
    }
}

/// A column of what has no buffer.
fn sequence<'py, T>(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Column<T>>
where
    T: Cell + for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    let text = format!("a number in a column of {} is out of range", T::NAME);
    value.extract().map(Column).map_err(|error| refine(value.py(), error, &text))
}

/// What has a buffer for other types than its own.
fn unreadable<T: Cell>(py: Python<'_>, error: &PyErr) -> PyErr {
    let value = format!("a column of {} cannot be read ({})", T::NAME, error.value(py));
    argument(py, &format!("{value}; it must be an array of such numbers"))
}

/// A `memoryview` over a copy of a column. It can be written to: torch refuses or warns of memory that it must not change.
pub fn view<'py, T: Cell>(py: Python<'py>, column: &[T]) -> PyResult<Bound<'py, PyAny>> {
    let bytes = PyByteArray::new_with(py, size_of_val(column), |out| {
        T::write(column, out);
        Ok(())
    })?;
    PyMemoryView::from(&bytes)?.call_method1("cast", (T::FORMAT,))
}

/// Refuse a column that is not of this type, by the error that a function that takes it would give.
#[pyfunction]
#[pyo3(signature = (column, kind, /))]
pub fn check_column(column: &Bound<'_, PyAny>, kind: &str) -> PyResult<()> {
    match kind {
        "u8" => column.extract::<Column<u8>>().map(drop),
        "u32" => column.extract::<Column<u32>>().map(drop),
        "i32" => column.extract::<Column<i32>>().map(drop),
        "u64" => column.extract::<Column<u64>>().map(drop),
        "f32" => column.extract::<Column<f32>>().map(drop),
        _ => column.extract::<Column<f64>>().map(drop),
    }
}

/// An integer column as i64, which is what torch indexes with; any other column as it is.
#[pyfunction]
#[pyo3(signature = (column, /))]
pub fn to_i64<'py>(py: Python<'py>, column: &Bound<'py, PyMemoryView>) -> PyResult<Bound<'py, PyAny>> {
    fn widened<'py, T: Cell + Into<i64>>(column: &Bound<'py, PyMemoryView>) -> PyResult<Bound<'py, PyAny>> {
        let py = column.py();
        let read = PyBuffer::<T>::get(column)?.to_vec(py)?;
        view(py, &read.into_iter().map(Into::into).collect::<Vec<i64>>())
    }
    let format: String = column.getattr("format")?.extract()?;
    // An empty column has no address, which PyO3 takes for damage.
    if column.len()? == 0 {
        return if matches!(format.as_str(), "B" | "I" | "i" | "Q") {
            view::<i64>(py, &[])
        } else {
            Ok(column.clone().into_any())
        };
    }
    let flat = match format.as_str() {
        "B" => widened::<u8>(column)?,
        "I" => widened::<u32>(column)?,
        "i" => widened::<i32>(column)?,
        "Q" => {
            let read = PyBuffer::<u64>::get(column)?.to_vec(py)?;
            view(py, &read.into_iter().map(u64::cast_signed).collect::<Vec<i64>>())?
        }
        _ => return Ok(column.clone().into_any()),
    };
    let shape = column.getattr("shape")?;
    if shape.len()? == 1 {
        return Ok(flat);
    }
    flat.call_method1("cast", ("B",))?.call_method1("cast", (i64::FORMAT, shape))
}

/// A format as far as an error quotes it.
fn beginning(format: &str) -> String {
    format.chars().take(40).collect()
}
