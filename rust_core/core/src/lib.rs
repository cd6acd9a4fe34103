//! The state of Trunkline's rollouts.
//!
//! A [`Tree`] holds everything done for one task. What its rollouts share is stored once:
//!
//! * Ids are 32 bits wide, given in order of arrival and never reused; a parent's id is smaller than its children's.
//! * Equal messages are one fragment; nodes with equal keys are one node; rollouts never merge.
//! * Every change is an operation, checked before it is carried out, written into a journal and replayable elsewhere.
//! * The digest depends on what was said and how rollouts ended, not on when or in which order.
//!
//! [`Lanes`] says which of many rows are still active. This crate knows no Python and does no input or output.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod body;
mod check;
mod codec;
mod contexts;
mod counts;
mod delta;
mod digest;
mod error;
mod fragments;
mod id;
mod lanes;
mod names;
mod nodes;
mod op;
mod overlay;
mod pool;
mod read;
mod rollouts;
mod rules;
mod slab;
mod termination;
mod tree;

pub use body::Source;
pub use counts::{Totals, Values};
pub use delta::FORMAT;
pub use digest::VERSION as DIGEST_VERSION;
pub use error::{DeltaError, Error, Result};
pub use id::{ContextId, FragmentId, NameId, NodeId, RolloutId, Tokens};
pub use lanes::Lanes;
pub use nodes::Kind;
pub use op::Call;
pub use read::{NodeView, RolloutView};
pub use rollouts::Usage;
pub use termination::Termination;
pub use tree::Tree;
