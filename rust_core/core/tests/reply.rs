//! Replies against a slow reader: `serde_json` reads the bytes, recursive functions on its values do the rest.

#![allow(missing_docs)]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_precision_loss)]

use std::fmt::Write;

use proptest::prelude::*;
use serde_json::{Value, json};
use trunkline_core::reply::{Entropy, ParsedChoice, ParsedReply, ReplyOptions, read};
use trunkline_core::{Random, Region, SAMPLED, TRUNCATED};

/// JSON text of a value, with chance in all that has no meaning: white space, order of members, escapes.
fn render(value: &Value, random: &mut Random, out: &mut String) {
    let space = |random: &mut Random, out: &mut String| {
        (0..random.below(3)).for_each(|_| out.push(b" \n\t\r"[random.index(4)].into()));
    };
    space(random, out);
    match value {
        Value::Object(members) => {
            let mut names: Vec<&String> = members.keys().collect();
            random.shuffle(&mut names);
            out.push('{');
            for (place, name) in names.into_iter().enumerate() {
                out.push_str(if place == 0 { "" } else { "," });
                render(&Value::String(name.clone()), random, out);
                out.push(':');
                render(&members[name], random, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (place, item) in items.iter().enumerate() {
                out.push_str(if place == 0 { "" } else { "," });
                render(item, random, out);
            }
            out.push(']');
        }
        Value::String(text) => {
            out.push('"');
            for c in text.chars() {
                if c < ' ' || matches!(c, '"' | '\\') || random.below(8) == 0 {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                } else {
                    out.push(c);
                }
            }
            out.push('"');
        }
        other => out.push_str(&other.to_string()),
    }
    space(random, out);
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), "[a-c<>/\"\\\\\n]{0,12}", Just(String::new())]
}

fn token() -> impl Strategy<Value = String> {
    const PIECES: [&str; 8] = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<", "</", "think>", "tool_call>"];
    prop_oneof![prop::sample::select(&PIECES[..]).prop_map(str::to_owned), "[a-zé<>]{0,3}"]
}

fn logprob() -> impl Strategy<Value = Value> {
    prop_oneof![8 => (-20.0..=0.0f64).prop_map(Value::from), 1 => Just(Value::Null), 1 => Just(json!(-9999.0)), 1 => Just(json!(-1e30))]
}

fn alternative() -> impl Strategy<Value = Value> {
    (token(), logprob()).prop_map(|(token, logprob)| json!({"token": token, "logprob": logprob, "bytes": [0, 7, 255]}))
}

fn entry() -> impl Strategy<Value = Value> {
    let top = prop_oneof![Just(Value::Null), prop::collection::vec(alternative(), 0..14).prop_map(Value::Array)];
    (token(), logprob(), top, any::<bool>()).prop_map(|(token, logprob, top, spelt)| {
        let bytes = if spelt { json!(token.as_bytes()) } else { Value::Null };
        let token = if spelt { "?".to_owned() } else { token };
        json!({"token": token, "logprob": logprob, "bytes": bytes, "top_logprobs": top})
    })
}

fn call() -> impl Strategy<Value = Value> {
    (text(), text(), text()).prop_map(|(id, name, arguments)| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
}

fn choice() -> impl Strategy<Value = Value> {
    let message = (prop::option::of(text()), prop::option::of(text()), prop::collection::vec(call(), 0..3));
    let entries = prop::option::of(prop::collection::vec(entry(), 0..30));
    let finish = prop::sample::select(vec![json!("length"), json!("stop"), Value::Null]);
    // Ids as many as log-probabilities, or one more or less.
    (message, entries, prop::option::of(0..3usize), finish).prop_map(
        |((content, reasoning, calls), entries, ids, finish)| {
            let mut choice = json!({
                "message": {"role": "assistant", "content": content, "reasoning_content": reasoning, "tool_calls": calls, "audio": {"a": [1.5e3, true]}},
                "finish_reason": finish,
                "logprobs": {"content": entries, "refusal": null},
            });
            if let Some(more) = ids {
                choice["token_ids"] = (1..entries.map_or(3, |entries| entries.len()) + more).collect();
            }
            choice
        },
    )
}

/// A reply, its choices in any order, as bytes.
fn reply() -> impl Strategy<Value = String> {
    let usage = prop::option::of((0..1u64 << 33, 0..1u64 << 33, -5..50i64));
    (prop::collection::vec(choice(), 0..4), usage, any::<u64>()).prop_map(|(mut choices, usage, seed)| {
        let mut random = Random::new(seed);
        choices.iter_mut().enumerate().for_each(|(index, choice)| choice["index"] = index.into());
        random.shuffle(&mut choices);
        let usage = usage.map(|(prompt, generated, cached)| {
            json!({"prompt_tokens": prompt, "completion_tokens": generated, "prompt_tokens_details": {"cached_tokens": cached}})
        });
        let mut out = String::new();
        render(&json!({"id": "x", "choices": choices, "usage": usage, "model": "m"}), &mut random, &mut out);
        out
    })
}

fn entropy(kind: Entropy, own: f64, top: &[f64]) -> f64 {
    let mass: f64 = top.iter().map(|l| l.exp()).sum();
    match kind {
        Entropy::Surprisal => -own,
        _ if top.is_empty() => f64::NAN,
        // Where all are at the floor the naive sums are of zeros.
        _ if mass == 0.0 => {
            if kind == Entropy::Consistent {
                (top.len() as f64).ln()
            } else {
                9999.0
            }
        }
        Entropy::ParallelMuse => -top.iter().map(|l| l.exp() / mass * l).sum::<f64>(),
        Entropy::Consistent => {
            -top.iter().map(|l| l.exp() / mass).filter(|q| *q > 0.0).map(|q| q * q.ln()).sum::<f64>()
        }
    }
}

/// A letter for each byte: h thinking, t tool call, g tag, - nothing.
fn letters(text: &[u8], thought: bool, called: bool) -> Vec<u8> {
    let find = |text: &[u8], tag: &str| text.windows(tag.len()).position(|window| window == tag.as_bytes());
    let tags = ["<think>", "</think>", "<tool_call>", "</tool_call>"];
    let first = (0..4).filter_map(|tag| find(text, tags[tag]).map(|at| (at, tag))).min();
    let Some((at, tag)) = first else { return vec![b'-'; text.len()] };
    let start = at + tags[tag].len();
    let letter = if tag < 2 { b'h' } else { b't' };
    if tag % 2 == 0 {
        let close = tags[tag + 1];
        let end = find(&text[start..], close).map_or(text.len(), |len| start + len);
        let next = (end + close.len()).min(text.len());
        let mut out =
            [vec![b'-'; at], vec![b'g'; start - at], vec![letter; end - start], vec![b'g'; next - end]].concat();
        out.extend(letters(&text[next..], thought || tag == 0, called || tag == 2));
        return out;
    }
    let fresh = if tag == 1 { !thought } else { !called };
    let mut out = [vec![if fresh { letter } else { b'-' }; at], vec![b'g'; start - at]].concat();
    out.extend(letters(&text[start..], thought || tag == 1, called || tag == 3));
    out
}

/// The letters of a whole text. A first tag of thinking that closes makes thinking of all before it.
fn all_letters(text: &[u8]) -> Vec<u8> {
    let plain = letters(text, false, false);
    let close = b"</think>";
    // The same walk, cut short at every close tag outside of regions, says whether one of them was the first of its kind.
    let closes = |at: &usize| text[*at..].starts_with(close) && plain[*at] == b'g';
    if let Some(at) = (0..text.len()).find(closes) {
        let before = letters(&text[..at], false, false);
        let opened =
            (0..at).any(|i| before[i] == b'g' && (text[i..].starts_with(b"<think>") || text[i..].starts_with(close)));
        if !opened {
            let mut out = [vec![b'h'; at], vec![b'g'; close.len()]].concat();
            out.extend(letters(&text[at + close.len()..], true, false));
            return out;
        }
    }
    plain
}

fn number(value: &Value) -> f64 {
    value.as_f64().map_or(f64::NAN, |number| number.max(-9999.0))
}

fn close(found: f32, expected: f64) -> bool {
    (found.is_nan() && expected.is_nan()) || (f64::from(found) - expected).abs() <= 1e-5 * expected.abs().max(1.0)
}

fn check_entries(choice: &ParsedChoice, entries: &[Value], options: &ReplyOptions) -> Result<(), TestCaseError> {
    let listed = choice.listed.as_ref().unwrap();
    prop_assert_eq!((listed.logprobs.len(), listed.entropies.len()), (entries.len(), entries.len()));
    let (mut text, mut ends, mut entropies, mut arpo) = (Vec::new(), Vec::new(), Vec::new(), 0.0);
    for (place, entry) in entries.iter().enumerate() {
        match &entry["bytes"] {
            Value::Array(bytes) if !bytes.is_empty() => text.extend(bytes.iter().map(|b| b.as_u64().unwrap() as u8)),
            _ => text.extend_from_slice(entry["token"].as_str().unwrap().as_bytes()),
        }
        ends.push(text.len());
        let mut top: Vec<f64> =
            entry["top_logprobs"].as_array().into_iter().flatten().map(|one| number(&one["logprob"])).collect();
        top.retain(|l| !l.is_nan());
        top.sort_by(|a, b| b.total_cmp(a));
        if place < 20 {
            arpo -= top.iter().take(10).map(|l| l.exp() * l).sum::<f64>();
        }
        let own = number(&entry["logprob"]);
        entropies.push(entropy(options.entropy, own, &top[..top.len().min(options.top)]));
        prop_assert!(close(listed.logprobs[place], own));
        prop_assert!(
            close(listed.entropies[place], entropies[place]),
            "{} {}",
            listed.entropies[place],
            entropies[place]
        );
    }
    let expected = listed.arpo.over(1000);
    prop_assert!(expected.is_nan() || (expected - arpo / 1000f64.ln()).abs() < 1e-9);
    let letters = all_letters(&text);
    for (region, letter) in [(Region::Think, b"h".as_slice()), (Region::Tool, b"t"), (Region::All, b"htg-")] {
        let inside = |token: &usize| {
            let span = &letters[if *token == 0 { 0 } else { ends[token - 1] }..ends[*token]];
            region == Region::All || (!span.contains(&b'g') && span.iter().any(|l| letter.contains(l)))
        };
        let known: Vec<f64> =
            (0..ends.len()).filter(inside).map(|token| entropies[token]).filter(|h| !h.is_nan()).collect();
        let mean = known.iter().sum::<f64>() / known.len() as f64;
        let found = choice.uncertainty();
        prop_assert!(close(found.entropy[region as usize], mean), "{region:?} {:?} {mean}", found.entropy);
        prop_assert!(
            close(found.perplexity[region as usize], mean.exp().clamp(0.0, f64::from(f32::MAX))),
            "{:?}",
            found.perplexity
        );
    }
    Ok(())
}

fn check(reply: &ParsedReply, value: &Value, options: &ReplyOptions) -> Result<(), TestCaseError> {
    let mut choices = value["choices"].as_array().unwrap().clone();
    choices.sort_by_key(|choice| choice["index"].as_u64());
    prop_assert_eq!(reply.choices.len(), choices.len());
    for (found, expected) in reply.choices.iter().zip(&choices) {
        let message = &expected["message"];
        prop_assert_eq!(&found.message.content, message["content"].as_str().unwrap_or_default());
        prop_assert_eq!(found.message.reasoning.as_deref(), message["reasoning_content"].as_str());
        let calls: Vec<Value> = found.message
            .tool_calls
            .iter()
            .map(|call| json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}))
            .collect();
        prop_assert_eq!(&Value::Array(calls), &message["tool_calls"]);
        prop_assert_eq!(&found.finish, expected["finish_reason"].as_str().unwrap_or_default());
        let again: Value = serde_json::from_slice(&found.message.canonical(7).unwrap()).unwrap();
        prop_assert_eq!(again["tool_calls"].as_array().map_or(0, Vec::len), found.message.tool_calls.len());
        prop_assert_eq!(again["content"].as_str().unwrap_or_default(), found.message.text());
        let entries = expected["logprobs"]["content"].as_array();
        prop_assert_eq!(entries.is_some(), found.listed.is_some());
        if let Some(entries) = entries {
            check_entries(found, entries, options)?;
        }
        let ids = expected.get("token_ids").map(|ids| ids.as_array().unwrap());
        prop_assert_eq!(ids.is_some(), found.tokens.is_some());
        if let (Some(ids), Some(tokens)) = (ids, &found.tokens) {
            prop_assert_eq!(json!(tokens.ids), json!(ids));
            prop_assert_eq!((tokens.logprobs.len(), &tokens.versions), (ids.len(), &vec![options.version; ids.len()]));
            let listed = found.listed.as_ref().map(|listed| listed.logprobs.as_slice());
            let aligned = listed.is_some_and(|listed| listed.len() == ids.len());
            prop_assert_eq!(found.is_aligned(), aligned);
            let expected = if aligned { listed.unwrap().to_vec() } else { vec![f32::NAN; ids.len()] };
            prop_assert_eq!(format!("{:?}", tokens.logprobs), format!("{expected:?}"));
            let cut = u8::from(found.finish == "length") * TRUNCATED;
            let flags: Vec<u8> =
                (0..ids.len()).map(|id| if id + 1 == ids.len() { SAMPLED | cut } else { SAMPLED }).collect();
            prop_assert_eq!(&tokens.flags, &flags);
        }
    }
    let count = |value: &Value| value.as_u64().filter(|count| *count < 1 << 31).map(|count| count as u32);
    let usage = &value["usage"];
    prop_assert_eq!(reply.counts.prompt, count(&usage["prompt_tokens"]));
    prop_assert_eq!(reply.counts.generated, count(&usage["completion_tokens"]));
    let cached =
        count(&usage["prompt_tokens_details"]["cached_tokens"]).zip(reply.counts.prompt).map(|(a, b)| a.min(b));
    prop_assert_eq!(reply.counts.cached, cached);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_reply_reads_as_the_slow_reader_reads_it(bytes in reply(), entropy in prop::sample::select(&Entropy::ALL[..]), top in prop_oneof![1..6usize, Just(usize::MAX)]) {
        let options = ReplyOptions { entropy, top, version: 5, ..ReplyOptions::default() };
        let value: Value = serde_json::from_str(&bytes).unwrap();
        check(&read(bytes.as_bytes(), &options).unwrap(), &value, &options)?;
    }

    #[test]
    fn what_was_cut_off_is_refused_within_its_bytes(bytes in reply(), cut in any::<prop::sample::Index>()) {
        let end = bytes.rfind('}').unwrap();
        let cut = &bytes.as_bytes()[..cut.index(end + 1)];
        let error = read(cut, &ReplyOptions::default()).unwrap_err();
        prop_assert!(error.offset <= cut.len());
    }

    #[test]
    fn a_damaged_byte_gives_an_error_or_a_reply_and_never_a_panic(bytes in reply(), at in any::<prop::sample::Index>(), byte: u8) {
        let mut bytes = bytes.into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Err(error) = read(&bytes, &ReplyOptions::default()) {
            prop_assert!(error.offset <= bytes.len());
            return Ok(());
        }
        // `serde_json` refuses halves of surrogate pairs, so they are made whole characters first, and numbers beyond all
        // of `f64`.
        let halves: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(b"\\u")).collect();
        for at in halves {
            bytes[at + 2] = b'0';
        }
        let again = serde_json::from_slice::<Value>(&bytes);
        let json = again.as_ref().err().is_none_or(|error| error.to_string().contains("out of range"));
        prop_assert!(json, "{again:?}");
    }
}
