//! Answers, made once and handed out again and again.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Write;
use std::rc::Rc;

use fastrand::Rng;

use crate::request::Asked;
use crate::settings::Settings;

/// Tokens of a reply without log-probabilities, for its usage.
const SHORT: usize = 22;

/// What a reply's tokens are drawn from, as JSON strings hold them.
const WORDS: [&str; 10] = [" the", " search", "\\n", " of", "ing", " \\\"", " é", " after", " woman", " 42"];

/// Whether it is the last turn, whether log-probabilities are wanted, and how many completions.
type Kind = (bool, bool, usize);

/// Whole HTTP responses by what is asked.
pub struct Replies {
    tokens: usize,
    top: usize,
    made: RefCell<HashMap<Kind, Rc<[u8]>>>,
}

impl Replies {
    /// Replies of the size that the settings ask for.
    pub fn new(settings: &Settings) -> Self {
        Self { tokens: settings.tokens, top: settings.top, made: RefCell::default() }
    }

    /// The response to a request.
    pub fn of(&self, asked: &Asked) -> Rc<[u8]> {
        let key = (asked.last, asked.logprobs, asked.n);
        Rc::clone(self.made.borrow_mut().entry(key).or_insert_with(|| self.make(asked)))
    }

    fn make(&self, asked: &Asked) -> Rc<[u8]> {
        let tokens = if asked.logprobs { self.tokens } else { SHORT };
        let generated = tokens * asked.n;
        let choices: Vec<_> = (0..asked.n).map(|index| self.choice(index, asked)).collect();
        let body = format!(
            concat!(
                r#"{{"id":"chatcmpl-stub","object":"chat.completion","created":1790000000,"model":"stub","choices":[{}],"#,
                r#""usage":{{"prompt_tokens":180,"completion_tokens":{},"total_tokens":{}}}}}"#
            ),
            choices.join(","),
            generated,
            180 + generated,
        );
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
        (head + &body).into_bytes().into()
    }

    fn choice(&self, index: usize, asked: &Asked) -> String {
        let mut random = Rng::with_seed(index as u64);
        let words: Vec<_> = (0..self.tokens).map(|_| WORDS[random.usize(..WORDS.len())]).collect();
        let said = if asked.logprobs { words.concat() } else { String::new() };
        let logprobs = if asked.logprobs { logprobs(&words, self.top, &mut random) } else { "null".to_owned() };
        let (rest, finish) = if asked.last {
            (format!(r#""content":"{said}<answer>42</answer>""#), "stop")
        } else {
            let call = r#"{"id":"call_8d1f","type":"function","function":{"name":"lookup","arguments":"{\"key\":\"answer\"}"}}"#;
            (format!(r#""content":"{said}","tool_calls":[{call}]"#), "tool_calls")
        };
        format!(
            r#"{{"index":{index},"message":{{"role":"assistant",{rest}}},"logprobs":{logprobs},"finish_reason":"{finish}"}}"#
        )
    }
}

/// The `logprobs` field, compact, as Python servers write it.
fn logprobs(words: &[&str], top: usize, random: &mut Rng) -> String {
    let mut json = r#"{"content":["#.to_owned();
    for (place, word) in words.iter().enumerate() {
        json.push_str(if place == 0 { "" } else { "," });
        let mut logprob = -0.05 - random.f64();
        entry(&mut json, word, logprob);
        json.push_str(r#","top_logprobs":["#);
        for rank in 0..top {
            json.push_str(if rank == 0 { "" } else { "," });
            entry(&mut json, if rank == 0 { word } else { WORDS[random.usize(..WORDS.len())] }, logprob);
            json.push('}');
            logprob -= 3.0 * random.f64();
        }
        json.push_str("]}");
    }
    json + "]}"
}

/// An entry without its end.
fn entry(json: &mut String, word: &str, logprob: f64) {
    let text = word.replace("\\n", "\n").replace("\\\"", "\"");
    let bytes: Vec<_> = text.bytes().map(|byte| byte.to_string()).collect();
    let _ = write!(json, r#"{{"token":"{word}","logprob":{logprob},"bytes":[{}]"#, bytes.join(","));
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_core::reply::{ReplyOptions, read};

    fn body(last: bool, logprobs: bool, n: usize) -> Vec<u8> {
        let replies = Replies::new(&Settings { latency: 0.0, p99: 0.0, tokens: 5, top: 3, tls: None });
        let response = replies.of(&Asked { conversation: None, last, logprobs, n });
        let at = memchr::memmem::find(&response, b"\r\n\r\n").map_or(0, |at| at + 4);
        response[at..].to_vec()
    }

    #[test]
    fn every_reply_is_one_that_the_core_reads() {
        for (last, logprobs, n) in [(false, false, 1), (true, false, 1), (false, true, 1), (true, true, 3)] {
            let reply = read(&body(last, logprobs, n), &ReplyOptions::default()).map_err(|error| error.to_string());
            let choices = reply.map(|reply| reply.choices.len());
            assert_eq!(choices, Ok(n));
        }
    }
}
