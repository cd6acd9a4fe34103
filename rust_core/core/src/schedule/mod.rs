//! What runs next: the ready set of many tasks, and the budget that it draws on.

pub mod amount;
pub mod ledger;
mod order;
pub mod ready;
mod task;
mod window;
pub mod work;
