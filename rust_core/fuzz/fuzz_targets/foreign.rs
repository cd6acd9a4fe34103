//! Trees from anyone: what a changed delta makes of a tree is read by every reader, without harm.
//!
//! The bytes are a list of edits to the payload of a true record, five bytes an edit.
#![no_main]
#![allow(clippy::unwrap_used)]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use trunkline_core::Tree;

#[path = "../../core/tests/foreign/readers.rs"]
mod readers;
#[path = "../../core/tests/foreign/story.rs"]
mod story;

static STORY: LazyLock<(Tree, Vec<u8>)> = LazyLock::new(|| story::story().expect("the story follows the rules"));

fuzz_target!(|data: &[u8]| {
    let tree = story::changed(&STORY.0, &STORY.1, data);
    assert_eq!(tree.check(), Ok(()));
    readers::read(&tree);
});
