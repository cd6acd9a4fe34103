//! Ids: thin wrappers over `u32`, so that a node cannot be passed where a rollout is meant.

use crate::error::{Error, Result};

/// Marks the absence of an id in a column; no id ever has this value.
pub(crate) const NONE: u32 = u32::MAX;

/// The id that the next element of a column of `len` elements gets, or an error when the ids are used up.
pub(crate) fn next(len: usize, what: &'static str) -> Result<u32> {
    match u32::try_from(len) {
        Ok(id) if id != NONE => Ok(id),
        _ => Err(Error::Full { what }),
    }
}

/// A count as `u32`. Columns never outgrow `u32` because [`next`] guards every append.
pub(crate) fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(NONE)
}

/// A number that may be missing, as it is kept in a column.
pub(crate) fn pack(id: Option<u32>) -> u32 {
    id.unwrap_or(NONE)
}

/// A number of a column that may be missing.
pub(crate) fn unpack(id: u32) -> Option<u32> {
    (id != NONE).then_some(id)
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl $name {
            /// Wrap a raw id. Whether it exists is checked where it is used.
            #[must_use]
            pub const fn new(id: u32) -> Self {
                Self(id)
            }

            /// The raw id.
            #[must_use]
            pub const fn get(self) -> u32 {
                self.0
            }

            /// The raw id as an index into columns.
            #[must_use]
            #[allow(dead_code, reason = "not every kind of id is an index")]
            pub(crate) const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl From<u32> for $name {
            fn from(id: u32) -> Self {
                Self(id)
            }
        }
    };
}

id!(
    /// A node of a tree. Node 0 is the root; a parent's id is always smaller than its children's.
    NodeId
);
id!(
    /// An interned message.
    FragmentId
);
id!(
    /// A rollout of a tree, numbered in the order they were opened.
    RolloutId
);
id!(
    /// An interned string; 0 is the empty one.
    NameId
);
id!(
    /// A recorded list of fragments.
    ContextId
);
id!(
    /// A node of a prefix index. Ids are unique over all its spaces, and no order of theirs says what is above what.
    PrefixId
);
id!(
    /// A space of a prefix index: what never shares with another.
    SpaceId
);
id!(
    /// A stored run of tokens.
    RunId
);

impl NodeId {
    /// The empty node that every prompt hangs under.
    pub const ROOT: Self = Self(0);
}

impl NameId {
    /// The empty string.
    pub const EMPTY: Self = Self(0);
}

/// A number of tokens as a server reports it, or nothing where it reports none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenCount(u32);

impl From<Option<u32>> for TokenCount {
    fn from(count: Option<u32>) -> Self {
        Self(count.unwrap_or(NONE))
    }
}

impl TokenCount {
    /// The server did not say.
    pub const UNREPORTED: Self = Self(NONE);

    /// Take a figure, -1 for unreported.
    ///
    /// # Errors
    /// [`Error::Tokens`] if it is below -1 or does not fit.
    pub fn new(value: i64, field: &'static str) -> Result<Self> {
        match value {
            -1 => Ok(Self::UNREPORTED),
            0.. => match u32::try_from(value) {
                Ok(tokens) if tokens != NONE => Ok(Self(tokens)),
                _ => Err(Error::Tokens { field, value }),
            },
            _ => Err(Error::Tokens { field, value }),
        }
    }

    /// The figure, if there is one.
    #[must_use]
    pub const fn get(self) -> Option<u32> {
        if self.0 == NONE { None } else { Some(self.0) }
    }

    /// The figure, -1 for unreported.
    #[must_use]
    pub fn signed(self) -> i64 {
        self.get().map_or(-1, i64::from)
    }

    /// This figure, or the other where this one is unreported.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        if self.0 == NONE { other } else { self }
    }
}
