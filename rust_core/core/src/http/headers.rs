//! The headers of an answer or a request, and the constant part of a request's head.

use std::sync::Arc;

use crate::error::{Error, Result};

/// Headers with their names in lower case; of equal names the first counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    block: Vec<u8>,
    /// Where each name and each value ends in the block.
    ends: Vec<(usize, usize)>,
}

impl Headers {
    /// None yet, with room for so many in so many bytes.
    pub(crate) fn with_capacity(count: usize, bytes: usize) -> Self {
        Self { block: Vec::with_capacity(bytes), ends: Vec::with_capacity(count) }
    }

    /// Add a header.
    pub(crate) fn push(&mut self, name: &str, value: &[u8]) {
        self.block.extend(name.bytes().map(|byte| byte.to_ascii_lowercase()));
        let named = self.block.len();
        self.block.extend_from_slice(value);
        self.ends.push((named, self.block.len()));
    }

    /// Names in lower case and values, in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut start = 0;
        self.ends.iter().map(move |&(named, end)| {
            let begun = std::mem::replace(&mut start, end);
            (&self.block[begun..named], &self.block[named..end])
        })
    }

    /// The first value of a name, which is in lower case.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

/// Encode what all POST requests to one target have in common: the head up to the value of Content-Length.
///
/// # Errors
/// If the target, the host, a name or a value holds a character that has no place there.
pub fn request_head(target: &str, host: &str, headers: &[(&str, &str)]) -> Result<Arc<[u8]>> {
    let bare = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    if !bare(target) || !bare(host) {
        return Err(refused());
    }
    let mut head = format!("POST {target} HTTP/1.1\r\nHost: {host}\r\n").into_bytes();
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("user-agent")) {
        head.extend_from_slice(b"User-Agent: trunkline\r\n");
    }
    for (name, value) in headers {
        if name.is_empty() {
            return Err(refused());
        }
        for character in name.chars() {
            head.push(in_name(character).ok_or_else(refused)?);
        }
        head.extend_from_slice(b": ");
        for character in value.chars() {
            head.push(in_value(character).ok_or_else(refused)?);
        }
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"Content-Length: ");
    Ok(head.into())
}

fn refused() -> Error {
    Error::range("a header holds a character that no header can carry", "text without control characters")
}

fn in_name(character: char) -> Option<u8> {
    (character.is_ascii_graphic() && character != ':').then_some(())?;
    u8::try_from(character).ok()
}

/// Values are Latin-1.
fn in_value(character: char) -> Option<u8> {
    (character == '\t' || !character.is_control() || ('\u{80}'..'\u{a0}').contains(&character)).then_some(())?;
    u8::try_from(character).ok()
}
