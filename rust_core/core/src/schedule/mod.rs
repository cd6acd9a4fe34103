//! What runs next: the ready set of many tasks, and the budget that it draws on.

pub mod amount;
pub mod ledger;
mod order;
pub mod scheduler;
mod task;
pub mod votes;
mod window;
pub mod work;
