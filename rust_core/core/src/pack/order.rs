//! The order in which a tree's nodes stand in a row, and its parts where it does not fit.

use std::ops::Range;

use super::Oversize;
use super::runs::Runs;
use crate::error::{Error, Result};

/// Nodes that rollouts pass through, depth first: every tree in one piece, every node before what is below it, children
/// by number.
pub(super) fn preorder(parents: &[u32], passes: &[u32]) -> Vec<u32> {
    let mut below: Vec<u32> = passes.iter().map(|&passes| u32::from(passes > 0)).collect();
    for (node, &parent) in parents.iter().enumerate().rev() {
        if node != parent as usize {
            below[parent as usize] += below[node];
        }
    }
    let mut order = vec![0; passes.iter().filter(|passes| **passes > 0).count()];
    // Where the next child of a node goes, and the next root.
    let (mut next, mut root) = (vec![0u32; parents.len()], 0u32);
    for (node, &parent) in (0u32..).zip(parents).filter(|(node, _)| passes[*node as usize] > 0) {
        let place = if node == parent { &mut root } else { &mut next[parent as usize] };
        let at = *place;
        *place += below[node as usize];
        next[node as usize] = at + 1;
        order[at as usize] = node;
    }
    order
}

/// A tree, or a part of one with the ancestors of its first node repeated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    /// Ancestors, root first, that another part has too.
    pub repeated: Vec<u32>,
    /// What of the preorder is in this part.
    pub nodes: Range<usize>,
    /// Tokens of all of them.
    pub tokens: usize,
}

/// The trees in preorder, split where they exceed `max` tokens.
///
/// A part is a stretch of the preorder. Whatever is above one of its nodes is in the stretch, or above its first node; so
/// repeating the ancestors of the first node completes every path.
pub(super) fn parts(runs: &Runs<'_>, order: &[u32], max: usize, oversize: Oversize) -> Result<Vec<Part>> {
    let parents = runs.forest().parents();
    let mut parts = Vec::new();
    let mut part = Part::default();
    for (at, &node) in order.iter().enumerate() {
        let (len, end) = (runs.run(node).len(), runs.end(node) as usize);
        if end > max {
            let value = format!("the path to node {node} has {end} tokens where {max} fit in a row");
            return Err(Error::Value { value, want: "shorter, because a path is never split" });
        }
        let root = parents[node as usize] == node;
        if root || part.tokens + len > max {
            if !root && oversize == Oversize::Error {
                let root = runs.up(node).last().unwrap_or(node);
                let value = format!("the tree of root {root} has more than the {max} tokens that fit in a row");
                return Err(Error::Value { value, want: "smaller, or split by option" });
            }
            let repeated: Vec<u32> = runs.up(node).skip(1).collect();
            let next = Part { repeated: repeated.into_iter().rev().collect(), nodes: at..at, tokens: end - len };
            parts.push(std::mem::replace(&mut part, next));
        }
        part.nodes.end = at + 1;
        part.tokens += len;
    }
    parts.push(part);
    parts.retain(|part| part.tokens > 0);
    Ok(parts)
}
