//! One choice of a completion: its message, its tokens and why it ended.

use super::Options;
use super::error::{Result, fail};
use super::logprobs::{Logprobs, logprobs};
use super::message::{Message, label};
use super::scan::Scanner;
use crate::memory::columns::{SAMPLED, TRUNCATED};
use crate::tokens::{TokenBuffer, Uncertainty};

/// Characters that are kept of a short text.
const SHORT: usize = 64;

/// One completion.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Its number; its place in the list where the server numbers none.
    pub index: u32,
    /// What the model said.
    pub message: Message,
    /// `stop`, `length`, `tool_calls`, `content_filter` or what was sent, cut to 64 characters; empty for null.
    pub finish: String,
    /// The sampled tokens, where the server gives their ids; their log-probabilities are NaN where it lists none.
    pub tokens: Option<TokenBuffer>,
    /// What the server says of the tokens; where it gives ids too, one entry for each.
    pub listed: Option<Logprobs>,
}

impl Choice {
    /// Mean entropy and perplexity by region.
    #[must_use]
    pub fn uncertainty(&self) -> Uncertainty {
        self.listed.as_ref().map_or(Uncertainty::UNKNOWN, |listed| listed.uncertainty)
    }
}

/// A choice as it stands in the list.
pub struct Numbered {
    /// Where it starts.
    pub offset: usize,
    /// Its number, if it has one.
    pub index: Option<u32>,
    /// The choice, without its number.
    pub choice: Choice,
}

impl Numbered {
    /// Read an element of `choices`.
    pub fn read(scan: &mut Scanner<'_>, options: &Options) -> Result<Self> {
        let offset = scan.offset();
        let mut choice = Choice::default();
        let (mut index, mut message, mut ids) = (None, None, None);
        scan.object(&["index", "message", "finish_reason", "logprobs", "token_ids"], |scan, name| {
            match name {
                "index" => index = scan.optional(|scan| integer(scan, "an index"))?,
                "message" => message = scan.optional(Message::read)?,
                "finish_reason" => choice.finish = scan.optional(label)?.map(|label| cut(&label)).unwrap_or_default(),
                "logprobs" => choice.listed = scan.optional(|scan| logprobs(scan, options))?.flatten(),
                _ => ids = scan.optional(token_ids)?,
            }
            Ok(())
        })?;
        let Some(message) = message else {
            return fail(offset, "the member \"message\" is missing");
        };
        choice.message = message;
        if let (Some(ids), Some(listed)) = (&ids, &choice.listed)
            && ids.len() != listed.logprobs.len()
        {
            let (ids, logprobs) = (ids.len(), listed.logprobs.len());
            return fail(offset, format!("there are {ids} token ids and {logprobs} log-probabilities"));
        }
        choice.tokens = ids.map(|ids| sampled(ids, &choice, options.version));
        Ok(Self { offset, index, choice })
    }
}

/// The columns of sampled tokens.
fn sampled(ids: Vec<u32>, choice: &Choice, version: i32) -> TokenBuffer {
    let len = ids.len();
    let logprobs = choice.listed.as_ref().map_or_else(|| vec![f32::NAN; len], |listed| listed.logprobs.clone());
    let mut flags = vec![SAMPLED; len];
    if let Some(last) = flags.last_mut().filter(|_| choice.finish == "length") {
        *last |= TRUNCATED;
    }
    TokenBuffer { ids, logprobs, versions: vec![version; len], flags }
}

/// Read a list of token ids.
pub fn token_ids(scan: &mut Scanner<'_>) -> Result<Vec<u32>> {
    let mut ids = Vec::new();
    scan.list(|scan| {
        ids.push(integer(scan, "a token id")?);
        Ok(())
    })?;
    Ok(ids)
}

fn integer(scan: &mut Scanner<'_>, what: &str) -> Result<u32> {
    let start = scan.offset();
    match scan.number()?.below(1 << 32) {
        Some(value) => Ok(value),
        None => fail(start, format!("{what} must be an integer from 0 to 4294967295")),
    }
}

/// The first 64 characters.
pub fn cut(text: &str) -> String {
    text.chars().take(SHORT).collect()
}
