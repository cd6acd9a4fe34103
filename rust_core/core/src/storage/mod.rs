//! Storage: chunks that never move, interned runs, and the columns of tokens.

pub(crate) mod chunks;
pub(crate) mod hash;
pub(crate) mod intern;
pub(crate) mod tokens;

use std::ops::{Deref, DerefMut};

/// Something that most trees have nothing of: it takes a pointer's room until it is changed for the first time.
#[derive(Clone, Debug)]
pub(crate) struct Seldom<T>(Option<Box<T>>);

/// What can be [`Seldom`].
pub(crate) trait Empty: Default + 'static {
    /// What reads see before there is anything.
    fn empty() -> &'static Self;
}

impl<T> Default for Seldom<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Empty> Deref for Seldom<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.0 {
            Some(some) => some,
            None => T::empty(),
        }
    }
}

impl<T: Empty> DerefMut for Seldom<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

impl<T> Seldom<T> {
    /// What is there to change, if anything is.
    pub(crate) fn changed(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }
}

/// Bytes that a column holds memory for.
pub(crate) const fn held<T>(column: &Vec<T>) -> usize {
    column.capacity() * size_of::<T>()
}
