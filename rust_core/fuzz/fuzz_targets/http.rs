//! Any bytes are an answer or a fault, the same in one piece and in several; what is read is within its bounds.
#![no_main]
#![allow(clippy::unwrap_used)]

use libfuzzer_sys::fuzz_target;
use trunkline_core::http::{Answer, AnswerReader, Fault};

const LARGEST: usize = 256;

fn read(pieces: &[&[u8]]) -> Result<Option<(Answer, bool)>, Fault> {
    let mut reader = AnswerReader::new(LARGEST);
    let mut whole = false;
    for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
        whole = reader.feed(piece)?;
    }
    let reusable = reader.reusable();
    Ok((whole || reader.end()).then(|| (reader.give(), reusable)))
}

fuzz_target!(|data: &[u8]| {
    // The first two bytes say where the rest is cut.
    let ([first, second, ..], data) = (data, data.get(2..).unwrap_or_default()) else { return };
    let mut cuts = [usize::from(*first).min(data.len()), usize::from(*second).min(data.len())];
    cuts.sort_unstable();
    let (once, cut) = (read(&[data]), read(&[&data[..cuts[0]], &data[cuts[0]..cuts[1]], &data[cuts[1]..]]));
    match (once, cut) {
        // What is wrong may be seen earlier where more is there to see, but nothing is made of it.
        (Err(_), other) => assert!(!matches!(other, Ok(Some(_)))),
        (once, other) => {
            if let Ok(Some((answer, _))) = &once {
                assert!(answer.body.len() <= LARGEST && answer.status >= 200);
            }
            assert_eq!(once, other);
        }
    }
});
