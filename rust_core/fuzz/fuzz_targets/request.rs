//! Any bytes are requests or a refusal, the same in one piece and in several; what is read is within its bounds.
#![no_main]
#![allow(clippy::unwrap_used)]

use libfuzzer_sys::fuzz_target;
use trunkline_core::http::{Refused, Request, RequestReader, RequestState};

const LARGEST: usize = 256;

fn read(pieces: &[&[u8]]) -> (Vec<Request>, Result<(RequestState, usize), Refused>) {
    let mut reader = RequestReader::new(LARGEST);
    let mut requests = Vec::new();
    let mut state = Ok(RequestState::Headless);
    for piece in pieces {
        state = reader.feed(piece);
        while state == Ok(RequestState::Whole) {
            requests.push(reader.take().unwrap());
            state = reader.feed(b"");
        }
    }
    (requests, state.map(|state| (state, reader.held())))
}

fuzz_target!(|data: &[u8]| {
    // The first two bytes say where the rest is cut.
    let ([first, second, ..], data) = (data, data.get(2..).unwrap_or_default()) else { return };
    let mut cuts = [usize::from(*first).min(data.len()), usize::from(*second).min(data.len())];
    cuts.sort_unstable();
    let (requests, once) = read(&[data]);
    assert!(requests.iter().all(|request| request.body.len() <= LARGEST));
    let (others, cut) = read(&[&data[..cuts[0]], &data[cuts[0]..cuts[1]], &data[cuts[1]..]]);
    assert_eq!(requests, others);
    match (once, cut) {
        // What cannot become a head is refused at once where it comes at once, and else when it has ended or doubled.
        (Err(_), Ok((RequestState::Headless, _))) => {}
        (once, cut) => assert_eq!(once, cut),
    }
});
