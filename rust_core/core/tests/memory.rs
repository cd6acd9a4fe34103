//! What a tree costs beyond what it says.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used)]

use trunkline_core::{Call, Kind, NameId, NodeId, TokenBuffer, Tree};

/// Rollouts of 500 steps, each a turn and an observation with messages of their own.
fn grow(rollouts: u32, tokens: usize) -> Tree {
    let mut tree = Tree::new();
    let prompt = tree.append(NodeId::ROOT, Kind::Prompt, b"{}", None, NameId::EMPTY).unwrap();
    for draw in 0..rollouts {
        let rollout = tree.open(prompt, &[0, draw], 0).unwrap();
        for step in 0..500 {
            let ids = (0..u32::try_from(tokens).unwrap()).map(|id| id * 1_000_000 + draw * 500 + step).collect();
            let sampled = TokenBuffer::sampled(ids, vec![-0.5; tokens], 3).unwrap();
            let said = format!("{{\"turn\":\"{draw} {step}\"}}");
            tree.turn(rollout, said.as_bytes(), Some(sampled.as_slice()), Call::default()).unwrap();
            let said = format!("{{\"seen\":\"{draw} {step}\"}}");
            tree.observe(rollout, said.as_bytes(), None, NameId::EMPTY, 0, false).unwrap();
            tree.delta().unwrap();
        }
    }
    tree
}

/// Bytes a node beyond its message and tokens, and by part.
fn overhead(tree: &Tree, tokens: usize) -> (f64, String) {
    let memory = tree.memory();
    let nodes = f64::from(tree.nodes());
    let payload = tree.size() + 13 * tokens * tree.nodes() as usize / 2;
    let share = |bytes: usize| f64::from(u32::try_from(bytes).unwrap()) / nodes;
    let all = share(memory.total()) - share(payload);
    (all, format!("{all:.1} of {:.1} bytes a node beyond payload: {memory:?}", share(memory.total())))
}

#[test]
fn a_node_costs_little_beyond_what_it_says() {
    // Columns grow by doubling; at 32,001 nodes they are nearly full, and the tables half.
    for (tokens, most) in [(0, 180.0), (16, 250.0)] {
        let (bytes, text) = overhead(&grow(32, tokens), tokens);
        assert!(bytes < most, "{text}");
    }
}

/// `cargo test --profile quick -p trunkline-core --test memory -- --ignored --nocapture`
#[test]
#[ignore = "prints figures; takes seconds and 400 MB"]
fn a_million_nodes() {
    for (tokens, most) in [(0, 160.0), (16, 200.0)] {
        let (bytes, text) = overhead(&grow(1000, tokens), tokens);
        assert!(bytes < most, "{text}");
        eprintln!("{tokens} tokens a turn: {text}");
    }
}
