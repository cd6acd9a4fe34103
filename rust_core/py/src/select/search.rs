//! `Search`.

use pyo3::prelude::*;
use trunkline_core::Forest;
use trunkline_core::select::{self, Formula, Scoring};

use crate::buffer::{Column, view};
use crate::guard::{Guard, call};
use crate::input::number;

use super::{LARGE, View, named, real};

/// A search over a forest: what is known of every node, and the picks in flight.
#[pyclass(frozen, module = "trunkline._core")]
pub struct Search(Guard<select::Search>);

#[pymethods]
impl Search {
    #[new]
    #[pyo3(signature = (parents, visits, values, *, leaves=None, in_flight=None, formula=Formula::Uct, c=1.0, offset=1.0,
                        loss=0.0))]
    #[pyo3(
        text_signature = "(parents, visits, values, *, leaves=None, in_flight=None, formula='uct', c=1.0, offset=1.0, \
                             loss=0.0)"
    )]
    #[expect(clippy::too_many_arguments, reason = "options are keywords in Python")]
    fn new(
        py: Python<'_>,
        parents: Column<u32>,
        visits: Column<u32>,
        values: Column<f64>,
        leaves: Option<Column<u32>>,
        in_flight: Option<Column<u32>>,
        #[pyo3(from_py_with = named)] formula: Formula,
        #[pyo3(from_py_with = real)] c: f64,
        #[pyo3(from_py_with = real)] offset: f64,
        #[pyo3(from_py_with = real)] loss: f64,
    ) -> PyResult<Self> {
        let in_flight = in_flight.map_or_else(|| vec![0; parents.len()], Column::into_inner);
        let scoring = Scoring { formula, c, offset, loss };
        let large = parents.len() > LARGE;
        let work = || {
            let forest = Forest::new(parents.into_inner(), leaves.map_or_else(Vec::new, Column::into_inner))?;
            select::Search::new(forest, visits.into_inner(), values.into_inner(), in_flight, scoring)
        };
        call(py, large, work).map(|search| Self(Guard::new(search)))
    }

    /// How each node rates against its siblings (f64); infinity for roots.
    fn scores<'py>(&self, py: Python<'py>) -> View<'py> {
        view(py, &self.0.with_long(py, large, |search| Ok(search.scores()))?)
    }

    /// Picks in flight through each node (u32).
    #[getter]
    fn in_flight<'py>(&self, py: Python<'py>) -> View<'py> {
        view(py, &self.0.with_long(py, large, |search| Ok(search.in_flight().to_vec()))?)
    }

    /// Nodes to expand, found by going down from `start`.
    #[pyo3(signature = (room, k, *, start=0))]
    fn descend<'py>(
        &self,
        py: Python<'py>,
        room: Column<u32>,
        #[pyo3(from_py_with = number)] k: u32,
        #[pyo3(from_py_with = number)] start: u32,
    ) -> View<'py> {
        view(py, &self.0.with_long(py, large, |search| search.descend(start, &room, k as usize))?)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.0.with(py, |search| Ok(search.in_flight().len()))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        self.0.with(py, |search| Ok(format!("<Search: {} nodes>", search.in_flight().len())))
    }
}

fn large(search: &select::Search) -> bool {
    search.in_flight().len() > LARGE
}
