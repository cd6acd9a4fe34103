//! Replies that are wrong, and replies that are only unusual.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used)]

use trunkline_core::reply::{Entropy, ParsedChoice, ParsedReply, ReplyOptions, Tags, read};
use trunkline_core::{SAMPLED, TRUNCATED};

#[track_caller]
fn refused(body: &str, text: &str, at: &str) {
    let error = read(body.as_bytes(), &ReplyOptions::default()).unwrap_err();
    assert!(error.to_string().contains(text), "{error}");
    assert_eq!(error.offset, body.find(at).unwrap(), "{error}");
}

#[test]
fn wrong_values_are_named_with_their_byte() {
    refused(r#"{"choices":7}"#, "choices: a list is needed, not a number", "7");
    refused(r#"{"choices":[{"index":0}]}"#, "choices[0]: the member \"message\" is missing", "{\"index");
    refused(
        r#"{"choices":[{"message":{"content":{}}}]}"#,
        "choices[0].message.content: a string is needed, not an object",
        "{}",
    );
    refused(
        r#"{"choices":[{"message":{"content":"a","content":"b"}}]}"#,
        "\"content\" is there twice",
        r#""content":"b"#,
    );
    refused(r#"{"choices":[{"message":{},"index":-1}]}"#, "an index must be an integer from 0", "-1");
    refused(
        r#"{"choices":[{"message":{},"token_ids":[1,2.5]}]}"#,
        "choices[0].token_ids[1]: a token id must be an integer",
        "2.5",
    );
    refused(r#"{"choices":[],"x":NaN}"#, "a value is needed, not NaN", "NaN");
    let error = read(br#"{"choices":[{"message":{"x":[1,{"y":[NaN]}]}}]}"#, &ReplyOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), "choices[0].message: a value is needed, not NaN (byte 37)");
    refused(r#"{"choices":[]} x"#, "the end is needed, not 'x'", "x");
    refused(r#"{"error":{"message":"m"}}"#, "an error object", r#"{"message"#);
    refused(r#"{"choices":[],"error":{"message":"m"}}"#, "an error object", r#"{"message"#);
    refused(r#"{"id":"x"}"#, "\"choices\" is missing", "{");
    refused("{\"choices\":[]}\0", "the end is needed, not '\\0'", "\0");
}

#[test]
fn what_is_no_json_says_what_to_do() {
    refused("", "there is nothing but white space", "");
    assert_eq!(
        read(b" \n", &ReplyOptions::default()).unwrap_err().to_string(),
        "there is nothing but white space (byte 2)"
    );
    refused(" <html><body>502</body></html>", "this is a web page, not JSON; is the address right?", "<html");
    for stream in ["data: {\"choices\":[]}\n\ndata: [DONE]\n", ": keep-alive\n\ndata: {}\n", "event: ping\n"] {
        refused(stream, "this is a stream of events; ask for a reply in one piece", stream);
    }
}

fn choice(members: &str) -> ParsedChoice {
    let body = format!(r#"{{"choices":[{{"message":{{}}{members}}}]}}"#);
    read(body.as_bytes(), &ReplyOptions { version: 3, ..ReplyOptions::default() }).unwrap().choices.remove(0)
}

#[test]
fn fewer_log_probabilities_than_ids_keep_both() {
    let listed =
        r#","logprobs":{"content":[{"token":"a","logprob":-0.5,"top_logprobs":[{"logprob":0},{"logprob":0}]}]}"#;
    for ids in ["[7,8,9]", "[]"] {
        let found = choice(&format!(r#"{listed},"token_ids":{ids},"finish_reason":"length""#));
        assert!(!found.is_aligned());
        assert!((found.uncertainty().perplexity[2] - 2.0).abs() < 1e-5);
        let tokens = found.tokens.unwrap();
        assert!(tokens.logprobs.len() == tokens.ids.len() && tokens.logprobs.iter().all(|own| own.is_nan()));
        assert_eq!(found.listed.unwrap().logprobs, [-0.5]);
    }
    let found = choice(&format!(r#"{listed},"token_ids":[7],"finish_reason":"length""#));
    assert!(found.is_aligned());
    let tokens = found.tokens.unwrap();
    assert_eq!((tokens.logprobs, tokens.versions, tokens.flags), (vec![-0.5], vec![3], vec![SAMPLED | TRUNCATED]));
    assert!(!choice(listed).is_aligned() && !choice(r#","token_ids":[7]"#).is_aligned());
}

#[test]
fn names_of_tokens_may_be_their_ids() {
    let entry = |name: &str, bytes: &[u8]| format!(r#"{{"token":"{name}","logprob":-1,"bytes":{bytes:?}}}"#);
    let body = |entries: &[String], more: &str| format!(r#","logprobs":{{"content":[{}]}}{more}"#, entries.join(","));
    let options = ReplyOptions { entropy: Entropy::Surprisal, ..ReplyOptions::default() };
    let named =
        [entry("token_id:7", b"<think>"), entry("token_id:4294967295", b"a"), entry("token_id:5", b"token_id:5")];
    let found = choice(&body(&named, ""));
    assert!(found.is_aligned());
    assert_eq!(found.tokens.unwrap().ids, [7, u32::MAX, 5]);
    let whole = format!(r#"{{"choices":[{{"message":{{}}{}}}]}}"#, body(&named, ""));
    let found = read(whole.as_bytes(), &options).unwrap().choices[0].uncertainty();
    assert_eq!(found.entropy[..2].iter().map(|h| h.is_nan()).collect::<Vec<_>>(), [false, true]);
    // A list of ids says more, and names of some tokens say too little.
    assert_eq!(choice(&body(&named, r#","token_ids":[1,2,3]"#)).tokens.unwrap().ids, [1, 2, 3]);
    assert_eq!(choice(&body(&[entry("token_id:7", b""), entry("a", b"")], "")).tokens, None);
    assert_eq!(choice(&body(&[entry("token_id:4294967296", b"")], "")).tokens, None);
    assert_eq!(choice(&body(&[], "")).tokens, None);
}

#[test]
fn bytes_that_are_only_a_name_spell_nothing() {
    // Were the name part of the text, the tag in two tokens would not be one.
    let entries = r#"{"token":"token_id:1","logprob":-1,"bytes":[60,47]},{"token":"token_id:2","logprob":-1},
        {"token":"token_id:2","logprob":-1,"bytes":[116,111,107,101,110,95,105,100,58,50]},
        {"token":"token_id:3","logprob":-1,"bytes":[116,104,105,110,107,62]}"#;
    let body =
        |before: &str| format!(r#"{{"choices":[{{"message":{{}},"logprobs":{{"content":[{before}{entries}]}}}}]}}"#);
    let options = ReplyOptions { entropy: Entropy::Surprisal, ..ReplyOptions::default() };
    let found = read(body(r#"{"token":"token_id:9","logprob":-2,"bytes":[97]},"#).as_bytes(), &options).unwrap();
    assert!((found.choices[0].uncertainty().entropy[0] - 2.0).abs() < 1e-6);
}

#[test]
fn ids_of_the_prompt_may_stand_with_a_choice() {
    let ids = |body: &str| read(body.as_bytes(), &ReplyOptions::default()).unwrap().prompt_ids;
    let choices = r#""choices":[{"message":{},"index":1},{"message":{},"index":0,"prompt_token_ids":[4,5]}]"#;
    assert_eq!(ids(&format!("{{{choices}}}")), Some(vec![4, 5]));
    assert_eq!(ids(&format!(r#"{{{choices},"prompt_token_ids":[6]}}"#)), Some(vec![6]));
    assert_eq!(ids(&format!(r#"{{{choices},"prompt_token_ids":null}}"#)), Some(vec![4, 5]));
    let two = r#"{"choices":[{"message":{},"prompt_token_ids":[1]},{"message":{},"prompt_token_ids":[2]}]}"#;
    assert_eq!(ids(two), Some(vec![1]));
    assert_eq!(ids(r#"{"choices":[{"message":{},"prompt_token_ids":null}]}"#), None);
}

#[test]
fn vllm_sends_every_member_it_knows() {
    let body = r#"{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{
        "role":"assistant","content":null,"refusal":null,"annotations":null,"audio":null,"function_call":null,"tool_calls":[],
        "reasoning":null,"reasoning_content":null},"logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":null}],
        "service_tier":null,"system_fingerprint":null,"usage":{"prompt_tokens":4,"total_tokens":5,"completion_tokens":1,
        "prompt_tokens_details":null},"prompt_logprobs":null,"prompt_token_ids":null,"kv_transfer_params":null}
        "#;
    let found = read(body.as_bytes(), &ReplyOptions::default()).unwrap();
    let only = &found.choices[0];
    assert_eq!((only.message.text(), &*only.finish, only.message.tool_calls.len()), ("", "stop", 0));
    assert!(only.tokens.is_none() && only.listed.is_none() && found.prompt_ids.is_none());
    assert_eq!((found.counts.prompt, found.counts.cached, found.counts.generated), (Some(4), None, Some(1)));
    assert_eq!(found.served, "m");
}

#[test]
fn a_role_that_is_no_string_says_nothing() {
    let body = br#"{"choices":[{"message":{"role":7,"content":"a"}}]}"#;
    let found = read(body, &ReplyOptions::default()).unwrap();
    assert_eq!((&*found.choices[0].message.role, found.choices[0].message.text()), ("", "a"));
}

#[test]
fn wrong_log_probabilities_are_named_with_their_byte() {
    let body = |inside: &str, ids: &str| {
        format!(r#"{{"choices":[{{"message":{{}},"logprobs":{{"content":[{inside}]}}{ids}}}]}}"#)
    };
    let place = "choices[0].logprobs.content[0]";
    refused(&body(r#"{"logprob":0.25}"#, ""), &format!("{place}.logprob: a log-probability is 0.25"), "0.25");
    refused(&body(r#"{"logprob":1e999}"#, ""), "a log-probability is 1e999", "1e999");
    refused(&body(r#"{"token":"a"}"#, ""), &format!("{place}: the member \"logprob\" is missing"), r#"{"token"#);
    refused(&body(r#"{"logprob":-1,"bytes":[256]}"#, ""), "bytes[0]: a byte must be", "256");
    refused(&body(r#"{"logprob":-1,"top_logprobs":[{}]}"#, ""), "top_logprobs[0]: the member", "{}]");
}

#[test]
fn indices_are_those_from_zero_on() {
    let body = |indices: &[&str]| {
        let choices: Vec<String> =
            indices.iter().map(|index| format!(r#"{{{index}"message":{{"content":"{}"}}}}"#, index.len())).collect();
        format!(r#"{{"choices":[{}]}}"#, choices.join(","))
    };
    let refused = |indices: &[&str]| read(body(indices).as_bytes(), &ReplyOptions::default()).unwrap_err().to_string();
    assert!(refused(&[r#""index":0,"#, r#""index":0,"#]).contains("two choices with the index 0"));
    assert!(refused(&[r#""index":1,"#, r#""index":2,"#, r#""index":1,"#]).contains("two choices with the index 1"));
    assert!(refused(&[r#""index":0,"#, r#""index":2,"#]).contains("of 2 choices none has the index 1"));
    assert!(refused(&[r#""index":0,"#, ""]).contains("\"index\" is missing"));
    let alone = read(body(&[r#""index":3,"#]).as_bytes(), &ReplyOptions::default()).unwrap();
    assert_eq!(alone.choices[0].index, 3);
    let bare = read(body(&["", " "]).as_bytes(), &ReplyOptions::default()).unwrap();
    assert_eq!(
        bare.choices.iter().map(|choice| (choice.index, &*choice.message.content)).collect::<Vec<_>>(),
        [(0, "0"), (1, "1")]
    );
}

#[test]
fn unusual_log_probabilities_have_a_meaning() {
    let body =
        br#"{"choices":[{"message":{},"logprobs":{"content":[{"logprob":null},{"logprob":NaN},{"logprob":-Infinity},
        {"logprob":-1e999},{"logprob":-9999.0},{"logprob":0.000009},{"logprob":-0.0}]}}]}"#;
    let reply = read(body, &ReplyOptions { entropy: Entropy::Surprisal, ..ReplyOptions::default() }).unwrap();
    let listed = reply.choices[0].listed.as_ref().unwrap();
    assert!(listed.logprobs[..2].iter().chain(&listed.entropies[..2]).all(|l| l.is_nan()));
    assert_eq!(listed.logprobs[2..], [-9999.0, -9999.0, -9999.0, 0.0, 0.0]);
    // The mean is over what is known.
    assert!((reply.choices[0].uncertainty().entropy[2] - 9999.0 * 3.0 / 5.0).abs() < 1e-2);
}

#[test]
fn tags_can_be_others() {
    let entry = |token: &str, top: &str| format!(r#"{{"token":"{token}","logprob":-0.1,"top_logprobs":[{top}]}}"#);
    let half = r#"{"logprob":-0.6931471805599453},{"logprob":-0.6931471805599453}"#;
    let entries = [entry("<r>", ""), entry("a", half), entry("</r>", ""), entry("b", r#"{"logprob":0}"#)].join(",");
    let body = format!(r#"{{"choices":[{{"message":{{}},"logprobs":{{"content":[{entries}]}}}}]}}"#);
    let options = ReplyOptions { think: Tags::new("<r>", "</r>").unwrap(), ..ReplyOptions::default() };
    let found = read(body.as_bytes(), &options).unwrap().choices[0].uncertainty();
    assert!((found.perplexity[0] - 2.0).abs() < 1e-5 && found.perplexity[1].is_nan(), "{found:?}");
    assert!((found.perplexity[2] - 2f32.sqrt()).abs() < 1e-5);
}

fn answered(choices: &str, rest: &str, max_tokens: Option<u32>) -> ParsedReply {
    let body = format!(r#"{{"choices":[{choices}]{rest}}}"#);
    read(body.as_bytes(), &ReplyOptions { max_tokens, ..ReplyOptions::default() }).unwrap()
}

#[test]
fn usage_of_the_first_choice_is_completed_by_estimates() {
    let two = r#"{"index":0,"message":{"content":"a b c"}},{"index":1,"message":{"content":"a b c d e f"}}"#;
    let counts = |rest: &str| {
        let reply = answered(two, rest, None);
        (reply.counts.generated, reply.estimated)
    };
    for (rest, expected) in [
        (r#","usage":{"completion_tokens":4}"#, (Some(13), 9)),
        (r#","usage":{"completion_tokens":9}"#, (Some(9), 0)),
        (r#","usage":{"completion_tokens":2}"#, (Some(2), 0)),
        (r#","usage":{"completion_tokens":12},"timings":{"predicted_n":12,"predicted_ms":1.5}"#, (Some(24), 12)),
        (r#","usage":{"completion_tokens":12},"timings":{"predicted_n":5}"#, (Some(12), 0)),
        (r#","usage":{"completion_tokens":12},"timings":null"#, (Some(12), 0)),
        (r#","timings":{"predicted_n":12}"#, (None, 0)),
    ] {
        assert_eq!(counts(rest), expected, "{rest}");
    }
    let entry = r#"{"id":7,"token":"a","logprob":-1}"#;
    let said = |index: u32, text: &str, entries: usize| {
        let listed = vec![entry; entries].join(",");
        format!(r#"{{"index":{index},"message":{{"content":"{text}"}},"logprobs":{{"content":[{listed}]}}}}"#)
    };
    let listed = |choices: &[String], usage: u32| {
        let reply = answered(&choices.join(","), &format!(r#","usage":{{"completion_tokens":{usage}}}"#), None);
        (reply.counts.generated, reply.estimated)
    };
    assert_eq!(listed(&[said(0, "abc", 3), said(1, "abcdef", 9)], 3), (Some(12), 0), "all are listed");
    assert_eq!(
        listed(&[said(0, "abc", 3), said(1, "abcd\u{e9}", 2)], 3),
        (Some(9), 6),
        "a character may be two tokens"
    );
    let alone = answered(r#"{"message":{"content":"a b c"}}"#, r#","usage":{"completion_tokens":1}"#, None);
    assert_eq!((alone.counts.generated, alone.estimated), (Some(1), 0));
}

#[test]
fn ids_of_entries_are_kept_if_they_are_all() {
    let entry = r#"{"id":7,"token":"a","logprob":-1}"#;
    let ids = |entries: &str, usage: &str| {
        let choice = format!(r#"{{"message":{{"content":"a"}},"logprobs":{{"content":[{entries}]}}}}"#);
        let mut reply = answered(&choice, usage, None);
        reply.choices.remove(0).tokens.map(|tokens| tokens.ids)
    };
    let usage = |count: u32| format!(r#","usage":{{"completion_tokens":{count}}}"#);
    assert_eq!(ids(&format!("{entry},{entry}"), &usage(2)), Some(vec![7, 7]));
    assert_eq!(ids(&format!("{entry},{entry}"), &usage(3)), None, "one entry is of two tokens");
    assert_eq!(ids(&format!("{entry},{entry}"), ""), None, "nothing says that they are all");
    for other in ["null", "-1", "1.5", "4294967296", r#""7""#, "[]"] {
        let odd = entry.replace('7', other);
        assert_eq!(ids(&format!("{entry},{odd}"), &usage(2)), None, "{other}");
    }
    let named = r#"{"id":7,"token":"token_id:9","logprob":-1}"#;
    assert_eq!(ids(named, &usage(5)), Some(vec![9]), "the name of a token is its own");
}

#[test]
fn a_choice_of_as_many_tokens_as_it_may_have_was_cut_off() {
    let finish = |reason: &str, generated: u32| {
        let choice = format!(r#"{{"message":{{"content":"a"}},"finish_reason":{reason}}}"#);
        let usage = format!(r#","usage":{{"completion_tokens":{generated}}}"#);
        answered(&choice, &usage, Some(5)).choices.remove(0).finish
    };
    assert_eq!([finish("null", 5), finish("null", 4), finish("\"eos\"", 5)], ["length", "", "length"]);
    assert_eq!([finish("\"stop\"", 5), finish("\"eos\"", 4), finish("\"abort\"", 5)], ["stop", "eos", "abort"]);
    let two = r#"{"index":0,"message":{"content":"a"}},{"index":1,"message":{"content":"a"}}"#;
    let ends = answered(two, r#","usage":{"completion_tokens":10}"#, Some(5)).choices;
    assert!(ends.iter().all(|choice| choice.finish == "length"));
    let tokens = r#"{"message":{"content":"a"},"token_ids":[1,2]}"#;
    let cut = answered(tokens, r#","usage":{"completion_tokens":2}"#, Some(2)).choices.remove(0).tokens.unwrap();
    assert_eq!(cut.flags, [SAMPLED, SAMPLED | TRUNCATED]);
}
