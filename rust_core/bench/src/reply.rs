//! Replies.

use std::fmt::Write;
use std::hint::black_box;

use trunkline_core::reply::{ReplyOptions, read};

use crate::case::Case;

/// Read a reply of 200 tokens that lists the 16 likeliest at each place, 272 KB as vLLM writes it.
pub fn logprobs() -> Case {
    case("token", 200, with_logprobs(200, 16))
}

/// Read a reply with one tool call and usage, as agents get most.
pub fn small() -> Case {
    let body = r#"{"id":"chatcmpl-4f5c","object":"chat.completion","created":1790000000,"model":"qwen","choices":[{"index":0,
"message":{"role":"assistant","content":"I will look that up.","tool_calls":[{"id":"call_8d1f","type":"function",
"function":{"name":"search","arguments":"{\"query\": \"first woman to fly across the Atlantic\"}"}}]},"logprobs":null,
"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":812,"completion_tokens":31,"total_tokens":843,
"prompt_tokens_details":{"cached_tokens":768}}}"#;
    case("reply", 1, body.to_owned())
}

fn case(item: &'static str, items: usize, body: String) -> Case {
    let options = ReplyOptions::default();
    let copy = body.clone();
    let kernel = move || {
        let _ = black_box(read(black_box(body.as_bytes()), &options));
    };
    let baseline = move || {
        // One byte a lane of the accumulator: a count beyond 255 starts over, and no byte is looked at twice.
        let quote = |count: u8, byte: &u8| count.wrapping_add(u8::from(*byte == b'"'));
        black_box(black_box(copy.as_bytes()).iter().fold(0, quote));
    };
    Case {
        item,
        items,
        floor: "compare each byte of the reply with a quote",
        kernel: Box::new(kernel),
        baseline: Box::new(baseline),
    }
}

fn with_logprobs(tokens: usize, width: usize) -> String {
    const WORDS: [&str; 8] = [" the", " search", "\\n", " of", "ing", " \\\"", " é", "<think>"];
    let mut body =
        r#"{"id":"chatcmpl-1","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"#
            .to_owned();
    body.push_str(r#""logprobs":{"content":["#);
    for token in 0..tokens {
        body.push_str(if token == 0 { "" } else { ", " });
        entry(&mut body, WORDS[token % 8], token);
        body.push_str(r#", "top_logprobs": ["#);
        for rank in 0..width {
            body.push_str(if rank == 0 { "" } else { ", " });
            entry(&mut body, WORDS[(token + rank) % 8], token + rank * rank);
            body.push('}');
        }
        body.push_str("]}");
    }
    body.push_str(r#"]},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":200}}"#);
    body
}

/// An entry without its end. Log-probabilities are 32-bit numbers written with the digits of 64, as Python does.
fn entry(body: &mut String, token: &str, number: usize) {
    let size = f32::from(u8::try_from(number % 251).unwrap_or_default());
    let _ = write!(body, r#"{{"token": "{token}", "logprob": {}, "bytes": [32"#, f64::from(-0.001_37 - size * 0.031_7));
    for place in 0..3 {
        let _ = write!(body, ", {}", 97 + (number + place) % 26);
    }
    body.push(']');
}
