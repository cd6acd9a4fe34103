//! What `SGLang`'s `/generate` answers: an object for each completion, in a list where several were asked for.
//!
//! `{"text": ..., "output_ids": [id, ...], "meta_info": {"finish_reason": {"type": ...}, "prompt_tokens": ...,
//! "completion_tokens": ..., "cached_tokens": ..., "output_token_logprobs": [[logprob, id, text or null], ...],
//! "output_top_logprobs": [[[logprob, id, text or null], ...], ...]}}`

use super::choice::{cut, integer, token_ids};
use super::logprobs::{Listed, LogprobReader, logprob};
use super::message::{ReplyMessage, label};
use super::scanner::Scanner;
use super::usage::count;
use super::{ParsedChoice, ParsedReply, ReplyOptions, ReplyResult, UsageCounts, fail};

/// Read the body.
pub fn body(mut scan: Scanner<'_>, options: &ReplyOptions) -> ReplyResult<ParsedReply> {
    let mut reply = ParsedReply::default();
    let mut take = |scan: &mut Scanner<'_>| {
        let index = u32::try_from(reply.choices.len()).unwrap_or(u32::MAX);
        let (choice, counts) = completion(scan, options)?;
        reply.counts = if index == 0 { counts } else { together(reply.counts, counts) };
        reply.choices.push(ParsedChoice { index, ..choice });
        Ok(())
    };
    if scan.peek() == b'[' {
        scan.list(take)?;
    } else {
        take(&mut scan)?;
    }
    scan.end()?;
    Ok(reply)
}

/// The figures of one prompt's completions: each of them reports the whole prompt.
fn together(all: UsageCounts, one: UsageCounts) -> UsageCounts {
    let sum = |(all, one): (u32, u32)| all.saturating_add(one);
    UsageCounts { generated: all.generated.zip(one.generated).map(sum), ..all }
}

/// What `meta_info` says.
#[derive(Default)]
struct Meta {
    finish: String,
    counts: UsageCounts,
    own: Option<Vec<TokenEntry>>,
    tops: Option<Vec<Vec<f64>>>,
}

/// A token: its log-probability, id and text.
struct TokenEntry {
    logprob: f64,
    id: u32,
    text: String,
}

fn completion(scan: &mut Scanner<'_>, options: &ReplyOptions) -> ReplyResult<(ParsedChoice, UsageCounts)> {
    let start = scan.offset();
    let (mut text, mut ids, mut meta, mut error) = (None, None, None, None);
    scan.object(&["text", "output_ids", "meta_info", "error"], |scan, name| {
        let at = scan.offset();
        match name {
            "text" => text = scan.optional(ReplyMessage::raw)?,
            "output_ids" => ids = token_ids(scan, options)?,
            "meta_info" => meta = scan.optional(Meta::read)?.map(|meta| (at, meta)),
            _ => error = scan.optional(Scanner::skip)?.map(|()| at),
        }
        Ok(())
    })?;
    let Some(message) = text else {
        return match error {
            Some(at) => fail(at, "this is an error object, not a reply"),
            None => fail(start, "the member \"text\" is missing"),
        };
    };
    let Some((at, meta)) = meta else {
        return fail(start, "the member \"meta_info\" is missing");
    };
    let Meta { finish, counts, own, tops } = meta;
    let mut choice = ParsedChoice { message, finish, ..ParsedChoice::default() };
    let listed = own.map(|own| listed(own, tops, at, options)).transpose()?;
    choice.give(ids, listed, options);
    Ok((choice, counts))
}

/// The columns of the sampled tokens.
fn listed(own: Vec<TokenEntry>, tops: Option<Vec<Vec<f64>>>, at: usize, options: &ReplyOptions) -> ReplyResult<Listed> {
    if let Some(count) = tops.as_ref().map(Vec::len).filter(|count| *count != own.len()) {
        return fail(at, format!("there are {count} lists of likeliest tokens and {} log-probabilities", own.len()));
    }
    let ids = own.iter().map(|entry| entry.id).collect();
    let mut tops = tops.unwrap_or_default().into_iter();
    let mut reader = LogprobReader::default();
    for TokenEntry { logprob, text, .. } in own {
        reader.top = tops.next().unwrap_or_default();
        reader.push(&text, logprob, options);
    }
    Ok(Listed { ids: Some(ids), ..reader.finish(options) })
}

impl Meta {
    fn read(scan: &mut Scanner<'_>) -> ReplyResult<Self> {
        let mut meta = Self::default();
        let names = [
            "finish_reason",
            "prompt_tokens",
            "completion_tokens",
            "cached_tokens",
            "output_token_logprobs",
            "output_top_logprobs",
        ];
        scan.object(&names, |scan, name| {
            match name {
                "finish_reason" => meta.finish = scan.optional(finish)?.unwrap_or_default(),
                "prompt_tokens" => meta.counts.prompt = count(scan)?,
                "completion_tokens" => meta.counts.generated = count(scan)?,
                "cached_tokens" => meta.counts.cached = count(scan)?,
                "output_token_logprobs" => meta.own = scan.optional(entries)?,
                _ => meta.tops = scan.optional(likeliest)?,
            }
            Ok(())
        })?;
        let UsageCounts { prompt, cached, .. } = meta.counts;
        meta.counts.cached = cached.zip(prompt).map(|(cached, prompt)| cached.min(prompt));
        Ok(meta)
    }
}

/// Why it ended: the `type` of an object, or a string.
fn finish(scan: &mut Scanner<'_>) -> ReplyResult<String> {
    if scan.peek() != b'{' {
        return label(scan).map(|reason| cut(&reason));
    }
    let mut reason = String::new();
    scan.object(&["type"], |scan, _| {
        reason = scan.optional(label)?.map(|reason| cut(&reason)).unwrap_or_default();
        Ok(())
    })?;
    Ok(reason)
}

fn entries(scan: &mut Scanner<'_>) -> ReplyResult<Vec<TokenEntry>> {
    let mut found = Vec::new();
    scan.list(|scan| {
        found.push(entry(scan)?);
        Ok(())
    })?;
    Ok(found)
}

/// A token: `[logprob, id]` or `[logprob, id, text or null]`.
fn entry(scan: &mut Scanner<'_>) -> ReplyResult<TokenEntry> {
    let start = scan.offset();
    let (mut own, mut id, mut text) = (None, None, String::new());
    let mut place = 0;
    scan.list(|scan| {
        match place {
            0 => own = Some(logprob(scan)?),
            1 => id = Some(integer(scan, "a token id")?),
            2 => text = scan.optional(Scanner::string)?.unwrap_or_default().into_owned(),
            _ => scan.skip()?,
        }
        place += 1;
        Ok(())
    })?;
    match (own, id) {
        (Some(logprob), Some(id)) => Ok(TokenEntry { logprob, id, text }),
        _ => fail(start, "a log-probability and a token id are needed"),
    }
}

/// The log-probabilities of the likeliest tokens at each place; those that are not known do not count.
fn likeliest(scan: &mut Scanner<'_>) -> ReplyResult<Vec<Vec<f64>>> {
    let mut found = Vec::new();
    scan.list(|scan| {
        let top = scan.optional(entries)?.unwrap_or_default();
        found.push(top.iter().map(|entry| entry.logprob).filter(|own| !own.is_nan()).collect());
        Ok(())
    })?;
    Ok(found)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use crate::reply::{Form, ParsedReply, ReplyError, ReplyOptions, read};
    use crate::storage::tokens::{SAMPLED, TRUNCATED};

    fn found(json: &str) -> Result<ParsedReply, ReplyError> {
        read(json.as_bytes(), &ReplyOptions { form: Form::Generate, ..ReplyOptions::default() })
    }

    fn one(text: &str, tokens: &str, finish: &str) -> String {
        format!(
            r#"{{"text":"{text}","output_ids":[7,8],"meta_info":{{"id":"x","finish_reason":{finish},"prompt_tokens":5,
            "completion_tokens":2,"cached_tokens":9,"e2e_latency":0.1,"output_token_logprobs":{tokens}}}}}"#
        )
    }

    #[test]
    fn a_completion_is_an_object() {
        let reply = found(&one("ab", r#"[[-0.5,7,"a"],[null,8,null]]"#, r#"{"type":"length","length":2}"#)).unwrap();
        let choice = &reply.choices[0];
        assert_eq!((choice.message.text(), choice.finish.as_str(), choice.is_aligned()), ("ab", "length", true));
        let tokens = choice.tokens.as_ref().unwrap();
        assert_eq!(
            (tokens.ids.as_slice(), tokens.flags.as_slice()),
            (&[7, 8][..], &[SAMPLED, SAMPLED | TRUNCATED][..])
        );
        assert!((tokens.logprobs[0] + 0.5).abs() < 1e-9 && tokens.logprobs[1].is_nan());
        assert_eq!((reply.counts.prompt, reply.counts.cached, reply.counts.generated), (Some(5), Some(5), Some(2)));
    }

    #[test]
    fn several_completions_are_a_list() {
        let parts: Vec<String> = ["a", "b", "c"].iter().map(|text| one(text, "null", r#"{"type":"stop"}"#)).collect();
        let reply = found(&format!(" [{}] ", parts.join(","))).unwrap();
        let said: Vec<_> = reply.choices.iter().map(|choice| (choice.index, choice.message.text())).collect();
        assert_eq!(said, [(0, "a"), (1, "b"), (2, "c")]);
        assert_eq!((reply.counts.prompt, reply.counts.generated), (Some(5), Some(6)));
        assert!(reply.choices[0].tokens.as_ref().unwrap().logprobs.iter().all(|own| own.is_nan()));
    }

    #[test]
    fn ids_stand_beside_log_probabilities_too() {
        let json = r#"{"text":"a","meta_info":{"finish_reason":null,"output_token_logprobs":[[-1,3]],
            "output_top_logprobs":[[[-1,3,"a"],[-1,4,null]]]}}"#;
        let reply = found(json).unwrap();
        let choice = &reply.choices[0];
        assert_eq!((choice.tokens.as_ref().unwrap().ids.as_slice(), choice.finish.as_str()), (&[3][..], ""));
        assert!((choice.listed.as_ref().unwrap().entropies[0] - 2f32.ln()).abs() < 1e-6);
    }

    #[test]
    fn what_is_no_completion_is_refused() {
        let refused = |json: &str| found(json).err().unwrap().to_string();
        assert!(refused(r#"{"error":{"message":"no"}}"#).contains("this is an error object"));
        assert!(refused(r#"{"meta_info":{}}"#).contains("\"text\" is missing"));
        assert!(refused(r#"{"text":"a"}"#).contains("\"meta_info\" is missing"));
        assert!(refused(&one("a", "[[-1]]", "null")).contains("a log-probability and a token id are needed"));
        assert!(refused(&one("a", "[[1,2]]", "null")).contains("must be at most 0"));
        let uneven = r#"{"text":"a","meta_info":{"output_token_logprobs":[],"output_top_logprobs":[null]}}"#;
        assert!(refused(uneven).contains("1 lists of likeliest tokens and 0"));
        assert!(refused("<html>").contains("web page"));
        assert!(found("[]").unwrap().choices.is_empty());
    }
}
