//! Deltas from anyone: whatever the bytes, the tree stays sound, and a refusal changes nothing.
//!
//! The first byte says what the rest is: a record, the payload of a record whose frame is sound, or a list of edits to the
//! payload of a true record. Frames are sealed here, so that the fuzzer gets past the checksum.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use trunkline_core::{Call, FORMAT, Kind, NameId, NodeId, Result, Termination, TokenBuffer, TokenCount, Tree, Uncertainty};
use xxhash_rust::xxh3::xxh3_64;

/// A tree that has applied the first of two deltas, and the second.
static STORY: LazyLock<(Tree, Vec<u8>)> = LazyLock::new(|| story().expect("the story follows the rules"));

fn story() -> Result<(Tree, Vec<u8>)> {
    let mut writer = Tree::new();
    tell(&mut writer, 0)?;
    let first = writer.delta()?.unwrap_or_default();
    tell(&mut writer, 1)?;
    let second = writer.delta()?.unwrap_or_default();
    let mut reader = Tree::new();
    reader.apply(&first)?;
    Ok((reader, second))
}

/// Every kind of operation, with something of its own to say in every chapter.
fn tell(tree: &mut Tree, chapter: u32) -> Result<()> {
    let agent = tree.name(["solver", "critic"][chapter as usize % 2])?;
    let said = format!("{{\"n\":{chapter}}}");
    let given = TokenBuffer::given(vec![chapter, 1, 2]);
    let sampled = TokenBuffer::sampled(vec![chapter, 70_000], vec![-0.5, f32::NAN], 3)?;
    let prompt = tree.append(NodeId::ROOT, Kind::Prompt, said.as_bytes(), Some(given.as_slice()), agent)?;
    let fragment = tree.fragment(said.as_bytes())?;
    let (opening, rest) = (tree.fragment(b"\x02{\"n\":")?, tree.fragment(format!("\x01{chapter}}}").as_bytes())?);
    let call = Call {
        agent,
        prompt: TokenCount::new(300, "prompt")?,
        generated: TokenCount::new(2, "generated")?,
        aside: Some("hm"),
        context: Some(tree.context(&[fragment.get(), opening.get(), rest.get(), fragment.get()])?),
        uncertainty: Uncertainty { entropy: [0.5; 3], perplexity: [1.6; 3], opening: 2.0 },
        ..Call::default()
    };
    for draw in 0..2 {
        let rollout = tree.open(prompt, &[chapter, draw], draw)?;
        tree.turn(rollout, said.as_bytes(), Some(sampled.as_slice()), call)?;
        let seen = tree.observe(rollout, b"{\"seen\":1}", None, NameId::EMPTY, 5, draw == 1)?;
        tree.tokenise(seen, given.as_slice())?;
        let leaf = tree.turn(rollout, said.as_bytes(), None, Call::default())?;
        tree.report(leaf, said.as_str())?;
        if draw == 0 {
            tree.close(rollout, Termination::Answer, Some("4"), None)?;
            tree.score(rollout, 0.5)?;
        }
    }
    Ok(())
}

const HEADER: usize = 24;
const CHECKSUM: usize = 8;

/// A payload as a sound record that continues the story.
fn seal(payload: &[u8]) -> Vec<u8> {
    let mut record = STORY.1[..HEADER].to_vec();
    record[4..6].copy_from_slice(&FORMAT.to_le_bytes());
    record[12..16].copy_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes());
    record.extend_from_slice(payload);
    let checksum = xxh3_64(&record);
    record.extend_from_slice(&checksum.to_le_bytes());
    record
}

/// The true payload with some bytes changed, put in or taken out: four bytes an edit.
fn edited(edits: &[u8]) -> Vec<u8> {
    let record = &STORY.1;
    let mut payload = record[HEADER..record.len() - CHECKSUM].to_vec();
    for edit in edits.chunks_exact(4) {
        let at = usize::from(u16::from_le_bytes([edit[1], edit[2]])) % payload.len().max(1);
        match edit[0] % 3 {
            0 if !payload.is_empty() => payload[at] ^= edit[3],
            1 if !payload.is_empty() => {
                payload.remove(at);
            }
            _ => payload.insert(at, edit[3]),
        }
    }
    payload
}

/// What a refused delta must leave as it is.
fn counts(tree: &Tree) -> (u128, u32, u32, usize, trunkline_core::Totals) {
    (tree.digest(), tree.nodes(), tree.rollouts(), tree.size(), tree.tokens())
}

fuzz_target!(|data: &[u8]| {
    let Some((way, data)) = data.split_first() else { return };
    let record = match way % 3 {
        0 => data.to_vec(),
        1 => seal(data),
        _ => seal(&edited(data)),
    };
    let (mut tree, second) = STORY.clone();
    let before = counts(&tree);
    let outcome = tree.apply(&record);
    assert_eq!(tree.check(), Ok(()), "after {outcome:?}");
    if outcome == Ok(true) {
        assert_eq!((tree.apply(&record), tree.delta()), (Ok(false), Ok(None)));
    } else {
        assert_eq!(counts(&tree), before, "after {outcome:?}");
        assert_eq!(tree.apply(&second), Ok(true), "the true delta no longer fits");
    }
});
