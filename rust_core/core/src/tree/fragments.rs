//! Messages, encoded once and interned: history is never encoded, copied or hashed again.

use crate::error::{Error, Result};
use crate::id::FragmentId;
use crate::storage::hash::fingerprint;
use crate::storage::intern::Pool;
use crate::tree::pieces::{self, Part};

/// A message or a piece of one, and its hash, on its way into a tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    /// The bytes as they are stored.
    pub(crate) bytes: &'a [u8],
    /// Their hash.
    pub(crate) hash: u128,
}

impl<'a> Message<'a> {
    /// Hash a message.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, hash: fingerprint(bytes) }
    }

    /// Whether bytes can be stored: as a message, or as a piece of one.
    pub(crate) fn check(bytes: &[u8]) -> Result<()> {
        match pieces::part(bytes) {
            (Part::Whole, message) => Self::check_object(message),
            (part, text) => pieces::check(part, text),
        }
    }

    /// Whether bytes that can be stored are a whole message, as a node's must be.
    pub(crate) fn check_whole(bytes: &[u8]) -> Result<()> {
        match pieces::part(bytes) {
            (Part::Whole, _) => Ok(()),
            _ => Err(Error::Message { reason: "it is only a piece of one" }),
        }
    }

    /// Whether bytes can be one JSON object: a cheap look at both ends and at the encoding, not a parse.
    fn check_object(bytes: &[u8]) -> Result<()> {
        let refuse = |reason| Err(Error::Message { reason });
        match (bytes.first(), bytes.last()) {
            (None, _) | (_, None) => refuse("it is empty"),
            (Some(b'{'), Some(b'}')) if bytes.len() == 1 => refuse("it is a single byte"),
            (Some(b'{'), Some(b'}')) if u32::try_from(bytes.len()).is_err() => {
                Err(Error::TooLong { what: "message", len: bytes.len() })
            }
            (Some(b'{'), Some(b'}')) if std::str::from_utf8(bytes).is_err() => refuse("it is not UTF-8"),
            (Some(b'{'), Some(b'}')) => Ok(()),
            (Some(b'{'), Some(_)) => refuse("it does not end with }"),
            (Some(_), Some(_)) => refuse("it does not start with {"),
        }
    }
}

/// The distinct messages of a tree.
#[derive(Clone, Debug)]
pub(crate) struct Fragments {
    pool: Pool<u8>,
}

impl Fragments {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self { pool: Pool::new("fragment") }
    }

    /// The id of an equal message, if there is one.
    pub(crate) fn find(&self, message: &Message<'_>) -> Option<FragmentId> {
        self.pool.find(message.bytes, message.hash).map(FragmentId::new)
    }

    /// Store a message that [`Fragments::find`] does not know.
    pub(crate) fn insert(&mut self, message: &Message<'_>) -> Result<FragmentId> {
        self.pool.insert(message.bytes, message.hash).map(FragmentId::new)
    }

    /// The bytes of a message.
    pub(crate) fn get(&self, id: FragmentId) -> &[u8] {
        self.pool.get(id.get())
    }

    /// The hash of a message.
    pub(crate) fn hash(&self, id: FragmentId) -> u128 {
        self.pool.hash(id.get())
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u32 {
        self.pool.count()
    }

    /// Bytes stored.
    pub(crate) const fn size(&self) -> usize {
        self.pool.size()
    }

    /// Bytes that memory is held for.
    pub(crate) fn memory(&self) -> usize {
        self.pool.memory()
    }

    /// Walk the invariants of the store.
    pub(crate) fn check(&self) -> std::result::Result<(), String> {
        self.pool.check(fingerprint)
    }

    /// Forget every message and keep the memory.
    pub(crate) fn reset(&mut self) {
        self.pool.reset();
    }
}
