//! Deltas from anyone: whatever the bytes, the tree stays sound, and a refusal changes nothing.
//!
//! The first byte says what the rest is: a record, the payload of a record whose frame is sound, or a list of edits to the
//! payload of a true record. Frames are sealed here, so that the fuzzer gets past the checksum.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use trunkline_core::Tree;

#[path = "../../core/tests/foreign/story.rs"]
#[allow(dead_code, reason = "each target uses a part")]
mod story;

/// A tree that has applied the first of two deltas, and the second.
static STORY: LazyLock<(Tree, Vec<u8>)> = LazyLock::new(|| story::story().expect("the story follows the rules"));

/// What a refused delta must leave as it is.
fn counts(tree: &Tree) -> (u128, u32, u32, usize, trunkline_core::Totals) {
    (tree.digest(), tree.nodes(), tree.rollouts(), tree.size(), tree.tokens())
}

fuzz_target!(|data: &[u8]| {
    let Some((way, data)) = data.split_first() else { return };
    let record = match way % 3 {
        0 => data.to_vec(),
        1 => story::seal(&STORY.1, data),
        _ => story::seal(&STORY.1, &story::edited(&STORY.1, data)),
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
