//! Rows of cells across the boundary, whatever the cells are.

use pyo3::buffer::{PyBuffer, PyUntypedBuffer};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyMemoryView, PySlice};

use crate::error::{argument, refine};

/// Bytes of a row from which on it is cheaper to copy rows one by one than to copy all of them at once.
const WIDE: usize = 2048;

/// One row a lane: a contiguous buffer of one or two dimensions, of which the first counts lanes.
pub struct Rows<'py> {
    // A memoryview of plain bytes; None where there is no cell, which `memoryview` cannot cast.
    bytes: Option<Bound<'py, PyAny>>,
    format: String,
    /// Bytes of a cell.
    pub cell: usize,
    count: usize,
    columns: Option<usize>,
}

impl<'py> FromPyObject<'_, 'py> for Rows<'py> {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let py = value.py();
        let buffer = PyUntypedBuffer::get(&value);
        let buffer = buffer.map_err(|error| refine(py, error, "rows have no dimension; 1 or 2 are needed"))?;
        let (count, columns) = match *buffer.shape() {
            [count] => (count, None),
            [_, 0] => return Err(argument(py, "rows have no cells; 1 or more are needed")),
            [count, columns] => (count, Some(columns)),
            ref shape => return Err(argument(py, &format!("rows have {} dimensions; 1 or 2 are needed", shape.len()))),
        };
        if !buffer.is_c_contiguous() {
            return Err(argument(py, "rows lie apart in memory; a C-contiguous buffer is needed"));
        }
        let format = buffer.format().to_string_lossy().into_owned();
        let mut bytes = None;
        if buffer.item_count() > 0 {
            let plain = PyMemoryView::from(&value)?.call_method1("cast", ("B",));
            bytes = Some(plain.map_err(|_| foreign(py, &format))?);
        }
        Ok(Self { bytes, format, cell: buffer.item_size(), count, columns })
    }
}

impl<'py> Rows<'py> {
    /// Refuse any other number of rows.
    pub fn expect(&self, py: Python<'py>, need: usize) -> PyResult<()> {
        let text = || format!("{} rows where {need} are needed", self.count);
        if self.count == need { Ok(()) } else { Err(argument(py, &text())) }
    }

    /// The bytes of all rows.
    pub fn all(&self, py: Python<'py>) -> PyResult<Vec<u8>> {
        self.bytes.as_ref().map_or(Ok(Vec::new()), |bytes| PyBuffer::get(bytes)?.to_vec(py))
    }

    /// Copy rows one by one, without touching the others, if they are wide enough for that.
    pub fn pick(&self, py: Python<'py>, lanes: &[u32], out: &mut [u8]) -> PyResult<bool> {
        let width = self.cell.saturating_mul(self.columns.unwrap_or(1));
        let Some(bytes) = self.bytes.as_ref().filter(|_| width >= WIDE) else { return Ok(false) };
        for (slot, &lane) in out.chunks_exact_mut(width).zip(lanes) {
            let start = (lane as usize * width).cast_signed();
            let row = bytes.get_item(PySlice::new(py, start, start + width.cast_signed(), 1))?;
            PyBuffer::<u8>::get(&row)?.copy_to_slice(py, slot)?;
        }
        Ok(true)
    }

    /// The bytes of a cell that holds `fill`.
    pub fn pack(&self, fill: &Bound<'py, PyAny>) -> PyResult<Vec<u8>> {
        static PACK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = fill.py();
        let packed = PACK.import(py, "struct", "pack")?.call1((&self.format, fill));
        let text = || format!("the fill does not fit cells of format {:?}", self.format);
        packed.map_err(|_| argument(py, &text()))?.extract()
    }

    /// `count` rows of the same format and number of dimensions, whose bytes `write` puts down: a read-only `memoryview`.
    pub fn build(
        &self,
        py: Python<'py>,
        count: usize,
        write: impl FnOnce(&mut [u8]) -> PyResult<()>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let size = count.checked_mul(self.columns.unwrap_or(1)).and_then(|cells| cells.checked_mul(self.cell));
        let size = size.ok_or_else(|| argument(py, "rows of more bytes than there can be memory"))?;
        let cast = |bytes: Bound<'py, PyBytes>, rows| {
            let view = PyMemoryView::from(&bytes)?;
            match self.columns {
                Some(columns) => view.call_method1("cast", (&self.format, [rows, columns])),
                None => view.call_method1("cast", (&self.format,)),
            }
        };
        if count > 0 {
            return cast(PyBytes::new_with(py, size, write)?, count).map_err(|_| foreign(py, &self.format));
        }
        // A view cannot be cast into no rows, but it can be cut to none.
        let one = PyBytes::new_with(py, self.cell * self.columns.unwrap_or(1), |_| Ok(()))?;
        cast(one, 1).map_err(|_| foreign(py, &self.format))?.get_item(PySlice::new(py, 0, 0, 1))
    }
}

fn foreign(py: Python<'_>, format: &str) -> PyErr {
    let text = "one native number a cell is needed; view other cells as integers of their size";
    argument(py, &format!("rows have the format {format:?}; {text}"))
}
