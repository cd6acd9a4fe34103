//! One choice of a completion: its message, its tokens and why it ended.

use super::logprobs::{Listed, Logprobs, logprobs};
use super::message::{ReplyMessage, label};
use super::scanner::Scanner;
use super::{Form, ReplyOptions, ReplyResult, fail};
use crate::reply::Uncertainty;
use crate::storage::tokens::{SAMPLED, TRUNCATED, TokenBuffer};

/// Characters that are kept of a short text.
const SHORT: usize = 64;

/// One completion.
#[derive(Clone, Debug, Default)]
pub struct ParsedChoice {
    /// Its number; its place in the list where the server numbers none.
    pub index: u32,
    /// What the model said.
    pub message: ReplyMessage,
    /// `stop`, `length`, `tool_calls`, `content_filter` or what was sent, cut to 64 characters; empty for null.
    pub finish: String,
    /// The sampled tokens, where the server gives their ids. Their log-probabilities are those of `listed` if there is one
    /// for each, else NaN.
    pub tokens: Option<TokenBuffer>,
    /// Whether the ids stand in entries of log-probabilities, which may be fewer than tokens.
    pub by_entry: bool,
    /// What the server says of the tokens. It may be less than all of them: some list none of a tool call.
    pub listed: Option<Logprobs>,
}

impl ParsedChoice {
    /// Mean entropy and perplexity by region.
    #[must_use]
    pub fn uncertainty(&self) -> Uncertainty {
        self.listed.as_ref().map_or(Uncertainty::UNKNOWN, |listed| listed.uncertainty)
    }

    /// Take in what the server says of the tokens: their ids, and log-probabilities that may have ids of their own.
    pub(super) fn give(&mut self, ids: Option<Vec<u32>>, listed: Option<Listed>, options: &ReplyOptions) {
        let (logprobs, beside, by_entry) =
            listed.map_or((None, None, false), |Listed { logprobs, ids, by_entry }| (Some(logprobs), ids, by_entry));
        self.listed = logprobs;
        self.by_entry = by_entry && ids.is_none();
        self.tokens = ids.or(beside).filter(|_| options.ids).map(|ids| sampled(ids, self, options.version));
    }

    /// How many tokens are listed, by ids or by log-probabilities.
    pub(crate) fn listed_tokens(&self) -> Option<u32> {
        let ids = self.tokens.as_ref().map(|tokens| tokens.ids.len());
        let listed = ids.or_else(|| self.listed.as_ref().map(|listed| listed.logprobs.len()));
        listed.and_then(|len| u32::try_from(len).ok())
    }

    /// Whether the server gives as many log-probabilities as ids, so that `tokens` has them.
    #[must_use]
    pub fn is_aligned(&self) -> bool {
        self.tokens.as_ref().zip(self.listed.as_ref()).is_some_and(|(all, some)| all.ids.len() == some.logprobs.len())
    }
}

/// A choice as it stands in the list.
pub struct Numbered {
    /// Where it starts.
    pub offset: usize,
    /// Its number, if it has one.
    pub index: Option<u32>,
    /// The choice, without its number.
    pub choice: ParsedChoice,
    /// Token ids of the prompt, where the server gives them with each choice.
    pub prompt_ids: Option<Vec<u32>>,
}

impl Numbered {
    /// Read an element of `choices`.
    pub fn read(scan: &mut Scanner<'_>, options: &ReplyOptions) -> ReplyResult<Self> {
        let offset = scan.offset();
        let mut choice = ParsedChoice::default();
        let (mut index, mut message, mut listed, mut ids, mut prompt_ids) = (None, None, None, None, None);
        let said = if options.form == Form::Completion { "text" } else { "message" };
        let names = ["index", said, "finish_reason", "logprobs", "token_ids", "prompt_token_ids"];
        scan.object(&names, |scan, name| {
            match name {
                "index" => index = scan.optional(|scan| integer(scan, "an index"))?,
                "message" => message = scan.optional(ReplyMessage::read)?,
                "text" => message = scan.optional(ReplyMessage::raw)?,
                "finish_reason" => choice.finish = scan.optional(label)?.map(|label| cut(&label)).unwrap_or_default(),
                "logprobs" => listed = scan.optional(|scan| logprobs(scan, options))?.flatten(),
                "token_ids" => ids = token_ids(scan, options)?,
                _ => prompt_ids = token_ids(scan, options)?,
            }
            Ok(())
        })?;
        let Some(message) = message else {
            return fail(offset, format!("the member {said:?} is missing"));
        };
        choice.message = message;
        choice.give(ids, listed, options);
        Ok(Self { offset, index, choice, prompt_ids })
    }
}

/// The columns of sampled tokens.
fn sampled(ids: Vec<u32>, choice: &ParsedChoice, version: i32) -> TokenBuffer {
    let len = ids.len();
    // A shorter list does not say which tokens it leaves out, so it is used for none.
    let aligned = choice.listed.as_ref().filter(|listed| listed.logprobs.len() == len);
    let logprobs = aligned.map_or_else(|| vec![f32::NAN; len], |listed| listed.logprobs.clone());
    let mut flags = vec![SAMPLED; len];
    if let Some(last) = flags.last_mut().filter(|_| matches!(&*choice.finish, "length" | "repetition")) {
        *last |= TRUNCATED;
    }
    TokenBuffer { ids, logprobs, versions: vec![version; len], flags }
}

/// Read a list of token ids, or null; skip it where none were asked for.
pub fn token_ids(scan: &mut Scanner<'_>, options: &ReplyOptions) -> ReplyResult<Option<Vec<u32>>> {
    if !options.ids {
        return scan.skip().map(|()| None);
    }
    scan.optional(|scan| {
        let mut ids = Vec::new();
        scan.list(|scan| {
            ids.push(integer(scan, "a token id")?);
            Ok(())
        })?;
        Ok(ids)
    })
}

/// Read a number that fits 32 bits.
pub fn integer(scan: &mut Scanner<'_>, what: &str) -> ReplyResult<u32> {
    let start = scan.offset();
    match scan.number()?.below(1 << 32) {
        Some(value) => Ok(value),
        None => fail(start, format!("{what} must be an integer from 0 to 4294967295")),
    }
}

/// The first 64 characters.
pub fn cut(text: &str) -> String {
    let end = text.char_indices().nth(SHORT).map_or(text.len(), |(end, _)| end);
    text[..end].to_owned()
}
