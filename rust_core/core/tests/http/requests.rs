//! Requests cut anywhere.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use trunkline_core::http::{HEAD_LIMIT, Refused, Request, RequestReader, RequestState};

const LARGEST: usize = 400;
const MANY: usize = 1_000_003;

/// A request as it is to be read, and the bytes that say it.
#[derive(Clone, Debug)]
struct Made {
    method: String,
    target: String,
    fields: Vec<(String, String)>,
    body: Vec<u8>,
    stays: bool,
    bytes: Vec<u8>,
}

/// How a body is sent: not at all, at once, or in chunks of these sizes, with trailers or without.
#[derive(Clone, Debug)]
enum Sent {
    Nothing,
    Length,
    Chunks(Vec<usize>, bool),
}

fn made() -> impl Strategy<Value = Made> {
    let fields = vec(("[A-Za-z][A-Za-z0-9-]{0,8}", "[!-~]([ -~]{0,10}[!-~])?"), 0..5);
    let sent = prop_oneof![
        Just(Sent::Nothing),
        Just(Sent::Length),
        (vec(1usize..40, 0..6), any::<bool>()).prop_map(|(sizes, trailers)| Sent::Chunks(sizes, trailers))
    ];
    let line = ("[A-Z!~]{1,8}", "[!-~]{1,12}", any::<bool>());
    (line, fields, vec(any::<u8>(), 0..300), sent, any::<bool>(), 0..3usize).prop_map(
        |((method, target, modern), mut fields, body, sent, keep, blank)| {
            let known = ["content-length", "transfer-encoding", "connection", "expect"];
            fields.retain(|(name, _)| !known.contains(&name.to_lowercase().as_str()));
            // HTTP/1.0 has no chunks.
            let sent = if modern || !matches!(sent, Sent::Chunks(..)) { sent } else { Sent::Length };
            let body = if matches!(sent, Sent::Nothing) { Vec::new() } else { body };
            let mut bytes = b"\r\n".repeat(blank);
            bytes.extend_from_slice(format!("{method} {target} HTTP/1.{}\r\n", u8::from(modern)).as_bytes());
            for (name, value) in &fields {
                bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
            }
            if keep != modern {
                let option = if keep { "Keep-Alive" } else { "x, Close" };
                bytes.extend_from_slice(format!("Connection: {option}\r\n").as_bytes());
            }
            match sent {
                Sent::Nothing => bytes.extend_from_slice(b"\r\n"),
                Sent::Length => {
                    bytes.extend_from_slice(format!("Content-Length:{}\r\n\r\n", body.len()).as_bytes());
                    bytes.extend_from_slice(&body);
                }
                Sent::Chunks(sizes, trailers) => {
                    bytes.extend_from_slice(b"TRANSFER-encoding: Chunked\r\n\r\n");
                    let mut rest = &body[..];
                    for size in sizes.into_iter().chain([body.len()]) {
                        let (chunk, after) = rest.split_at(size.min(rest.len()));
                        if !chunk.is_empty() {
                            bytes.extend_from_slice(format!("{:X};n=\"v\\\"\"\r\n", chunk.len()).as_bytes());
                            bytes.extend_from_slice(chunk);
                            bytes.extend_from_slice(b"\r\n");
                        }
                        rest = after;
                    }
                    bytes.extend_from_slice(if trailers { b"0\r\nX-Sum: 1\r\n\r\n" } else { b"0\r\n\r\n" });
                }
            }
            Made { method, target, fields, body, stays: keep && modern, bytes }
        },
    )
}

/// What comes out when bytes come in pieces: the requests, then what there is of one more, or why there is none.
type Outcome = (Vec<Request>, Result<(RequestState, usize), Refused>);

fn outcome(bytes: &[u8], cuts: &[usize]) -> Outcome {
    let mut ends: Vec<usize> = cuts.iter().copied().filter(|&cut| cut < bytes.len()).collect();
    ends.push(bytes.len());
    ends.sort_unstable();
    let (mut reader, mut requests, mut start) = (RequestReader::new(LARGEST), Vec::new(), 0);
    let mut state = Ok(RequestState::Headless);
    for end in ends {
        state = reader.feed(&bytes[start..end]);
        while state == Ok(RequestState::Whole) {
            requests.push(reader.take().unwrap());
            state = reader.feed(b"");
        }
        start = end;
    }
    if state.is_err() {
        assert_eq!((reader.feed(b"GET / HTTP/1.1\r\n\r\n"), reader.held(), reader.take()), (state, 0, None));
    }
    (requests, state.map(|state| (state, reader.held())))
}

/// Every byte alone.
fn bytewise(bytes: &[u8]) -> Vec<usize> {
    (1..bytes.len()).collect()
}

proptest! {
    #[test]
    fn requests_are_the_same_however_they_are_cut(several in vec(made(), 1..5), cuts in vec(1usize..1500, 0..8)) {
        let bytes: Vec<u8> = several.iter().flat_map(|made| &made.bytes).copied().collect();
        let (requests, state) = outcome(&bytes, &cuts);
        prop_assert_eq!(state, Ok((RequestState::Headless, 0)));
        prop_assert_eq!(requests.len(), several.len());
        for (made, request) in several.iter().zip(&requests) {
            prop_assert_eq!((&request.method, &request.target), (&made.method, &made.target));
            prop_assert_eq!((&request.body, request.stays), (&made.body, made.stays));
            for (name, _) in &made.fields {
                let (_, value) = made.fields.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).unwrap();
                prop_assert_eq!(request.headers.get(name.to_lowercase().as_bytes()), Some(value.as_bytes()));
            }
        }
    }

    #[test]
    fn whatever_comes_is_the_same_or_refused_for_the_same_reason_however_it_is_cut(
        several in vec(made(), 1..4),
        edits in vec((any::<Index>(), prop_oneof![any::<u8>(), select(&b"\r\n :;,0159aF\t"[..])]), 0..4),
        kept in any::<Index>(),
        cuts in vec(1usize..1000, 0..8),
    ) {
        let mut bytes: Vec<u8> = several.into_iter().flat_map(|made| made.bytes).collect();
        for (place, byte) in edits {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        bytes.truncate(kept.index(bytes.len()) + 1);
        let once = outcome(&bytes, &[]);
        for cuts in [cuts, bytewise(&bytes)] {
            let (requests, state) = outcome(&bytes, &cuts);
            prop_assert_eq!(&requests, &once.0);
            match (once.1, state) {
                // What cannot become a head is refused at once where it comes at once, and else when it has ended or doubled.
                (Err(_), Ok((RequestState::Headless, _))) => {}
                (once, state) => prop_assert_eq!(once, state),
            }
        }
    }
}

#[test]
fn what_is_no_request_is_refused_with_its_status() {
    let long = "a".repeat(HEAD_LIMIT);
    let post = |headers: &str| format!("POST / HTTP/1.1\r\n{headers}\r\n\r\n");
    let chunked = |body: &str| format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
    for (bytes, status) in [
        // Not in any version, and in another one.
        ("\u{16}\u{3}\u{1}".to_owned(), 400),
        ("GET /\r\n\r\n".to_owned(), 400),
        ("GET / HTTP/1.1 \r\n\r\n".to_owned(), 400),
        ("GET  / HTTP/1.1\r\n\r\n".to_owned(), 400),
        ("GET /a b HTTP/1.1\r\n\r\n".to_owned(), 400),
        ("GET / HTTP/2.0\r\n\r\n".to_owned(), 505),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), 505),
        ("GET / HTTP/0.9\r\n\r\n".to_owned(), 505),
        ("GET / HTTP/1.2\r\n\r\n".to_owned(), 505),
        ("GET / http/1.1\r\n\r\n".to_owned(), 400),
        // Lines.
        ("\nGET / HTTP/1.1\r\n\r\n".to_owned(), 400),
        ("\rGET / HTTP/1.1\r\n\r\n".to_owned(), 400),
        ("\r\n".repeat(5), 400),
        ("GET / HTTP/1.1\nHost: a\n\n".to_owned(), 400),
        ("GET / HTTP/1.1\r\nA: b\n\r\n".to_owned(), 400),
        ("GET / HTTP/1.1\r\nA: b\r\n\n".to_owned(), 400),
        (post("A : b"), 400),
        (post(" A: b"), 400),
        (post("A: b\r\n c"), 400),
        (post("A: b\rC: d"), 400),
        (post("A: \0"), 400),
        (post(": b"), 400),
        (post("A"), 400),
        ("GET /\u{e9} HTTP/1.1\r\n\r\n".to_owned(), 400),
        // How long the body is.
        (post("Content-Length: +1"), 400),
        (post("Content-Length: 0x1"), 400),
        (post("Content-Length: -1"), 400),
        (post("Content-Length: 1, 1"), 400),
        (post("Content-Length:"), 400),
        (post("Content-Length: 99999999999999999999999"), 400),
        (post("Content-Length: 1\r\nContent-Length: 2"), 400),
        (post("Content-Length: 1\r\nTransfer-Encoding: chunked"), 400),
        (post("Transfer-Encoding: chunked\r\ncontent-length: 0"), 400),
        (post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), 400),
        ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(), 400),
        (post("Transfer-Encoding: gzip, chunked"), 501),
        (post("Transfer-Encoding: identity"), 501),
        (post("Transfer-Encoding: \u{b}chunked"), 400),
        (post("Content-Length: 401"), 413),
        (post("Content-Length: 18446744073709551615"), 413),
        (post("Expect: 200-ok"), 417),
        (post("Expect: 100-continue\r\nExpect: x"), 417),
        // Chunks.
        (chunked("g\r\n"), 400),
        (chunked("\r\n"), 400),
        (chunked("-1\r\n"), 400),
        (chunked("1\n"), 400),
        (chunked("1\r\nab"), 400),
        (chunked("1 \r\na"), 400),
        (chunked("0\r\nA: b\n\r\n"), 400),
        (chunked("11111111111111111\r\n"), 400),
        (chunked("191\r\n"), 413),
        (chunked("FFFFFFFFFFFFFFFF\r\n"), 413),
        (chunked(&format!("c8\r\n{}\r\nc9\r\n", "a".repeat(200))), 413),
        // Too much of it.
        (format!("GET /{long} HTTP/1.1\r\n\r\n"), 431),
        (long.clone() + "a", 431),
        (post(&format!("A: {long}")), 431),
        (chunked(&format!("1;{long}")), 431),
        (chunked(&format!("0\r\nA: {long}")), 431),
    ] {
        for cuts in [vec![], bytewise(bytes.as_bytes())] {
            let (requests, state) = outcome(bytes.as_bytes(), &cuts);
            assert!(requests.is_empty(), "{bytes:.60?}");
            assert_eq!(state.map_err(|refused| refused.status), Err(status), "{bytes:.60?}");
        }
    }
}

#[test]
fn a_head_says_what_a_server_does_before_the_body() {
    let state = |bytes: &[u8]| {
        let mut reader = RequestReader::new(LARGEST);
        let state = reader.feed(bytes).unwrap();
        (state, reader.expects(), reader.size(), reader.held())
    };
    let head = b"POST / HTTP/1.1\r\nExpect: 100-Continue\r\nContent-Length: 3\r\n\r\n";
    assert_eq!(state(head), (RequestState::Headed, true, Some(3), 0));
    assert_eq!(state(&[head, &b"a"[..]].concat()), (RequestState::Headed, false, Some(3), 1));
    assert_eq!(state(&[head, &b"abcGET"[..]].concat()), (RequestState::Whole, false, Some(3), 3));
    assert_eq!(state(&head[..20]), (RequestState::Headless, false, Some(0), 20));
    let old = b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
    assert_eq!(state(old), (RequestState::Headed, false, Some(3), 0));
    let chunked = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab";
    assert_eq!(state(chunked), (RequestState::Headed, false, None, 2));
    let none = b"GET / HTTP/1.1\r\nExpect: 100-continue\r\n\r\n";
    assert_eq!(state(none), (RequestState::Whole, false, Some(0), 0));
}

#[test]
fn room_and_work_are_in_proportion_to_what_comes() {
    // Room for all that is announced cannot be had.
    let mut reader = RequestReader::new(usize::MAX);
    let head = format!("POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\nx", usize::MAX);
    assert_eq!((reader.feed(head.as_bytes()), reader.held()), (Ok(RequestState::Headed), 1));
    let mut reader = RequestReader::new(usize::MAX);
    let head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n7FFFFFFFFFFFFFFF\r\nx";
    assert_eq!((reader.feed(head), reader.held()), (Ok(RequestState::Headed), 1));
    // A body byte by byte, and many requests in one piece: copied again for each, these would take minutes.
    let mut reader = RequestReader::new(MANY);
    reader.feed(format!("POST / HTTP/1.1\r\nContent-Length: {MANY}\r\n\r\n").as_bytes()).unwrap();
    let whole = (1..=MANY).find(|_| reader.feed(b"x") == Ok(RequestState::Whole));
    let request = reader.take().unwrap();
    assert_eq!((whole, request.body.len(), request.body.capacity()), (Some(MANY), MANY, MANY));
    assert_eq!(reader.feed(&b"GET / HTTP/1.1\r\n\r\n".repeat(MANY)), Ok(RequestState::Whole));
    for left in (0..MANY).rev() {
        reader.take().unwrap();
        assert_eq!(reader.feed(b""), Ok(if left == 0 { RequestState::Headless } else { RequestState::Whole }));
    }
    // What waits behind a whole request comes byte by byte as well.
    reader.feed(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!((0..MANY).all(|_| reader.feed(b"\r") == Ok(RequestState::Whole)));
    assert_eq!(reader.held(), MANY);
}
