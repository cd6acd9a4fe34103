//! The order in which a tree's nodes stand in a row, and its parts where it does not fit.

use std::ops::Range;

use super::Oversize;
use super::tokens::Runs;
use crate::error::{Error, Result};

/// Where every node of a forest stands depth first: every tree in one piece, every node before what is below it, children
/// by number.
#[derive(Clone, Debug)]
pub(super) struct Places {
    /// Per node its place.
    at: Vec<u32>,
    /// Per node how many nodes its subtree has.
    sizes: Vec<u32>,
}

impl Places {
    pub(super) fn new(parents: &[u32]) -> Self {
        let mut sizes = vec![1u32; parents.len()];
        for (node, &parent) in parents.iter().enumerate().rev() {
            if node != parent as usize {
                sizes[parent as usize] += sizes[node];
            }
        }
        // Where the next child of a node goes, and the next root.
        let (mut at, mut next, mut root) = (vec![0; parents.len()], vec![0; parents.len()], 0);
        for (node, &parent) in parents.iter().enumerate() {
            let place = if node == parent as usize { &mut root } else { &mut next[parent as usize] };
            at[node] = *place;
            *place += sizes[node];
            next[node] = at[node] + 1;
        }
        Self { at, sizes }
    }

    /// Whether there is a node `above`, and the path to `node` goes through it or ends there.
    pub(super) fn is_above(&self, above: u32, node: u32) -> bool {
        let (above, node) = (above as usize, node as usize);
        self.at.get(above).is_some_and(|&from| (from..from + self.sizes[above]).contains(&self.at[node]))
    }

    /// The nodes in this order.
    pub(super) fn order(&self) -> Vec<u32> {
        let mut order = vec![0; self.at.len()];
        for (node, &place) in (0u32..).zip(&self.at) {
            order[place as usize] = node;
        }
        order
    }
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

/// The trees of an order of nodes with tokens, split where they exceed `max` tokens.
///
/// A part is a stretch of the order. Whatever is above one of its nodes is in the stretch, or above its first node; so
/// repeating the ancestors of the first node completes every path.
pub(super) fn parts(
    runs: &Runs<'_>,
    roots: &[u32],
    order: &[u32],
    max: usize,
    oversize: Oversize,
) -> Result<Vec<Part>> {
    let mut parts: Vec<Part> = Vec::new();
    let mut tree = None;
    for (at, &node) in order.iter().enumerate() {
        let (root, len, end) = (roots[node as usize], runs.run(node).len(), runs.end(node) as usize);
        if end > max {
            let value = format!("the path to node {node} has {end} tokens where {max} fit in a row");
            return Err(Error::Value { value, want: "shorter, because a path is never split" });
        }
        match parts.last_mut().filter(|part| tree == Some(root) && part.tokens + len <= max) {
            Some(part) => {
                part.nodes.end = at + 1;
                part.tokens += len;
            }
            None if tree == Some(root) && oversize == Oversize::Error => {
                let value = format!("the tree of root {root} has more than the {max} tokens that fit in a row");
                return Err(Error::Value { value, want: "smaller, or split by option" });
            }
            None => {
                let mut repeated: Vec<u32> = runs.up(node).skip(1).collect();
                repeated.reverse();
                // Above the first node of a whole tree there is none with tokens.
                parts.push(Part { repeated, nodes: at..at + 1, tokens: end });
            }
        }
        tree = Some(root);
    }
    Ok(parts)
}
