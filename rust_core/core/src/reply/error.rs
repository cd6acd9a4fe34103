//! Why a reply could not be read, and where.

use std::borrow::Cow;

/// What reading returns. The error is boxed, so that most results fit into a register: it saves a tenth of the time.
pub type Result<T> = std::result::Result<T, Box<ReplyError>>;

/// The bytes are no chat completion.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{}{reason} (byte {offset})", place, if place.is_empty() { "" } else { ": " })]
pub struct ReplyError {
    /// Byte at which what is wrong starts.
    pub offset: usize,
    /// Which part of the reply it is, such as `choices[0].message.content`; empty where that is not known.
    pub place: String,
    /// What is wrong. It quotes at most one character and one number of the reply.
    pub reason: Cow<'static, str>,
}

/// An error at a byte.
pub fn fail<T>(offset: usize, reason: impl Into<Cow<'static, str>>) -> Result<T> {
    Err(Box::new(ReplyError { offset, place: String::new(), reason: reason.into() }))
}

impl ReplyError {
    /// Say that the place is inside of `outer`.
    pub(super) fn nest(&mut self, outer: &str) {
        let dot = if self.place.is_empty() || self.place.starts_with('[') { "" } else { "." };
        self.place = format!("{outer}{dot}{}", self.place);
    }
}
