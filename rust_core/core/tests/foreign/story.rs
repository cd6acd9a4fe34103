//! A true delta with something of every operation, and ways to make others of it.

use trunkline_core::{
    Call, DriftPolicy, FORMAT, Kind, NameId, NodeId, Result, Termination, TokenBuffer, TokenCount, Tree, Uncertainty,
};
use xxhash_rust::xxh3::xxh3_64;

pub const HEADER: usize = 24;
pub const CHECKSUM: usize = 8;

/// A tree that has applied the first of two deltas, and the second.
pub fn story() -> Result<(Tree, Vec<u8>)> {
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
    for draw in 0..4 {
        let rollout = tree.open(prompt, &[chapter, draw], draw)?;
        tree.turn(rollout, said.as_bytes(), Some(sampled.as_slice()), call)?;
        let seen = tree.observe(rollout, b"{\"seen\":1}", None, NameId::EMPTY, 5, draw == 1)?;
        tree.tokenise(seen, given.as_slice())?;
        let context = match draw {
            0 => None,
            1 => Some(tree.drift(DriftPolicy::Bridge, 4, None)?),
            2 => Some(tree.drift(DriftPolicy::Realign, 4, Some(given.as_slice()))?),
            _ => Some(tree.drift(DriftPolicy::Fork, 6, Some(sampled.as_slice()))?),
        };
        let leaf =
            tree.turn(rollout, said.as_bytes(), Some(sampled.as_slice()), Call { context, ..Call::default() })?;
        tree.report(leaf, said.as_str())?;
        tree.tell(rollout, b"{\"told\":1}", Some(given.as_slice()), agent)?;
        if draw % 2 == 0 {
            tree.close(rollout, if draw == 0 { Termination::Answer } else { Termination::Censored }, Some("4"), None)?;
            tree.score(rollout, 0.5)?;
        }
        tree.note(rollout, "noted")?;
    }
    tree.mark("marked")
}

/// A payload as a sound record that continues the history of another one.
pub fn seal(record: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut out = record[..HEADER].to_vec();
    out[4..6].copy_from_slice(&FORMAT.to_le_bytes());
    out[12..16].copy_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(payload);
    let checksum = xxh3_64(&out);
    out.extend_from_slice(&checksum.to_le_bytes());
    out
}

/// What a tree becomes by a delta after as many edits as leave it sound, one by one.
pub fn changed(before: &Tree, delta: &[u8], edits: &[u8]) -> Tree {
    let apply = |delta: &[u8]| {
        let mut tree = before.clone();
        (tree.apply(delta) == Ok(true)).then_some(tree)
    };
    let (mut delta, mut tree) = (delta.to_vec(), apply(delta));
    for edit in edits.chunks_exact(5) {
        let next = seal(&delta, &edited(&delta, edit));
        if let Some(other) = apply(&next) {
            (delta, tree) = (next, Some(other));
        }
    }
    tree.unwrap_or_default()
}

/// The payload of a record with some bytes changed, put in, taken out, or copied elsewhere: five bytes an edit.
pub fn edited(record: &[u8], edits: &[u8]) -> Vec<u8> {
    let mut payload = record[HEADER..record.len() - CHECKSUM].to_vec();
    for edit in edits.chunks_exact(5) {
        let len = payload.len().max(1);
        let at = usize::from(u16::from_le_bytes([edit[1], edit[2]])) % len;
        match edit[0] % 4 {
            0 if !payload.is_empty() => payload[at] ^= edit[3],
            1 if !payload.is_empty() => {
                payload.remove(at);
            }
            2 if payload.len() < 1 << 16 => {
                let end = (at + usize::from(edit[3])).min(payload.len());
                let (part, to) = (payload[at..end].to_vec(), (at + 7 * usize::from(edit[4])) % len);
                payload.splice(to..to, part);
            }
            _ => payload.insert(at, edit[3]),
        }
    }
    payload
}
