//! Trees from anyone: what a changed delta makes of a tree is read by every reader, without harm.
//!
//! `PROPTEST_CASES=100000 cargo test --profile quick -p trunkline-core --test foreign` looks for longer; with a nightly
//! compiler `cargo fuzz run foreign` in `rust_core/fuzz` drives the same readers.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod readers;
mod story;

use std::sync::LazyLock;

use common::script::{play, script};
use proptest::prelude::*;
use trunkline_core::{Call, Kind, NameId, NodeId, TokenBuffer, Tree};

static STORY: LazyLock<(Tree, Vec<u8>)> = LazyLock::new(|| story::story().unwrap());

/// Apply what became of a delta, and read what it made.
fn take(before: &Tree, record: &[u8], edits: &[u8]) {
    let tree = story::changed(before, record, edits);
    assert_eq!(tree.check(), Ok(()));
    readers::read(&tree);
}

/// Edits that mostly change small numbers a little, so that many of them make another sound delta.
fn edits() -> impl Strategy<Value = Vec<u8>> {
    let small = prop_oneof![4 => 0u8..8, 1 => any::<u8>()];
    let edit = (0u8..4, any::<u16>(), small, any::<u8>());
    let bytes = |(way, at, with, to): (u8, u16, u8, u8)| {
        let [low, high] = at.to_le_bytes();
        [way, low, high, with, to]
    };
    prop::collection::vec(edit.prop_map(bytes), 0..24).prop_map(|edits| edits.concat())
}

proptest! {
    #[test]
    fn whatever_a_changed_story_makes_is_read_without_harm(edits in edits()) {
        take(&STORY.0, &STORY.1, &edits);
    }

    #[test]
    fn whatever_a_changed_script_makes_is_read_without_harm(cmds in script(40), edits in edits()) {
        if let Some(delta) = play(&cmds).delta().unwrap() {
            take(&Tree::new(), &delta, &edits);
        }
    }
}

#[test]
fn the_story_itself_is_read() {
    take(&STORY.0, &STORY.1, &[]);
}

/// As deep as a delta of a megabyte can be, in a thread whose stack is small.
#[test]
fn a_tree_of_one_long_path_is_read() {
    let grow = || {
        let mut tree = Tree::new();
        let tokens = TokenBuffer::sampled(vec![1], vec![-0.5], 0).unwrap();
        let mut at = tree.append(NodeId::ROOT, Kind::Prompt, b"{}", None, NameId::EMPTY).unwrap();
        let rollout = tree.open(at, &[0, 0], 0).unwrap();
        tree.turn(rollout, b"{}", Some(tokens.as_slice()), Call::default()).unwrap();
        at = tree.rollout(rollout).unwrap().leaf;
        for _ in 0..60_000 {
            at = tree.append(at, Kind::Message, b"{}", None, NameId::EMPTY).unwrap();
        }
        tree.open(at, &[0, 1], 0).unwrap();
        let mut copy = Tree::new();
        copy.apply(&tree.delta().unwrap().unwrap()).unwrap();
        assert_eq!(copy.check(), Ok(()));
        assert!(copy.state(at).is_ok());
        readers::read_columns_of(&copy);
    };
    std::thread::Builder::new().stack_size(1 << 18).spawn(grow).unwrap().join().unwrap();
}
