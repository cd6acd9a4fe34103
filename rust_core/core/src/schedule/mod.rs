//! What a budget allows, and which answer wins.

pub mod amount;
pub mod ledger;
pub mod votes;
