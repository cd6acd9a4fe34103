//! The state of Trunkline's rollouts.
//!
//! A [`Tree`] holds everything done for one task, turn by turn (`turn`); what changed since the last time is a delta
//! (`wire`), which rebuilds the same tree elsewhere. A [`Prefix`] index stores what token paths share once, and
//! [`reply`] reads what a server sent, from its bytes. While rollouts grow, [`Lanes`] say which of a tree still do, a
//! [`BatchQueue`] what a batch engine gets next, a [`Ledger`] (`schedule`) what a budget allows, a [`Tally`] which
//! answer wins, and [`select`] where to fork next. Once they are scored, a [`Harvest`] puts trees side by side as
//! columns over a [`Forest`], [`advantage`] makes values and advantages of their rewards, and [`pack`] the rows that
//! trainers read. [`http`] says which request is on which connection and reads what comes back. This crate knows no
//! Python and does no input or output.
//!
//! In a tree, what rollouts share is stored once:
//!
//! * Ids are 32 bits wide, given in order of arrival and never reused; a parent's id is smaller than its children's.
//! * Equal messages are one fragment; nodes with equal keys are one node; rollouts never merge.
//! * Every change is an operation, checked before it is carried out, written into a journal and replayable elsewhere.
//! * The digest depends on what was said and how rollouts ended, not on when or in which order.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod advantage;
pub mod engine;
mod error;
mod forest;
pub mod http;
mod id;
mod keyword;
mod lanes;
pub mod pack;
mod prefix;
pub mod reply;
mod schedule;
pub mod select;
mod storage;
mod tree;
mod turn;
mod validation;
mod wire;

pub use error::{DeltaError, Error, Result, ValueError};
pub use forest::Forest;
pub use forest::harvest::{GROWING, Harvest};
pub use id::{ContextId, FragmentId, NameId, NodeId, PrefixId, RolloutId, SpaceId, TokenCount};
pub use keyword::{Keyword, Listing, UnknownWord};
pub use lanes::Lanes;
pub use lanes::activity::ActivityCounter;
pub use lanes::batches::{BatchQueue, BatchRules};
pub use prefix::{Prefix, PrefixColumns, PrefixMatch, PrefixNode, Reuse};
pub use reply::{Region, Uncertainty};
pub use schedule::amount::{Amount, Bounds, Currency};
pub use schedule::ledger::{Lease, Ledger, Refusal, Reservation};
pub use schedule::votes::{Answer, Tally, Votes};
pub use select::random::Random;
pub use storage::chunks::Span;
pub use storage::tokens::{Columns, SAMPLED, SYNTHETIC, TRUNCATED, TokenBuffer, TokenSlice};
pub use tree::Tree;
pub use tree::digest::VERSION as DIGEST_VERSION;
pub use tree::fork_points::ForkPoint;
pub use tree::nodes::Kind;
pub use tree::read::{Memory, NodeView, RolloutView};
pub use tree::rollouts::Usage;
pub use tree::rows::RolloutFacts;
pub use tree::statistics::{Totals, Values};
pub use tree::termination::Termination;
pub use turn::append::{AppendedChoice, KeptPrefix, LONGEST, MOST_CALLS, MOST_TOKENS, RequestInfo, ToolResult};
pub use turn::drift::{DriftPolicy, DriftView};
pub use turn::program::{AppendedTurn, TurnRecord};
pub use turn::prompt_ids::{Alignment, DriftOptions};
pub use turn::request::Source;
pub use turn::transcript::Transcript;
pub use wire::call_log::{CallLog, ModelCall, ToolCall};
pub use wire::call_rows::{CallFigures, CallRows, CommitRows, ModelRow, NewNames, ToolRow};
pub use wire::delta::{FORMAT, OLDEST_FORMAT, calls_of};
pub use wire::op::Call;
pub use wire::row_sums::RowSum;
