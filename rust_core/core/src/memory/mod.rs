//! Storage: chunks that never move, interned runs, and the columns of tokens.

pub(crate) mod columns;
pub(crate) mod pool;
pub(crate) mod slab;
