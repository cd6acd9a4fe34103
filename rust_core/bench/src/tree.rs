//! Trees: request bodies, interning, turns.

use std::hint::black_box;

use trunkline_core::{Call, Kind, NameId, NodeId, Result, SAMPLED, Source, TokenBuffer, TokenSlice, Tree};
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

/// A team's prompt: a template of 3 KB in three pieces, and between them 12 KB in eight that colleagues said.
fn prompt() -> Result<(Tree, Source)> {
    let mut tree = Tree::new();
    let piece = |marker: &str, begin: &str, len: usize, end: &str| {
        format!("{marker}{begin}{}{end}", "x".repeat(len - begin.len() - end.len())).into_bytes()
    };
    let mut pieces = vec![piece("\x02", "{\"role\":\"user\",\"content\":\"", 1024, "")];
    pieces.extend((0..4).map(|said| piece("\x01", &format!("{said} "), 1536, "")));
    pieces.push(piece("\x01", "", 1024, ""));
    pieces.extend((4..8).map(|said| piece("\x01", &format!("{said} "), 1536, "")));
    pieces.push(piece("\x01", "", 1024, "\"}"));
    let ids: Result<Vec<u32>> = pieces.iter().map(|piece| Ok(tree.fragment(piece)?.get())).collect();
    let context = tree.context(&ids?)?;
    Ok((tree, Source::Context(context)))
}

/// A request body of one message in pieces.
pub fn body_of_pieces() -> Case {
    let (tree, source) = prompt().unwrap_or((Tree::new(), Source::Path(NodeId::ROOT)));
    let (head, tail) = (br#"{"model":"m","messages":["#, br#"],"max_tokens":1024}"#);
    let whole = tree.body(source, head, tail).unwrap_or_default();
    let items = whole.len();
    let kernel = move || {
        let _ = black_box(tree.body(black_box(source), head, tail));
    };
    let baseline = move || {
        black_box(black_box(&whole).clone());
    };
    Case { item: "byte", items, floor: "memcpy of the body", kernel: Box::new(kernel), baseline: Box::new(baseline) }
}

/// The request body of a path of 32,768 token ids in 65 runs, and the same ids beside a prompt.
fn ids() -> Result<(Tree, NodeId, Vec<u32>)> {
    const TURNS: u32 = 64;
    let mut tree = Tree::new();
    let mut all = Vec::new();
    let mut run = |turn: u32| {
        // As wide as the ids of a vocabulary of 150,000.
        let ids: Vec<u32> = (0..512).map(|place| (turn * 7919 + place * 104_729) % 150_000).collect();
        all.extend_from_slice(&ids);
        ids
    };
    let prompt = TokenBuffer::given(run(0));
    let mut leaf = tree.append(NodeId::ROOT, Kind::Prompt, b"{}", Some(prompt.as_slice()), NameId::EMPTY)?;
    let rollout = tree.open(leaf, &[0], 0)?;
    for turn in 1..TURNS {
        let tokens = TokenBuffer::given(run(turn));
        leaf = tree.turn(rollout, b"{}", Some(tokens.as_slice()), Call::default())?;
    }
    Ok((tree, leaf, all))
}

/// A request body of token ids.
pub fn body_of_ids() -> Case {
    let (tree, leaf, all) = ids().unwrap_or((Tree::new(), NodeId::ROOT, Vec::new()));
    let (head, tail) = (br#"{"model":"m","prompt":["#, br#"],"max_tokens":1024}"#);
    let write = move || {
        let mut out = vec![0; tree.ids_len(black_box(leaf), None, head, tail).unwrap_or_default()];
        let _ = black_box(tree.ids_into(leaf, None, head, tail, &mut out));
        out
    };
    let whole = write();
    let kernel = move || drop(black_box(write()));
    let baseline = move || {
        black_box(black_box(&whole).clone());
    };
    let items = all.len();
    Case { item: "id", items, floor: "memcpy of the body", kernel: Box::new(kernel), baseline: Box::new(baseline) }
}

/// A prompt that extends a path, compared with it.
pub fn align() -> Case {
    let (tree, leaf, all) = ids().unwrap_or((Tree::new(), NodeId::ROOT, Vec::new()));
    let (prompt, copy, other) = (all.clone(), all.clone(), all);
    let items = copy.len();
    let kernel = move || {
        let _ = black_box(tree.align(black_box(leaf), black_box(&prompt)));
    };
    let baseline = move || {
        black_box(black_box(&copy) == black_box(&other));
    };
    let floor = "a straight compare of both sides";
    Case { item: "id", items, floor, kernel: Box::new(kernel), baseline: Box::new(baseline) }
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
