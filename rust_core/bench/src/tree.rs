//! Trees: request bodies, interning, turns.

use std::hint::black_box;

use trunkline_core::{Call, Kind, NameId, NodeId, Result, SAMPLED, Source, TokenSlice, Tree};
use xxhash_rust::xxh3::xxh3_128;

use crate::case::Case;

/// A message of `len` bytes that no other number gives.
fn message(number: usize, len: usize) -> Vec<u8> {
    let mut text = format!("{{\"role\":\"assistant\",\"content\":\"{number} ");
    text.extend(std::iter::repeat_n('x', len.saturating_sub(text.len() + 2)));
    text.push_str("\"}");
    text.into_bytes()
}

/// A tree of one path, and its leaf.
fn history(turns: usize, len: usize) -> Result<(Tree, NodeId)> {
    let mut tree = Tree::new();
    let mut leaf = tree.append(NodeId::ROOT, Kind::Prompt, &message(0, len), None, NameId::EMPTY)?;
    let rollout = tree.open(leaf, &[0], 0)?;
    for turn in 1..turns {
        leaf = tree.turn(rollout, &message(turn, len), None, Call::default())?;
    }
    Ok((tree, leaf))
}

/// The request body of a history of 100 messages and 500 KB.
pub fn body() -> Case {
    let (tree, leaf) = history(100, 5000).unwrap_or((Tree::new(), NodeId::ROOT));
    let (head, tail) = (br#"{"model":"m","messages":["#, br#"],"max_tokens":1024}"#);
    let source = Source::Path(leaf);
    let whole = tree.body(source, head, tail).unwrap_or_default();
    let items = whole.len();
    let kernel = move || {
        // Like a request: measured, allocated, filled.
        let _ = black_box(tree.body(black_box(source), head, tail));
    };
    let baseline = move || {
        black_box(black_box(&whole).clone());
    };
    Case { item: "byte", items, floor: "memcpy of the body", kernel: Box::new(kernel), baseline: Box::new(baseline) }
}

/// Intern messages of 2 KB that are interned: found by hash, and compared.
pub fn intern() -> Case {
    const MESSAGES: usize = 256;
    let mut tree = Tree::new();
    let messages: Vec<Vec<u8>> = (0..MESSAGES).map(|number| message(number, 2048)).collect();
    for message in &messages {
        let _ = tree.fragment(message);
    }
    let copy = messages.clone();
    let kernel = move || {
        for message in &messages {
            let _ = black_box(tree.fragment(black_box(message)));
        }
    };
    let baseline = move || {
        for message in &copy {
            black_box(xxh3_128(black_box(message)));
        }
    };
    Case {
        item: "message",
        items: MESSAGES,
        floor: "xxh3 of the bytes",
        kernel: Box::new(kernel),
        baseline: Box::new(baseline),
    }
}

/// Append turns of 256 tokens and 1 KB to a tree that was reset, and is written down as one delta is later.
pub fn turn() -> Case {
    const TURNS: u32 = 256;
    const TOKENS: usize = 256;
    let messages: Vec<Vec<u8>> = (0..TURNS as usize).map(|number| message(number, 1024)).collect();
    let ids: Vec<Vec<u32>> = (0..TURNS).map(|turn| (0..256).map(|id| id * TURNS + turn).collect()).collect();
    let (logprobs, versions, flags) = (vec![-0.5f32; TOKENS], vec![3i32; TOKENS], vec![SAMPLED; TOKENS]);
    let columns = (logprobs.clone(), versions.clone(), flags.clone());
    let (texts, numbers) = (messages.clone(), ids.clone());
    let mut tree = Tree::new();
    let kernel = move || {
        tree.reset();
        let Ok(rollout) = tree.open(NodeId::ROOT, &[0], 0) else { return };
        for (message, ids) in messages.iter().zip(&ids) {
            let tokens = TokenSlice { ids, logprobs: &logprobs, versions: &versions, flags: &flags };
            let _ = black_box(tree.turn(rollout, message, Some(tokens), Call::default()));
        }
    };
    let all = TURNS as usize * TOKENS;
    let mut bytes = Vec::with_capacity(TURNS as usize * 1024);
    let mut words = Vec::with_capacity(all);
    let mut out = (Vec::with_capacity(all), Vec::with_capacity(all), Vec::with_capacity(all));
    let baseline = move || {
        bytes.clear();
        words.clear();
        out.0.clear();
        out.1.clear();
        out.2.clear();
        for (text, ids) in texts.iter().zip(&numbers) {
            bytes.extend_from_slice(text);
            words.extend_from_slice(ids);
            out.0.extend_from_slice(&columns.0);
            out.1.extend_from_slice(&columns.1);
            out.2.extend_from_slice(&columns.2);
        }
        black_box((&bytes, &words, &out));
    };
    Case {
        item: "turn",
        items: TURNS as usize,
        floor: "memcpy of message and columns",
        kernel: Box::new(kernel),
        baseline: Box::new(baseline),
    }
}
