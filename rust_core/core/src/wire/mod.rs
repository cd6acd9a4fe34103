//! The wire: operations on a tree, the rules they obey, and the deltas they travel in.

pub(crate) mod call_log;
pub(crate) mod call_rows;
pub(crate) mod codec;
pub(crate) mod delta;
pub(crate) mod op;
pub(crate) mod overlay;
pub(crate) mod row_sums;
pub(crate) mod rules;
