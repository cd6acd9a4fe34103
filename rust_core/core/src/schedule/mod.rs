//! What runs next: the ready set of many tasks, and the budget that it draws on.

pub mod amount;
pub mod ledger;
pub mod scheduler;
pub mod votes;
