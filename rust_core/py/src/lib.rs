//! The extension module `trunkline._core`: newtypes over `trunkline-core`.
//!
//! Each method takes its arguments apart, calls the core and converts what comes back. The interpreter is released only
//! for work of tens of microseconds. Nothing here may panic, and if the core does, the caller sees a `CoreError`.
#![deny(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
// PyO3 hands arguments over by value.
#![allow(clippy::needless_pass_by_value)]

mod buffer;
mod error;
mod guard;
mod input;
mod lanes;
mod reply;
mod tokens;
mod tree;
mod view;

use pyo3::prelude::*;

/// The native core of Trunkline.
#[pymodule(gil_used = false)]
mod _core {
    use pyo3::exceptions::PyRuntimeWarning;
    use pyo3::prelude::*;
    use trunkline_core::{DIGEST_VERSION, FORMAT, Kind, SAMPLED, SYNTHETIC, TRUNCATED};

    #[pymodule_export]
    use crate::lanes::Lanes;
    #[pymodule_export]
    use crate::reply::{Choice, Reply, read_reply};
    #[pymodule_export]
    use crate::tokens::Tokens;
    #[pymodule_export]
    use crate::tree::Tree;
    #[pymodule_export]
    use crate::view::{Node, Rollout};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("DEBUG", cfg!(debug_assertions))?;
        module.add("FORMAT", FORMAT)?;
        module.add("DIGEST_VERSION", DIGEST_VERSION)?;
        module.add("ROOT", Kind::Root as u8)?;
        module.add("PROMPT", Kind::Prompt as u8)?;
        module.add("TURN", Kind::Turn as u8)?;
        module.add("OBSERVATION", Kind::Observation as u8)?;
        module.add("MESSAGE", Kind::Message as u8)?;
        module.add("SAMPLED", SAMPLED)?;
        module.add("SYNTHETIC", SYNTHETIC)?;
        module.add("TRUNCATED", TRUNCATED)?;
        if cfg!(debug_assertions) {
            let text = c"trunkline._core is a debug build: correct, and many times slower than a release build";
            PyErr::warn(module.py(), &module.py().get_type::<PyRuntimeWarning>(), text, 1)?;
        }
        Ok(())
    }
}
