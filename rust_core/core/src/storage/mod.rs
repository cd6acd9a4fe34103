//! Storage: chunks that never move, interned runs, and the columns of tokens.

pub(crate) mod chunks;
pub(crate) mod hash;
pub(crate) mod intern;
pub(crate) mod tokens;

/// Bytes that a column holds memory for.
pub(crate) const fn held<T>(column: &Vec<T>) -> usize {
    column.capacity() * size_of::<T>()
}
