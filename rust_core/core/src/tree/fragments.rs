//! Messages, encoded once and interned: history is never encoded, copied or hashed again. Text that many prompts share
//! is stored as pieces of messages, and sent over the wire once.
//!
//! A fragment is a whole message, or a piece of one. A piece begins with a marker that is stored and never sent. A message
//! in pieces is an opening one and any number that continue it: joined without a separator they are one JSON object.

use crate::error::{Error, Finding, Result};
use crate::id::FragmentId;
use crate::storage::hash::fingerprint;
use crate::storage::intern::Pool;

/// A message or a piece of one, and its hash, on its way into a tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EncodedMessage<'a> {
    /// The bytes as they are stored.
    pub(crate) bytes: &'a [u8],
    /// Their hash.
    pub(crate) hash: u128,
}

impl<'a> EncodedMessage<'a> {
    /// Hash a message.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, hash: fingerprint(bytes) }
    }

    /// Whether bytes can be stored: as a message, or as a piece of one.
    pub(crate) fn check(bytes: &[u8]) -> Result<()> {
        match part(bytes) {
            (FragmentKind::Whole, message) => Self::check_object(message),
            (part, text) => check(part, text),
        }
    }

    /// Whether bytes that can be stored are a whole message, as a node's must be.
    pub(crate) fn check_whole(bytes: &[u8]) -> Result<()> {
        match part(bytes) {
            (FragmentKind::Whole, _) => Ok(()),
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
    pub(crate) fn find(&self, message: &EncodedMessage<'_>) -> Option<FragmentId> {
        self.pool.find(message.bytes, message.hash).map(FragmentId::new)
    }

    /// Store a message that [`Fragments::find`] does not know.
    pub(crate) fn insert(&mut self, message: &EncodedMessage<'_>) -> Result<FragmentId> {
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
    pub(crate) fn check(&self) -> Finding {
        self.pool.check(fingerprint)
    }

    /// Forget every message and keep the memory.
    pub(crate) fn reset(&mut self) {
        self.pool.reset();
    }
}

/// Opens a message.
const OPENS: u8 = 2;
/// Goes on with the message that was opened before it.
pub(crate) const GOES_ON: u8 = 1;

/// What a fragment is to the message it stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FragmentKind {
    /// All of it.
    Whole,
    /// Its first piece.
    Opening,
    /// A later piece.
    Continuation,
}

/// What a fragment is, and its bytes as they are sent.
pub(crate) fn part(fragment: &[u8]) -> (FragmentKind, &[u8]) {
    match fragment {
        [OPENS, text @ ..] => (FragmentKind::Opening, text),
        [GOES_ON, text @ ..] => (FragmentKind::Continuation, text),
        _ => (FragmentKind::Whole, fragment),
    }
}

/// Whether a piece can be one, by itself: an opening begins an object, and neither has what JSON keeps out of strings.
pub(crate) fn check(part: FragmentKind, text: &[u8]) -> Result<()> {
    let refuse = |reason| Err(Error::Piece { reason });
    if u32::try_from(text.len()).is_err() {
        return Err(Error::TooLong { what: "piece of a message", len: text.len() });
    }
    if part == FragmentKind::Opening && text.first() != Some(&b'{') {
        return refuse("it opens a message and does not start with {");
    }
    // No way out of the loop, which would keep it from looking at many bytes at once.
    if text.iter().fold(0, |found, &byte| found | u8::from(byte < b' ')) > 0 {
        return refuse("it has a control character after its marker");
    }
    if std::str::from_utf8(text).is_err() {
        return refuse("it is not UTF-8");
    }
    Ok(())
}

/// The messages of a list of fragments: each as the fragments it is made of.
pub(crate) fn messages<'l, 'f>(list: &'l [u32], get: impl Fn(u32) -> &'f [u8]) -> impl Iterator<Item = &'l [u32]> {
    list.chunk_by(move |_, &next| part(get(next)).0 == FragmentKind::Continuation)
}

/// Whether a list of fragments is whole messages, and pieces that make whole ones.
pub(crate) fn check_all<'f>(list: &[u32], get: impl Fn(u32) -> &'f [u8]) -> Result<()> {
    let refuse = |place, reason| Err(Error::Context { place, reason });
    let mut place = 0;
    for message in messages(list, &get) {
        let mut parts = message.iter().map(|&id| part(get(id)));
        // Only the first of a list can be a continuation here, and only an opening can have one.
        let cut = parts.clone().position(|(part, _)| part == FragmentKind::Continuation);
        if let Some(at) = cut.filter(|_| parts.clone().next().is_none_or(|(part, _)| part != FragmentKind::Opening)) {
            return refuse(place + at, "goes on with a message that no piece before it opens");
        }
        place += message.len();
        if parts.rfind(|(_, text)| !text.is_empty()).is_some_and(|(_, text)| !text.ends_with(b"}")) {
            return refuse(place - 1, "ends a message in pieces that does not end with }");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{check, check_all, part};

    /// What is wrong with a fragment that is a piece.
    fn wrong(fragment: &[u8]) -> String {
        let (part, text) = part(fragment);
        check(part, text).err().map(|error| error.to_string()).unwrap_or_default()
    }

    /// What is wrong with a list of fragments.
    fn refused(fragments: &[&[u8]]) -> String {
        let list: Vec<u32> = (0..).take(fragments.len()).collect();
        let outcome = check_all(&list, |id| fragments[id as usize]);
        outcome.err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_piece_is_text_behind_a_marker() {
        for sound in [b"\x02{".as_slice(), b"\x02{}", b"\x01", b"\x01 \\n\xc3\xa9\x7f\"}"] {
            assert_eq!(wrong(sound), "", "{sound:?}");
        }
        for (piece, reason) in [
            (b"\x02".as_slice(), "it opens a message and does not start with {"),
            (b"\x02\x02{", "it opens a message and does not start with {"),
            (b"\x01\x01", "it has a control character after its marker"),
            (b"\x02{\n", "it has a control character after its marker"),
            (b"\x01\xc3", "it is not UTF-8"),
        ] {
            let text = format!("a piece of a message must be UTF-8 text behind its marker: {reason}");
            assert_eq!(wrong(piece), text, "{piece:?}");
        }
    }

    #[test]
    fn pieces_make_whole_messages_or_are_refused() {
        let sound: [&[&[u8]]; 6] = [
            &[],
            &[b"{}"],
            &[b"\x02{}"],
            &[b"{}", b"\x02{", b"\x01", b"\x01}", b"\x01", b"{}"],
            &[b"\x02{", b"\x01}", b"\x02{}"],
            &[b"\x02{", b"\x01}", b"\x01}"],
        ];
        for list in sound {
            assert_eq!(refused(list), "", "{list:?}");
        }
        let alone = "goes on with a message that no piece before it opens";
        let ends = "ends a message in pieces that does not end with }";
        let broken: [(&[&[u8]], usize, &str); 6] = [
            (&[b"\x01}"], 0, alone),
            (&[b"{}", b"\x01}"], 1, alone),
            (&[b"{}", b"\x02{"], 1, ends),
            (&[b"\x02{", b"{}"], 0, ends),
            (&[b"\x02{", b"\x01", b"\x02{}"], 1, ends),
            (&[b"\x02{}", b"\x01 ", b"\x01"], 2, ends),
        ];
        for (list, place, reason) in broken {
            assert_eq!(refused(list), format!("fragment {place} of a context {reason}"), "{list:?}");
        }
    }
}
