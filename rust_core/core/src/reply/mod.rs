//! Replies: from the raw bytes of a completion to text, tool calls, usage and columns of tokens, in one pass.
//!
//! What is read is checked, and what is wrong with it is an error with its byte; what is not read is skipped, checked
//! only for being JSON. `docs/explanation/turn.md` has its place in a turn.
//!
//! Chat completions, completions (choices with a `text`) and what `SGLang`'s `/generate` answers share one set of rules.
//! What unusual input means:
//!
//! | input | meaning |
//! |---|---|
//! | nothing, a web page, a stream of events | an error that says so |
//! | bytes that are no UTF-8; a bare control character, an unknown or short escape in a string | error |
//! | escaped half of a surrogate pair | U+FFFD, one for each half |
//! | byte order mark at the start | passed over |
//! | bytes after the end, but for white space; more than 256 objects and lists in one another | error |
//! | `NaN`, `Infinity` | error, but for log-probabilities |
//! | a member that is read, twice in one object | error; twice a member that is skipped: not noticed |
//! | `choices` missing or null, or empty beside an `error` | error; empty alone: a reply without choices |
//! | several choices | any order; numbered 0 to n - 1, or not at all; a number missing or twice is an error |
//! | `content` null or missing | empty text; a list: its texts joined, its thinking to `reasoning` |
//! | no content, but a refusal | the refusal is the text |
//! | `reasoning_content`, `reasoning` | the first that is not null; what is no string says nothing |
//! | `tool_calls` null, missing or empty | no calls, or the one of `function_call` if that has a name |
//! | ids of calls and finish reasons that are integers | their digits |
//! | a finish reason null or unknown, of a choice with `max_tokens` tokens | `length` |
//! | usage that is enough for the first choice and too little for all | that of the first; the others are estimated |
//! | `arguments` that are no string | their own text; null or missing: empty |
//! | token counts missing, negative, no integer, above 2^31 - 1 | None, each alone; `cached` is at most `prompt` |
//! | integers written as `12.0` or `1.2e1` | integers |
//! | `token_ids` null or missing | from tokens named `token_id:17`; from `id`s if as many as `completion_tokens` |
//! | `prompt_token_ids` with a choice | those of the first choice that has any, where the reply has none |
//! | not as many log-probabilities as ids | both are kept, those of the tokens are NaN |
//! | ids that the request did not ask for | skipped, whatever they are |
//! | a message above 16 MiB with its reasoning, more than 1,048,576 ids | a fault of that choice alone |
//! | ids without log-probabilities | log-probabilities NaN, uncertainty unknown |
//! | lists `token_logprobs`, `tokens`, `top_logprobs` | the same as `content`; of different length: error |
//! | a log-probability `null` or `NaN` | NaN: not known; among the likeliest it does not count |
//! | `-Infinity`, and all below -9999 | -9999, which is what vLLM writes for zero probability |
//! | above 0 by rounding, at most 1e-5 | 0; more is an error |
//! | `bytes` null, missing or empty | the token's text, but a name like `token_id:17` spells nothing |
//! | fewer likeliest tokens than `top` | all there are; none: entropy NaN, except `surprisal` |
//!
//! Of `/generate`, one object is one completion and a list has them in order. `prompt` and `cached` are the first's,
//! `generated` is the sum. `output_top_logprobs` of another length than `output_token_logprobs` is an error.

mod choice;
mod entropy;
mod generate;
mod logprobs;
mod message;
mod number;
mod regions;
mod scanner;
mod several;
mod string;
mod usage;

pub use choice::ParsedChoice;
pub use entropy::{Arpo, Entropy, per_vocabulary};
pub use logprobs::Logprobs;
pub use message::{ReplyMessage, ToolCall};
pub(crate) use message::{escape, tool_result};
pub use regions::{Region, Tags, Uncertainty};
pub use usage::UsageCounts;

use std::borrow::Cow;

use crate::error::Result;
use crate::keyword::keywords;
use crate::reply::choice::{Numbered, cut, token_ids};
use crate::reply::message::loose;
use crate::reply::scanner::Scanner;
use crate::validation::within;

keywords! {
    /// What kind of reply the bytes are.
    #[derive(Default)]
    pub enum Form as "form", Or {
        /// A chat completion: choices with a message.
        #[default]
        Chat = "chat",
        /// A completion: choices with a text.
        Completion = "completion",
        /// What `SGLang`'s `/generate` answers: a text with `meta_info`, or a list of such.
        Generate = "generate",
    }
}

/// How to read a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyOptions {
    /// What kind of reply it is.
    pub form: Form,
    /// What a token's entropy is.
    pub entropy: Entropy,
    /// How many of the likeliest tokens count; where a server lists fewer, all it lists.
    pub top: usize,
    /// Version of the weights that answered; -1 for not known.
    pub version: i32,
    /// Whether token ids were asked for; what a server gives unasked is dropped.
    pub ids: bool,
    /// The tags around thinking.
    pub think: Tags,
    /// The tags around a tool call.
    pub tool: Tags,
    /// The most tokens that a choice may have, where the request says so: a choice of that many that is said to have
    /// ended for no reason was cut off.
    pub max_tokens: Option<u32>,
}

impl Default for ReplyOptions {
    /// A chat completion; consistent entropy over all tokens that are listed, no version, with ids, `<think>` and
    /// `<tool_call>`, no limit.
    fn default() -> Self {
        Self {
            form: Form::default(),
            entropy: Entropy::default(),
            top: usize::MAX,
            version: -1,
            ids: true,
            think: Tags::think(),
            tool: Tags::tool(),
            max_tokens: None,
        }
    }
}

impl ReplyOptions {
    /// Whether they make sense.
    ///
    /// # Errors
    /// [`crate::Error::Value`] if `top` is 0 or `version` is below -1.
    pub fn check(&self) -> Result<()> {
        within(self.top > 0, || "top is 0".to_owned(), "at least 1")?;
        within(self.version >= -1, || format!("version is {}", self.version), "-1 for not known, or 0 to 2147483647")
    }
}

/// What a reply says.
#[derive(Clone, Debug, Default)]
pub struct ParsedReply {
    /// The choices by their number; none where the server sent an empty list.
    pub choices: Vec<ParsedChoice>,
    /// Token ids of the prompt, where the server gives them.
    pub prompt_ids: Option<Vec<u32>>,
    /// What was counted; of a server that counts the first of several choices alone, the sum with what is estimated.
    pub counts: UsageCounts,
    /// Generated tokens of each choice, where the server counts the first of several alone.
    pub each: Option<Vec<u32>>,
    /// The generated tokens in `counts` that are estimated.
    pub estimated: u32,
    /// The model the server names, and its fingerprint, each cut to 64 characters; separated by a space.
    pub served: String,
}

/// Read the body of a reply.
///
/// # Errors
/// [`ReplyError`] with the byte at which something is wrong.
pub fn read(data: &[u8], options: &ReplyOptions) -> std::result::Result<ParsedReply, ReplyError> {
    let found = Scanner::new(data).and_then(|mut scan| {
        refuse_no_json(&mut scan)?;
        match options.form {
            Form::Chat | Form::Completion => completion(scan, options),
            Form::Generate => generate::body(scan, options),
        }
    });
    found.map_err(|error| *error)
}

/// Read what has `choices`.
fn completion(mut scan: Scanner<'_>, options: &ReplyOptions) -> ReplyResult<ParsedReply> {
    let mut reply = ParsedReply::default();
    let (mut model, mut fingerprint, mut found, mut error, mut timed) = (None, None, None, None, None);
    let names = ["choices", "usage", "model", "system_fingerprint", "prompt_token_ids", "timings", "error"];
    scan.object(&names, |scan, name| {
        match name {
            "choices" => found = scan.optional(|scan| choices(scan, options))?,
            "usage" => reply.counts = UsageCounts::read(scan)?,
            "model" => model = loose(scan)?,
            "system_fingerprint" => fingerprint = loose(scan)?,
            "prompt_token_ids" => reply.prompt_ids = token_ids(scan, options)?,
            "timings" => timed = several::predicted(scan)?,
            _ => {
                let start = scan.offset();
                error = scan.optional(Scanner::skip)?.map(|()| start);
            }
        }
        Ok(())
    })?;
    scan.end()?;
    if let Some(start) = error.filter(|_| found.as_ref().is_none_or(|(choices, _)| choices.is_empty())) {
        return fail(start, "this is an error object, not a reply");
    }
    let Some((choices, prompt_ids)) = found else {
        return fail(0, "the member \"choices\" is missing");
    };
    reply.choices = choices;
    reply.prompt_ids = reply.prompt_ids.or(prompt_ids);
    let names = [model, fingerprint].into_iter().flatten().filter(|name| !name.is_empty());
    reply.served = names.map(|name| cut(&name)).collect::<Vec<_>>().join(" ");
    several::settle(&mut reply, timed, options);
    Ok(reply)
}

/// Refuse what a server sends instead of JSON, saying what to do.
fn refuse_no_json(scan: &mut Scanner<'_>) -> ReplyResult<()> {
    let start = scan.offset();
    if scan.is_done() {
        return fail(start, "there is nothing but white space");
    }
    if scan.sees("<") {
        return fail(start, "this is a web page, not JSON; is the address right?");
    }
    if ["data:", "event:", ":"].into_iter().any(|field| scan.sees(field)) {
        return fail(start, "this is a stream of events; ask for a reply in one piece, without \"stream\"");
    }
    Ok(())
}

/// Read the value of `choices`, and the token ids of the prompt where a choice has them.
fn choices(scan: &mut Scanner<'_>, options: &ReplyOptions) -> ReplyResult<(Vec<ParsedChoice>, Option<Vec<u32>>)> {
    let mut found = Vec::with_capacity(1);
    let mut prompt_ids = None;
    scan.list(|scan| {
        let mut numbered = Numbered::read(scan, options)?;
        prompt_ids = prompt_ids.take().or(numbered.prompt_ids.take());
        found.push(numbered);
        Ok(())
    })?;
    Ok((in_order(found)?, prompt_ids))
}

/// Choices by their number. Numbers must be those from 0 on; no choice has one, or every choice. Of one choice alone the
/// number does not matter.
fn in_order(mut found: Vec<Numbered>) -> ReplyResult<Vec<ParsedChoice>> {
    if found.len() > 1 && found.iter().any(|numbered| numbered.index.is_some()) {
        if let Some(bare) = found.iter().find(|numbered| numbered.index.is_none()) {
            return fail(bare.offset, "the member \"index\" is missing, though other choices have it");
        }
        found.sort_by_key(|numbered| numbered.index);
        if let Some(pair) = found.windows(2).find(|pair| pair[0].index == pair[1].index) {
            let index = pair[1].index.unwrap_or_default();
            return fail(pair[1].offset, format!("there are two choices with the index {index}"));
        }
        if let Some((missing, gap)) = (0..).zip(&found).find(|(place, numbered)| numbered.index != Some(*place)) {
            return fail(gap.offset, format!("of {} choices none has the index {missing}", found.len()));
        }
    }
    let number =
        |(place, numbered): (u32, Numbered)| ParsedChoice { index: numbered.index.unwrap_or(place), ..numbered.choice };
    Ok((0..).zip(found).map(number).collect())
}

/// What reading returns. The error is boxed, so that most results fit into a register: it saves a tenth of the time.
type ReplyResult<T> = std::result::Result<T, Box<ReplyError>>;

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
fn fail<T>(offset: usize, reason: impl Into<Cow<'static, str>>) -> ReplyResult<T> {
    Err(Box::new(ReplyError { offset, place: String::new(), reason: reason.into() }))
}

impl ReplyError {
    /// Say that the place is inside of `outer`.
    pub(super) fn nest(&mut self, outer: &str) {
        let dot = if self.place.is_empty() || self.place.starts_with('[') { "" } else { "." };
        self.place = format!("{outer}{dot}{}", self.place);
    }
}
