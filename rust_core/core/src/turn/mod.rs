//! A turn on a tree: the prompt that is sent for it, as messages or token ids, and the reply that is appended.

pub(crate) mod append;
pub(crate) mod drift;
pub(crate) mod program;
pub(crate) mod prompt_ids;
pub(crate) mod request;
pub(crate) mod transcript;
