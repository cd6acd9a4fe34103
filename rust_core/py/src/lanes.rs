//! `Lanes`, `LanePlan`, `LaneQueue` and `ActivityCounter`.

use pyo3::prelude::*;
use trunkline_core as core;

use crate::buffer::{Column, RowBuffer, view};
use crate::guard::{Guard, attached, call};
use crate::input::Unsigned;

/// Bytes from which on other threads run while rows are moved.
const LARGE: usize = 1 << 18;

/// A set of lanes 0..n-1 that can only shrink: termination is monotone.
#[pyclass(frozen, module = "trunkline._core")]
pub struct Lanes(Guard<core::Lanes>);

impl Lanes {
    /// A copy, so that combining two sets, or one with itself, never holds two locks.
    fn copy(&self, py: Python<'_>) -> PyResult<core::Lanes> {
        self.0.with(py, |lanes| Ok(lanes.clone()))
    }
}

#[pymethods]
impl Lanes {
    #[new]
    #[pyo3(signature = (n, /))]
    fn new(py: Python<'_>, n: Unsigned<u32>) -> PyResult<Self> {
        attached(py, || core::Lanes::new(n.0 as usize)).map(|lanes| Self(Guard::new(lanes)))
    }

    /// Take a lane out; raises if it is out already.
    #[pyo3(signature = (lane, /))]
    fn finish(&self, py: Python<'_>, lane: Unsigned<u32>) -> PyResult<()> {
        self.0.with(py, |lanes| lanes.finish(lane.0 as usize))
    }

    /// Take several lanes out, or none.
    #[pyo3(signature = (lanes, /))]
    fn finish_all(&self, py: Python<'_>, lanes: Column<u32>) -> PyResult<()> {
        self.0.with(py, |state| state.finish_all(&lanes))
    }

    /// Take out the lanes that a mask marks, and return how many were active.
    #[pyo3(signature = (done, /))]
    fn finish_where(&self, py: Python<'_>, done: Column<u8>) -> PyResult<usize> {
        self.0.with(py, |lanes| lanes.finish_where(&done))
    }

    /// Whether a lane is active.
    #[pyo3(signature = (lane, /))]
    fn active(&self, py: Python<'_>, lane: Unsigned<u32>) -> PyResult<bool> {
        self.0.with(py, |lanes| lanes.active(lane.0 as usize))
    }

    /// Active lanes (u32), ascending.
    fn ones<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut ones = Vec::new();
        self.0.with(py, |lanes| lanes.ones_into(&mut ones))?;
        view(py, &ones)
    }

    /// The rows of the lanes that are active now.
    fn plan(&self, py: Python<'_>) -> PyResult<LanePlan> {
        self.0.with(py, |lanes| lanes.plan()).map(LanePlan)
    }

    /// Lanes active in both; raises if the sizes differ.
    #[pyo3(signature = (other, /))]
    fn and_(&self, py: Python<'_>, other: &Self) -> PyResult<Self> {
        let other = other.copy(py)?;
        self.0.with(py, |lanes| lanes.and(&other)).map(|both| Self(Guard::new(both)))
    }

    /// Lanes active here and not in `other`.
    #[pyo3(signature = (other, /))]
    fn and_not(&self, py: Python<'_>, other: &Self) -> PyResult<Self> {
        let other = other.copy(py)?;
        self.0.with(py, |lanes| lanes.and_not(&other)).map(|rest| Self(Guard::new(rest)))
    }

    /// Whether any lane is active.
    fn any(&self, py: Python<'_>) -> PyResult<bool> {
        self.0.with(py, |lanes| Ok(lanes.any()))
    }

    /// How many lanes are active.
    fn count(&self, py: Python<'_>) -> PyResult<usize> {
        self.0.with(py, |lanes| Ok(lanes.count()))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.0.with(py, |lanes| Ok(lanes.len()))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        self.0.with(py, |lanes| Ok(format!("<Lanes: {} of {} active>", lanes.count(), lanes.len())))
    }
}

/// Some of the lanes of a batch, in order, whose rows are worked on.
#[pyclass(frozen, module = "trunkline._core")]
pub struct LanePlan(core::LanePlan);

#[pymethods]
impl LanePlan {
    /// The lanes (u32), ascending.
    #[getter]
    fn lanes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        view(py, self.0.lanes())
    }

    /// How many lanes the batch has.
    #[getter]
    const fn size(&self) -> usize {
        self.0.size()
    }

    /// For each lane of the batch whether it is in the plan (bool).
    #[getter]
    fn valid<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        view(py, &attached(py, || self.0.valid())?)?.call_method1("cast", ("?",))
    }

    /// The rows of the plan's lanes out of the rows of all lanes.
    #[pyo3(signature = (rows, /))]
    fn gather<'py>(&self, py: Python<'py>, rows: RowBuffer<'py>) -> PyResult<Bound<'py, PyAny>> {
        rows.expect(py, self.0.size())?;
        rows.build(py, self.0.lanes().len(), |out| {
            if rows.pick(py, self.0.lanes(), out)? {
                return Ok(());
            }
            let all = rows.all(py)?;
            call(py, all.len() > LARGE, || match rows.cell {
                8 => gather::<8>(&self.0, &all, out),
                4 => gather::<4>(&self.0, &all, out),
                _ => gather::<1>(&self.0, &all, out),
            })
        })
    }

    /// The rows of the plan's lanes in their places among all lanes, `fill` in the others, and which are which.
    #[pyo3(signature = (rows, fill, /))]
    fn scatter<'py>(
        &self,
        py: Python<'py>,
        rows: RowBuffer<'py>,
        fill: &Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        rows.expect(py, self.0.lanes().len())?;
        let (some, fill, cell) = (rows.all(py)?, rows.pack(fill)?, rows.cell);
        let every = rows.build(py, self.0.size(), |out| {
            call(py, out.len() > LARGE, || match cell {
                8 => scatter::<8>(&self.0, &some, &fill, out),
                4 => scatter::<4>(&self.0, &some, &fill, out),
                2 => scatter::<2>(&self.0, &some, &fill, out),
                _ => scatter::<1>(&self.0, &some, &fill, out),
            })
        })?;
        Ok((every, self.valid(py)?))
    }

    fn __len__(&self) -> usize {
        self.0.lanes().len()
    }

    fn __repr__(&self) -> String {
        format!("<LanePlan: {} of {} lanes>", self.0.lanes().len(), self.0.size())
    }
}

/// Gather cells of `N` bytes, which may be parts of the cells that Python sees.
fn gather<const N: usize>(plan: &core::LanePlan, rows: &[u8], out: &mut [u8]) -> core::Result<()> {
    plan.gather(rows.as_chunks::<N>().0, out.as_chunks_mut::<N>().0, |cell| *cell)
}

/// Scatter cells of `N` bytes into zeros.
fn scatter<const N: usize>(plan: &core::LanePlan, rows: &[u8], fill: &[u8], out: &mut [u8]) -> core::Result<()> {
    let fill = fill.first_chunk::<N>().copied().filter(|fill| fill.iter().any(|&byte| byte != 0));
    plan.scatter(rows.as_chunks::<N>().0, fill, out.as_chunks_mut::<N>().0, |cell| *cell)
}

/// Lanes that run until each waits at one of several queues.
#[pyclass(frozen, module = "trunkline._core")]
pub struct LaneQueue(Guard<core::LaneQueue>);

#[pymethods]
impl LaneQueue {
    #[new]
    #[pyo3(signature = (n, limits, /))]
    fn new(py: Python<'_>, n: Unsigned<u32>, limits: Column<u32>) -> PyResult<Self> {
        attached(py, || core::LaneQueue::new(n.0 as usize, &limits)).map(|lanes| Self(Guard::new(lanes)))
    }

    /// Let a running lane wait.
    #[pyo3(signature = (lane, queue, /))]
    fn wait(&self, py: Python<'_>, lane: Unsigned<u32>, queue: Unsigned<u32>) -> PyResult<()> {
        self.0.with(py, |lanes| lanes.wait(lane.0 as usize, queue.0))
    }

    /// Take a lane out, whether it runs or waits.
    #[pyo3(signature = (lane, /))]
    fn finish(&self, py: Python<'_>, lane: Unsigned<u32>) -> PyResult<()> {
        self.0.with(py, |lanes| lanes.finish(lane.0 as usize))
    }

    /// The batches that are due; their lanes run again.
    fn flush(&self, py: Python<'_>) -> PyResult<Vec<(u32, LanePlan)>> {
        let batches = self.0.with(py, |lanes| Ok(lanes.flush()))?;
        Ok(batches.into_iter().map(|batch| (batch.queue, LanePlan(batch.plan))).collect())
    }

    /// How many lanes run, and how many wait.
    #[getter]
    fn counts(&self, py: Python<'_>) -> PyResult<(usize, usize)> {
        self.0.with(py, |lanes| Ok((lanes.running(), lanes.active().count() - lanes.running())))
    }
}

/// Lanes that come and go: each runs, asks at a queue, or is away, until it ends.
#[pyclass(frozen, module = "trunkline._core")]
pub struct ActivityCounter(Guard<core::ActivityCounter>);

#[pymethods]
impl ActivityCounter {
    #[new]
    fn new() -> Self {
        Self(Guard::new(core::ActivityCounter::default()))
    }

    /// Add a lane that runs, and return it.
    fn open(&self, py: Python<'_>) -> PyResult<u64> {
        self.0.with(py, core::ActivityCounter::open)
    }

    /// A lane runs again.
    #[pyo3(signature = (lane, /))]
    fn run(&self, py: Python<'_>, lane: Unsigned<u64>) -> PyResult<()> {
        self.0.with(py, |counter| counter.run(lane.0))
    }

    /// A lane waits at a queue. Whether it was the last that ran.
    #[pyo3(signature = (lane, queue, /))]
    fn ask(&self, py: Python<'_>, lane: Unsigned<u64>, queue: Unsigned<u16>) -> PyResult<bool> {
        self.0.with(py, |counter| counter.ask(lane.0, queue.0))
    }

    /// A lane is away, and will ask again. Whether it was the last that ran.
    #[pyo3(signature = (lane, /))]
    fn leave(&self, py: Python<'_>, lane: Unsigned<u64>) -> PyResult<bool> {
        self.0.with(py, |counter| counter.leave(lane.0))
    }

    /// A lane is done for good. Whether none runs now.
    #[pyo3(signature = (lane, /))]
    fn end(&self, py: Python<'_>, lane: Unsigned<u64>) -> PyResult<bool> {
        self.0.with(py, |counter| counter.end(lane.0))
    }

    /// How many lanes run.
    #[getter]
    fn running(&self, py: Python<'_>) -> PyResult<usize> {
        self.0.with(py, |counter| Ok(counter.running()))
    }

    /// How many lanes ask, at whatever queue.
    #[getter]
    fn asking(&self, py: Python<'_>) -> PyResult<usize> {
        self.0.with(py, |counter| Ok(counter.asking()))
    }

    /// How many lanes are away.
    #[getter]
    fn away(&self, py: Python<'_>) -> PyResult<usize> {
        self.0.with(py, |counter| Ok(counter.away()))
    }

    /// How many lanes ask at a queue.
    #[pyo3(signature = (queue, /))]
    fn asking_of(&self, py: Python<'_>, queue: Unsigned<u16>) -> PyResult<usize> {
        self.0.with(py, |counter| Ok(counter.asking_of(queue.0)))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        self.0.with(py, |counter| {
            let (running, asking, away) = (counter.running(), counter.asking(), counter.away());
            Ok(format!("<ActivityCounter: {running} run, {asking} ask, {away} away>"))
        })
    }
}
