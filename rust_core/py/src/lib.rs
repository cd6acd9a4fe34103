//! The extension module `trunkline._core`: newtypes over `trunkline-core`.
//!
//! Each method takes its arguments apart, calls the core and converts what comes back. The interpreter is released only
//! for work of tens of microseconds. Nothing here may panic, and if the core does, the caller sees a `CoreError`.
#![deny(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
// PyO3 hands arguments over by value.
#![allow(clippy::needless_pass_by_value)]

mod advantage;
mod buffer;
mod calls;
mod engine;
mod error;
mod guard;
mod harvest;
mod http;
mod input;
mod lanes;
mod ledger;
mod pack;
mod prefix;
mod reply;
mod row_sums;
mod schedule;
mod select;
mod tokens;
mod tree;
mod turn;

use pyo3::prelude::*;

/// The native core of Trunkline.
#[pymodule(gil_used = false)]
mod _core {
    use pyo3::exceptions::PyRuntimeWarning;
    use pyo3::prelude::*;
    use pyo3::types::PyTuple;
    use trunkline_core::{
        Currency, DIGEST_VERSION, FORMAT, GROWING, Kind, OLDEST_FORMAT, SAMPLED, SYNTHETIC, TRUNCATED,
    };

    #[pymodule_export]
    use crate::advantage::{
        estimate, group_advantages, node_values, presets, step_forest, step_returns, to_nodes, to_tokens,
    };
    #[pymodule_export]
    use crate::buffer::{check_column, to_i64};
    #[pymodule_export]
    use crate::calls::{CallRows, CommitRows, calls_of, deltas};
    #[pymodule_export]
    use crate::engine::{ConversationKeys, TurnEngine, base_seed, call_ids, parts_digest};
    #[pymodule_export]
    use crate::harvest::{Harvest, harvest};
    #[pymodule_export]
    use crate::http::{ExchangeTable, RequestReader, request_head};
    #[pymodule_export]
    use crate::lanes::{ActivityCounter, BatchQueue};
    #[pymodule_export]
    use crate::ledger::{Ledger, Refusal};
    #[pymodule_export]
    use crate::pack::{Padded, Ragged, TreePacked, pack_padded, pack_ragged, pack_tree};
    #[pymodule_export]
    use crate::prefix::{Prefix, PrefixColumns, PrefixMatch, PrefixNode, Reuse};
    #[pymodule_export]
    use crate::reply::{ParsedChoice, ParsedReply, ReplyOptions, read_reply};
    #[pymodule_export]
    use crate::row_sums::{add_sums, chain_sums, checksum, finished_rows};
    #[pymodule_export]
    use crate::schedule::Tally;
    #[pymodule_export]
    use crate::select::{
        Search, branch_probability, branch_rows, choose_leaves, draw_points, fork_points, initial_chains,
        partial_top_up, split_evenly, surprising_tokens, top_turns, tree_leaves, tree_ratio, tree_steps,
    };
    #[pymodule_export]
    use crate::tokens::TokenBuffer;
    #[pymodule_export]
    use crate::tree::CoreTree;
    #[pymodule_export]
    use crate::tree::view::{NodeView, RolloutView};
    #[pymodule_export]
    use crate::turn::prompt_ids::{align_ids, drift, drift_of, give_ids, last_ids, request_ids, settle_ids};
    #[pymodule_export]
    use crate::turn::{PendingReply, Transcript, append_reply, parse_reply};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("DEBUG", cfg!(debug_assertions))?;
        module.add("FORMAT", FORMAT)?;
        module.add("OLDEST_FORMAT", OLDEST_FORMAT)?;
        module.add("DIGEST_VERSION", DIGEST_VERSION)?;
        module.add("GROWING", GROWING)?;
        module.add("HEAD_LIMIT", trunkline_core::http::HEAD_LIMIT)?;
        module.add("CURRENCIES", PyTuple::new(module.py(), Currency::ALL.map(Currency::as_str))?)?;
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
