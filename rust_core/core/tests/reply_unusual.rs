//! Replies that are wrong, and replies that are only unusual.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used)]

use trunkline_core::reply::{Entropy, Options, Tags, read};

#[track_caller]
fn refused(body: &str, text: &str, at: &str) {
    let error = read(body.as_bytes(), &Options::default()).unwrap_err();
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
    refused(r#"{"choices":[]} x"#, "the end is needed, not 'x'", "x");
    refused(r#"{"error":{"message":"m"}}"#, "an error object", r#"{"message"#);
    refused(r#"{"id":"x"}"#, "\"choices\" is missing", "{");
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
    refused(
        &body(r#"{"logprob":-1}"#, r#","token_ids":[1,2]"#),
        "there are 2 token ids and 1 log-probabilities",
        r#"{"message"#,
    );
}

#[test]
fn indices_are_those_from_zero_on() {
    let body = |indices: &[&str]| {
        let choices: Vec<String> =
            indices.iter().map(|index| format!(r#"{{{index}"message":{{"content":"{}"}}}}"#, index.len())).collect();
        format!(r#"{{"choices":[{}]}}"#, choices.join(","))
    };
    let refused = |indices: &[&str]| read(body(indices).as_bytes(), &Options::default()).unwrap_err().to_string();
    assert!(refused(&[r#""index":0,"#, r#""index":0,"#]).contains("two choices with the index 0"));
    assert!(refused(&[r#""index":1,"#, r#""index":2,"#, r#""index":1,"#]).contains("two choices with the index 1"));
    assert!(refused(&[r#""index":0,"#, r#""index":2,"#]).contains("of 2 choices none has the index 1"));
    assert!(refused(&[r#""index":0,"#, ""]).contains("\"index\" is missing"));
    let alone = read(body(&[r#""index":3,"#]).as_bytes(), &Options::default()).unwrap();
    assert_eq!(alone.choices[0].index, 3);
    let bare = read(body(&["", " "]).as_bytes(), &Options::default()).unwrap();
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
    let reply = read(body, &Options { entropy: Entropy::Surprisal, ..Options::default() }).unwrap();
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
    let options = Options { think: Tags::new("<r>", "</r>").unwrap(), ..Options::default() };
    let found = read(body.as_bytes(), &options).unwrap().choices[0].uncertainty();
    assert!((found.perplexity[0] - 2.0).abs() < 1e-5 && found.perplexity[1].is_nan(), "{found:?}");
    assert!((found.perplexity[2] - 2f32.sqrt()).abs() < 1e-5);
}
