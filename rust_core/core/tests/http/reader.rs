//! Answers cut anywhere.

use proptest::collection::vec;
use proptest::prelude::*;
use trunkline_core::http::{Answer, AnswerReader, Fault, HEAD_LIMIT};

const LARGEST: usize = 400;

#[derive(Clone, Debug)]
enum Framing {
    Length,
    Chunks(Vec<usize>),
    Close,
}

/// An answer, and the bytes that say it.
#[derive(Clone, Debug)]
struct Made {
    status: u16,
    fields: Vec<(String, String)>,
    body: Vec<u8>,
    framing: Framing,
    stays: bool,
    bytes: Vec<u8>,
}

fn made() -> impl Strategy<Value = Made> {
    let fields = vec(("[A-Za-z][A-Za-z0-9-]{0,8}", "[!-~]([ -~]{0,10}[!-~])?"), 0..5);
    let framing =
        prop_oneof![Just(Framing::Length), vec(1usize..40, 0..6).prop_map(Framing::Chunks), Just(Framing::Close)];
    let status = (200u16..1000).prop_filter("without a body", |status| !matches!(status, 204 | 304));
    (status, fields, vec(any::<u8>(), 0..300), framing, any::<bool>(), 0..3usize).prop_map(
        |(status, fields, body, framing, keep, interim)| {
            let known = ["content-length", "transfer-encoding", "connection"];
            let fields: Vec<(String, String)> =
                fields.into_iter().filter(|(name, _)| !known.contains(&name.to_lowercase().as_str())).collect();
            let stays = keep && !matches!(framing, Framing::Close);
            let mut bytes = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n".repeat(interim);
            bytes.extend_from_slice(format!("HTTP/1.1 {status} Some Words\r\n").as_bytes());
            for (name, value) in &fields {
                bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
            }
            if !keep {
                bytes.extend_from_slice(b"Connection: close\r\n");
            }
            match &framing {
                Framing::Length => {
                    bytes.extend_from_slice(format!("Content-Length:{}\r\n\r\n", body.len()).as_bytes());
                    bytes.extend_from_slice(&body);
                }
                Framing::Close => {
                    bytes.extend_from_slice(b"\r\n");
                    bytes.extend_from_slice(&body);
                }
                Framing::Chunks(sizes) => {
                    bytes.extend_from_slice(b"TRANSFER-encoding: Chunked\r\n\r\n");
                    let mut rest = &body[..];
                    for size in sizes.iter().copied().chain([body.len()]) {
                        let (chunk, after) = rest.split_at(size.min(rest.len()));
                        if !chunk.is_empty() {
                            bytes.extend_from_slice(format!("{:x};n=\"v\\\"\"\r\n", chunk.len()).as_bytes());
                            bytes.extend_from_slice(chunk);
                            bytes.extend_from_slice(b"\r\n");
                        }
                        rest = after;
                    }
                    bytes.extend_from_slice(if interim == 1 { b"0\r\nX-Sum: 1\r\n\r\n" } else { b"0\r\n\r\n" });
                }
            }
            Made { status, fields, body, framing, stays, bytes }
        },
    )
}

/// Feed bytes in pieces until the answer is whole or no answer, and say which, and where.
fn feed(reader: &mut AnswerReader, bytes: &[u8], cuts: &[usize]) -> Result<bool, Fault> {
    let mut ends: Vec<usize> = cuts.iter().copied().filter(|&cut| cut < bytes.len()).collect();
    ends.extend([bytes.len()]);
    ends.sort_unstable();
    let mut start = 0;
    let mut whole = false;
    for end in ends {
        whole = reader.feed(&bytes[start..end])?;
        start = end;
    }
    Ok(whole)
}

fn check(made: &Made, answer: &Answer) {
    assert_eq!((answer.status, &answer.body), (made.status, &made.body));
    for (name, _) in &made.fields {
        let (_, value) = made.fields.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).unwrap();
        assert_eq!(answer.headers.get(name.to_lowercase().as_bytes()), Some(value.as_bytes()));
    }
}

/// What is left when bytes have come and then the end.
type Outcome = Result<Option<(Answer, bool)>, Fault>;

fn outcome(bytes: &[u8], cuts: &[usize]) -> Outcome {
    let mut reader = AnswerReader::new(LARGEST);
    let whole = feed(&mut reader, bytes, cuts)?;
    let reusable = reader.reusable();
    Ok((whole || reader.end()).then(|| (reader.give(), reusable)))
}

proptest! {
    #[test]
    fn answers_are_the_same_however_they_are_cut(several in vec(made(), 1..4), cuts in vec(1usize..700, 0..8)) {
        let mut reader = AnswerReader::new(LARGEST);
        for made in &several {
            let ends = matches!(made.framing, Framing::Close);
            prop_assert_eq!(feed(&mut reader, &made.bytes, &cuts), Ok(!ends));
            prop_assert_eq!(reader.reusable(), made.stays);
            prop_assert!(reader.end());
            check(made, &reader.give());
            reader.start();
        }
    }

    #[test]
    fn an_answer_cut_short_is_whole_only_if_its_end_is_open(made in made(), kept in any::<prop::sample::Index>()) {
        let kept = kept.index(made.bytes.len());
        let mut reader = AnswerReader::new(LARGEST);
        prop_assert_eq!(reader.feed(&made.bytes[..kept]), Ok(false));
        let open = matches!(made.framing, Framing::Close) && kept >= made.bytes.len() - made.body.len();
        prop_assert_eq!(reader.end(), open);
    }

    #[test]
    fn whatever_comes_is_the_same_answer_or_none_however_it_is_cut(
        made in made(),
        edits in vec((any::<prop::sample::Index>(), prop_oneof![any::<u8>(), prop::sample::select(&b"\r\n :;,0159aF\t"[..])]), 0..4),
        more in vec(any::<u8>(), 0..4),
        cuts in vec(1usize..700, 0..8),
    ) {
        let mut bytes = made.bytes;
        bytes.extend(more);
        for (place, byte) in edits {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        let (once, pieces) = (outcome(&bytes, &[]), outcome(&bytes, &cuts));
        let bytewise = outcome(&bytes, &(0..bytes.len()).collect::<Vec<_>>());
        for other in [pieces, bytewise] {
            match (&once, &other) {
                // What is wrong may be seen earlier where more is there to see, but nothing is made of it.
                (Err(_), other) => prop_assert!(!matches!(other, Ok(Some(_))), "{once:?} {other:?}"),
                (Ok(_), other) => prop_assert_eq!(&once, other),
            }
        }
    }

    #[test]
    fn any_bytes_are_an_answer_or_a_fault(bytes in vec(any::<u8>(), 0..300), cuts in vec(1usize..300, 0..4)) {
        prop_assert!(!matches!(outcome(&bytes, &cuts), Ok(Some(_))));
    }
}

#[test]
fn work_is_in_proportion_to_what_comes() {
    // A head that comes byte by byte and never ends: read again for each byte, this would take minutes.
    let mut reader = AnswerReader::new(LARGEST);
    assert_eq!(reader.feed(b"HTTP/1.1 200 OK\r\nX: "), Ok(false));
    let fed = (0..=HEAD_LIMIT).find(|_| reader.feed(b"x").is_err()).unwrap();
    assert!((HEAD_LIMIT - 100..=HEAD_LIMIT).contains(&fed), "{fed}");
    // So does one of many headers, for which there is less room than their bytes allow.
    let mut reader = AnswerReader::new(LARGEST);
    let head =
        [b"HTTP/1.1 200 OK\r\n".to_vec(), b"a:\r\n".repeat(16_000), b"Content-Length: 0\r\n\r\n".to_vec()].concat();
    assert_eq!(reader.feed(&head), Ok(true));
    assert_eq!(reader.give().headers.len(), 16_001);
}

#[test]
fn interim_answers_are_bounded_together() {
    let mut reader = AnswerReader::new(LARGEST);
    let fault = (0..HEAD_LIMIT).find_map(|_| reader.feed(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n").err());
    assert_eq!(fault, Some(Fault::HeadTooLarge));
}

#[test]
fn no_room_is_set_aside_for_a_body_that_is_only_announced() {
    let mut reader = AnswerReader::new(1 << 40);
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\nx").unwrap();
    assert!(reader.give().body.capacity() <= 1 << 20);
}

#[test]
fn what_a_head_cannot_carry_is_refused() {
    use trunkline_core::http::request_head;
    let head = request_head("/v1?a=b", "[::1]:80", &[("X", "a\u{e9}\t"), ("user-AGENT", "me")]).unwrap();
    assert_eq!(&*head, b"POST /v1?a=b HTTP/1.1\r\nHost: [::1]:80\r\nX: a\xe9\t\r\nuser-AGENT: me\r\nContent-Length: ");
    let no_agent = request_head("/", "h", &[]).unwrap();
    assert_eq!(&*no_agent, b"POST / HTTP/1.1\r\nHost: h\r\nUser-Agent: trunkline\r\nContent-Length: ");
    for (name, value) in
        [("X", "a\r\nY: b"), ("X\n", "a"), ("X", "\0"), ("X", "\u{20ac}"), ("a: b", "c"), ("", "c"), ("X", "\x7f")]
    {
        request_head("/", "h", &[(name, value)]).unwrap_err();
    }
    for (target, host) in [("", "h"), ("/ a", "h"), ("/\r\n", "h"), ("/", "h\r\nX: y"), ("/", "")] {
        request_head(target, host, &[]).unwrap_err();
    }
}
