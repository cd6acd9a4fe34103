//! Where the tokens of a tree's nodes stand beside each other, worked out before any of them is copied.

use crate::error::{Error, Result};
use crate::id::{self, NONE, NodeId};
use crate::tree::Tree;
use crate::turn::drift::{Drift, DriftPolicy};

/// Tokens that any tree may have side by side, and how many for each that it stores: a chain of 500 turns that all fork from their
/// paths repeats 250. The same for samples that end where a prompt forked, for each node and rollout.
const MOST: u64 = 1 << 20;
const REPEATS: u64 = 256;

/// Per node of one tree, which is numbered from 0.
#[derive(Debug, Default)]
pub(super) struct Placement {
    /// What its tokens come after: its parent, or where the prompt of a turn drifted, what is left of its path.
    pub(super) parents: Vec<u32>,
    depths: Vec<u32>,
    // A node further up, so that a search along a path takes as many steps as its length has digits.
    jumps: Vec<u32>,
    // The nearest node up the path that has tokens, itself first.
    full: Vec<u32>,
    // Tokens from the root to its end.
    ends: Vec<u64>,
    // In the tree, the nearest node up the path whose prompt forked, itself first. Empty where no prompt drifted.
    forks: Vec<u32>,
}

impl Placement {
    /// Place the tokens of the tree with this number.
    pub(super) fn new(tree: &Tree, number: u32) -> Result<Self> {
        let mut places = Self::default();
        let mut tokens = 0u64;
        for node in tree.nodes.ids() {
            let len = places.place(tree, node);
            tokens = tokens.saturating_add(len);
        }
        let stored = tree.runs.tokens();
        let fact = || format!("tree {number} has {tokens} tokens side by side, and stores {stored}");
        within(tokens, stored, fact, "1048576 or less, or 256 for each that it stores")?;
        places.note_forks(tree, number)?;
        Ok(places)
    }

    /// Place one node; how many tokens it has here.
    fn place(&mut self, tree: &Tree, node: NodeId) -> u64 {
        let parent = tree.nodes.parent(node).get();
        let own = tree.nodes.run(node).map_or(0, |run| tree.runs.len(run));
        let (above, len) = match tree.drifted(node) {
            Some(Drift { policy, keep, run: Some(run), .. }) => {
                let (above, part) = self.kept(parent, keep);
                let part = part.map_or(0, |(_, tokens)| tokens as u64);
                let own = own + part + tree.runs.len(run);
                if policy == DriftPolicy::Fork { (0, own + self.ends[above as usize]) } else { (above, own) }
            }
            _ => (parent, own),
        };
        self.push(node.get(), above, len);
        len
    }

    fn push(&mut self, node: u32, parent: u32, len: u64) {
        self.parents.push(parent);
        if parent == node {
            self.depths.push(0);
            self.jumps.push(node);
            self.full.push(NONE);
            self.ends.push(0);
            return;
        }
        let (at, depth) = (parent as usize, |node: u32| self.depths[node as usize]);
        let jump = self.jumps[at];
        let further = self.jumps[jump as usize];
        let even = depth(parent) - depth(jump) == depth(jump) - depth(further);
        let (depth, jump) = (depth(parent) + 1, if even { further } else { parent });
        self.depths.push(depth);
        self.jumps.push(jump);
        self.full.push(if len > 0 { node } else { self.full[at] });
        self.ends.push(self.ends[at].saturating_add(len));
    }

    /// Where the first `keep` tokens of a path end: the last node that is kept whole, and of the one after it how many are kept.
    pub(super) fn kept(&self, node: u32, keep: u32) -> (u32, Option<(u32, usize)>) {
        let over = |node: u32| self.ends[node as usize] > keep.into();
        let (mut at, mut next) = (node, None);
        while over(at) {
            let jump = self.jumps[at as usize];
            next = Some(at);
            at = if over(jump) { jump } else { self.parents[at as usize] };
        }
        let part = u64::from(keep) - self.ends[at as usize];
        (at, next.zip(usize::try_from(part).ok()))
    }

    /// The nodes that have the tokens of a path, from its end to its root.
    pub(super) fn up(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        let full = |node: u32| id::unpack(self.full[node as usize]);
        std::iter::successors(full(node), move |&node| full(self.parents[node as usize]))
    }

    /// Note where prompts forked, and refuse to list too many samples.
    fn note_forks(&mut self, tree: &Tree, number: u32) -> Result<()> {
        if tree.contexts.count() == 0 {
            return Ok(());
        }
        let mut counts = vec![0u64; self.parents.len()];
        for node in tree.nodes.ids() {
            let above = tree.nodes.parent(node).index();
            let forked = tree.drifted(node).is_some_and(|drift| drift.policy == DriftPolicy::Fork);
            let before = self.forks.get(above).copied().unwrap_or(NONE);
            self.forks.push(if forked { node.get() } else { before });
            counts[node.index()] = counts[above] + u64::from(forked);
        }
        let samples = tree.rollouts.ids().map(|id| counts[tree.rollouts.leaf(id).index()]).sum();
        let things = u64::from(tree.nodes()) + u64::from(tree.rollouts());
        let fact = || format!("the rollouts of tree {number} end {samples} times where a prompt forked");
        within(samples, things, fact, "1048576 times or less, or 256 for each node and rollout")
    }

    /// The nodes on the path to a node whose prompts forked, the last first.
    pub(super) fn forks<'t>(&'t self, tree: &'t Tree, leaf: NodeId) -> impl Iterator<Item = NodeId> + 't {
        let nearest = |node: NodeId| self.forks.get(node.index()).copied().and_then(id::unpack).map(NodeId::new);
        std::iter::successors(nearest(leaf), move |&node| nearest(tree.nodes.parent(node)))
    }
}

fn within(count: u64, of: u64, fact: impl FnOnce() -> String, range: &'static str) -> Result<()> {
    if count <= MOST.max(of.saturating_mul(REPEATS)) { Ok(()) } else { Err(Error::range(fact(), range)) }
}
