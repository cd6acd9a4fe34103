//! Digests: what a tree says, in 128 bits, whatever the order in which it came to say it.
//!
//! All input is little-endian and of fixed width, or preceded by its length. [`VERSION`] goes into every root, so that
//! a change of the format changes every digest.

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::tree::nodes::{Kind, Nodes};
use crate::tree::rollouts::Rollouts;

/// Version of the digest's format.
pub const VERSION: u32 = 2;

/// The digest of the root.
pub(crate) fn root() -> u128 {
    let mut bytes = *b"trunkline tree \0\0\0\0";
    bytes[15..].copy_from_slice(&VERSION.to_le_bytes());
    xxh3_128(&bytes)
}

/// What tells a node from its siblings, by content.
pub(crate) struct NodeContent {
    /// Digest of the parent.
    pub(crate) parent: u128,
    /// Kind of the node.
    pub(crate) kind: Kind,
    /// Hash of the agent's name.
    pub(crate) agent: u128,
    /// Hash of the namespace's name.
    pub(crate) namespace: u128,
    /// Hash of the token ids, or of the message where they did not come with it.
    pub(crate) said: u128,
    /// Which of the two.
    pub(crate) tokens: bool,
    /// Hash of the context, where what was sent is not the path.
    pub(crate) context: Option<u128>,
}

/// The digest of a node: of everything on the path to it, itself included. Times and ids are left out, and of
/// tokens all but their ids.
pub(crate) fn node(content: &NodeContent) -> u128 {
    let mut bytes = [0u8; 82];
    bytes[0] = content.kind as u8;
    bytes[1] = u8::from(content.context.is_some()) | u8::from(content.tokens) << 1;
    let parts = [content.parent, content.agent, content.namespace, content.said, content.context.unwrap_or_default()];
    for (slot, part) in bytes[2..].chunks_exact_mut(16).zip(parts) {
        slot.copy_from_slice(&part.to_le_bytes());
    }
    xxh3_128(&bytes)
}

/// What it adds to the sum of all nodes that a node was given tokens later.
pub(crate) fn tokens(node: u128, ids: u128) -> u128 {
    let mut bytes = [0u8; 32];
    bytes[..16].copy_from_slice(&node.to_le_bytes());
    bytes[16..].copy_from_slice(&ids.to_le_bytes());
    xxh3_128(&bytes)
}

/// The digest of a whole tree: its nodes as a set, and its rollouts in order of fork path.
pub(crate) fn tree(nodes: &Nodes, rollouts: &Rollouts) -> u128 {
    let mut order: Vec<_> = rollouts.ids().collect();
    order.sort_unstable_by_key(|&id| rollouts.path(id));
    let mut hasher = Xxh3::new();
    hasher.update(&root().to_le_bytes());
    // A sum does not depend on the order of its terms; it covers prompts that no rollout has grown from yet.
    hasher.update(&nodes.sum().to_le_bytes());
    hasher.update(&(order.len() as u64).to_le_bytes());
    for id in order {
        let path = rollouts.path(id);
        hasher.update(&(path.len() as u64).to_le_bytes());
        for word in path {
            hasher.update(&word.to_le_bytes());
        }
        hasher.update(&rollouts.subgroup(id).to_le_bytes());
        for at in [rollouts.point(id), rollouts.leaf(id)] {
            hasher.update(&nodes.digest(at).to_le_bytes());
        }
        text(&mut hasher, rollouts.termination(id).map(crate::Termination::as_str));
        text(&mut hasher, rollouts.answer(id));
        hasher.update(&rollouts.reward(id).to_bits().to_le_bytes());
    }
    hasher.digest128()
}

/// Hash a text that may be missing; missing and empty differ.
fn text(hasher: &mut Xxh3, text: Option<&str>) {
    let length = text.map_or(u64::MAX, |text| text.len() as u64);
    hasher.update(&length.to_le_bytes());
    hasher.update(text.unwrap_or_default().as_bytes());
}
