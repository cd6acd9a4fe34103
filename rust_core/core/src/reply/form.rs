//! The kinds of replies.

use crate::error::{Error, Result};

/// What kind of reply the bytes are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// A chat completion: choices with a message.
    #[default]
    Chat,
    /// A completion: choices with a text.
    Completion,
    /// What `SGLang`'s `/generate` answers: a text with `meta_info`, or a list of such.
    Generate,
}

impl Form {
    /// The form of this name: `chat`, `completion` or `generate`.
    ///
    /// # Errors
    /// [`Error::Value`] naming all there are.
    pub fn named(name: &str) -> Result<Self> {
        match name {
            "chat" => Ok(Self::Chat),
            "completion" => Ok(Self::Completion),
            "generate" => Ok(Self::Generate),
            _ => {
                let value = format!("form is {name:?}");
                Err(Error::Value { value, want: "chat, completion or generate" })
            }
        }
    }
}
