//! Scripts of operations for the property tests, and the naive tree they are compared with.
#![allow(dead_code, reason = "each test file uses a part")]
#![allow(missing_docs)]

pub mod model;
pub mod script;

use trunkline_core::{Call, TokenCount, Tree};
use xxhash_rust::xxh3::xxh3_64;

/// A call that says nothing but its figures.
pub fn call(prompt: i64, generated: i64) -> Call<'static> {
    let (prompt, generated) =
        (TokenCount::new(prompt, "prompt").unwrap(), TokenCount::new(generated, "generated").unwrap());
    Call { prompt, generated, ..Call::default() }
}

/// Frame any payload as a sound record, as only someone with bad intentions would.
pub fn seal(sequence: u32, previous: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = b"TKDL\x08\0\0\0".to_vec();
    out.extend_from_slice(&sequence.to_le_bytes());
    out.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
    out.extend_from_slice(&previous.to_le_bytes());
    out.extend_from_slice(payload);
    let checksum = xxh3_64(&out);
    out.extend_from_slice(&checksum.to_le_bytes());
    out
}

/// The operations in a record.
pub fn payload(delta: &[u8]) -> &[u8] {
    &delta[24..delta.len() - 8]
}

/// Everything that can be read from a tree, as text: two trees that read alike are alike.
pub fn portrait(tree: &Tree) -> String {
    use std::fmt::Write;
    let mut out = format!("{:032x} {:?} {:?}", tree.digest(), tree.tokens(), tree.growing());
    let values = tree.values();
    let means: Vec<u64> = values.mean.iter().map(|mean| mean.to_bits()).collect();
    write!(out, " {:?} {:?} {means:?}", values.visits, values.scored).unwrap();
    write!(out, " {:?}", tree.marks(0).collect::<Vec<_>>()).unwrap();
    for id in 0..tree.nodes() {
        let (node, message) = (tree.node(id.into()).unwrap(), tree.message(id.into()).unwrap());
        let (children, aside) = (tree.children(id.into()).unwrap(), tree.aside(id.into()).unwrap());
        let (tokens, report) = (tree.tokens_of(id.into()).unwrap(), tree.report_of(id.into()).unwrap());
        let state = tree.state(id.into());
        write!(out, "\n{id} {node:?} {message:?} {children:?} {aside:?} {tokens:?} {report:?} {state:?}").unwrap();
    }
    for id in 0..tree.rollouts() {
        write!(out, "\n{:?}", tree.rollout(id.into()).unwrap()).unwrap();
    }
    out
}
