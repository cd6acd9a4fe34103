//! Requests: where one ends in the stream, and what it asks.

use std::io::{Error, Result};

use memchr::memmem;

/// Headers that a request may have.
const HEADERS: usize = 64;

/// Turns of a conversation whose model names no number.
const TURNS: u64 = 2;

/// Bytes of the head and of the body of the request that a buffer begins with; None while its head is not whole.
pub fn extent(buffer: &[u8]) -> Result<Option<(usize, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(head) = request.parse(buffer).map_err(Error::other)? else {
        return Ok(None);
    };
    let length = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let body = length.and_then(|header| std::str::from_utf8(header.value).ok()?.parse().ok());
    Ok(Some((head, body.unwrap_or(0))))
}

/// What a request asks.
#[derive(Debug, PartialEq, Eq)]
pub struct Asked {
    /// The number after "question " in the conversation, which tells it from the others.
    pub conversation: Option<u64>,
    /// Whether the model is to answer, instead of calling a tool.
    pub last: bool,
    /// Whether log-probabilities are wanted.
    pub logprobs: bool,
    /// Completions wanted.
    pub n: usize,
}

impl Asked {
    /// Read a body. It is searched, not parsed: quotes in a string are escaped, so that no text looks like a field.
    pub fn read(body: &[u8]) -> Self {
        let observed =
            memmem::find_iter(body, br#""role":"#).filter(|at| after(body, at + 7).starts_with(br#""tool""#));
        let observed = observed.count() as u64;
        let model = memmem::find(body, br#""model":"#).map_or(&[][..], |at| after(body, at + 8));
        let turns = model.strip_prefix(br#""stub-"#).and_then(number).unwrap_or(TURNS);
        Self {
            conversation: memmem::find(body, b"question ").and_then(|at| number(&body[at + 9..])),
            last: observed + 1 >= turns,
            logprobs: memmem::rfind(body, br#""logprobs":"#)
                .is_some_and(|at| after(body, at + 11).starts_with(b"true")),
            n: memmem::rfind(body, br#""n":"#).and_then(|at| number(after(body, at + 4))).map_or(1, size),
        }
    }
}

/// What follows a place, spaces left out.
fn after(body: &[u8], at: usize) -> &[u8] {
    body[at..].trim_ascii_start()
}

/// The number that some bytes begin with.
fn number(bytes: &[u8]) -> Option<u64> {
    let end = bytes.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..end]).ok()?.parse().ok()
}

fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_ends_where_its_length_says() {
        let stream = b"POST /v1 HTTP/1.1\r\nHost: x\r\ncontent-length: 5\r\n\r\nhelloPOST";
        assert_eq!(extent(stream).ok(), Some(Some((stream.len() - 9, 5))));
        assert_eq!(extent(&stream[..30]).ok(), Some(None));
        assert!(extent(b"\x00\x00\r\n\r\n").is_err());
    }

    #[test]
    fn the_second_request_of_a_conversation_is_the_last_unless_the_model_says_more() {
        let first = br#"{"model":"stub","messages":[{"role":"user","content":"question 12?"}],"n":3}"#;
        assert_eq!(Asked::read(first), Asked { conversation: Some(12), last: false, logprobs: false, n: 3 });
        let second = br#"{"model": "stub", "messages": [{"role": "tool"}], "logprobs": true}"#;
        assert_eq!(Asked::read(second), Asked { conversation: None, last: true, logprobs: true, n: 1 });
        let longer = br#"{"messages":[{"role":"tool"}],"model":"stub-3"}"#;
        assert!(!Asked::read(longer).last);
    }

    #[test]
    fn no_text_looks_like_a_field() {
        let body = br#"{"messages":[{"role":"user","content":"{\"role\":\"tool\",\"n\":9,\"logprobs\":true}"}]}"#;
        assert_eq!(Asked::read(body), Asked { conversation: None, last: false, logprobs: false, n: 1 });
    }
}
