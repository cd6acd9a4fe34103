//! One lock around a piece of core state, and no panic past it or past a call without state.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use trunkline_core::{Error, Result};

use crate::error::{broken, raise};

/// State that any thread may use, one at a time.
pub struct Guard<T>(Mutex<T>);

const BROKEN: &str = "an internal error has left this object unusable; this is a bug in trunkline";

impl<T: Send> Guard<T> {
    /// Guard a value.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Work on the state without releasing the interpreter. `work` must not call into Python, which could come back here.
    pub fn with<R>(&self, py: Python<'_>, work: impl FnOnce(&mut T) -> Result<R>) -> PyResult<R> {
        // The lock is taken inside, so that a panic poisons it and the state behind is never trusted again.
        let run = || self.0.lock_py_attached(py).map_err(poisoned).map(|mut state| work(&mut state));
        finish(py, catch_unwind(AssertUnwindSafe(run)).unwrap_or(Err(BROKEN)))
    }

    /// The same from inside the core, where the lock may be waited for: whoever holds it does not need the interpreter.
    pub fn within<R>(&self, work: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
        self.0.lock().map_err(|_| Error::Broken).and_then(|mut state| work(&mut state))
    }

    /// The same, but let other Python threads run if `large` says that the work is worth it.
    pub fn with_long<R: Send>(
        &self,
        py: Python<'_>,
        large: impl FnOnce(&T) -> bool,
        work: impl FnOnce(&mut T) -> Result<R> + Send,
    ) -> PyResult<R> {
        if !self.with(py, |state| Ok(large(state)))? {
            return self.with(py, work);
        }
        let run = || self.0.lock().map_err(poisoned).map(|mut state| work(&mut state));
        finish(py, py.detach(|| catch_unwind(AssertUnwindSafe(run)).unwrap_or(Err(BROKEN))))
    }
}

const PANICKED: &str = "an internal error; this is a bug in trunkline";

/// Work of the core that keeps no state, without a panic past it; other Python threads run meanwhile if it is `large`.
pub fn call<R: Send>(py: Python<'_>, large: bool, work: impl FnOnce() -> Result<R> + Send) -> PyResult<R> {
    if !large {
        return attached(py, work);
    }
    finish(py, py.detach(|| catch_unwind(AssertUnwindSafe(work)).map_err(|_| PANICKED)))
}

/// The same for work that reads Python's own buffers and cannot let other threads run.
pub fn attached<R>(py: Python<'_>, work: impl FnOnce() -> Result<R>) -> PyResult<R> {
    finish(py, catch_unwind(AssertUnwindSafe(work)).map_err(|_| PANICKED))
}

fn poisoned<G>(_: PoisonError<G>) -> &'static str {
    BROKEN
}

fn finish<R>(py: Python<'_>, outcome: std::result::Result<Result<R>, &'static str>) -> PyResult<R> {
    match outcome {
        Ok(result) => result.map_err(|error| raise(py, &error)),
        Err(text) => Err(broken(py, text)),
    }
}
