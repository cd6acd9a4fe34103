//! A turn on a tree: the prompt that is sent for it, as messages or token ids, and the reply that is appended.

pub(crate) mod align;
pub(crate) mod append;
mod decimal;
pub(crate) mod drift;
mod exact;
pub(crate) mod ids;
pub(crate) mod program;
pub(crate) mod request;
pub(crate) mod settle;
pub(crate) mod transcript;
