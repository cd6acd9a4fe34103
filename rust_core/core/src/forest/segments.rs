//! Turns whose prompt drifted, in a harvest: a sample holds what the model was given, not what the path says.

use std::ops::Range;

use super::harvest::Harvest;
use crate::id::{NodeId, RolloutId};
use crate::storage::tokens::TokenBuffer;
use crate::tree::Tree;
use crate::turn::drift::{Drift, Policy};

impl Harvest {
    /// The node that a node's tokens come after. Of a drifted turn, what the model was given after that is put down too, as
    /// the first of its tokens.
    pub(super) fn hang(&mut self, tree: &Tree, base: u32, node: NodeId) -> u32 {
        let parent = base + tree.nodes.parent(node).get();
        let Some(Drift { policy, keep, run: Some(run) }) = tree.drifted(node) else { return parent };
        let keep = keep as usize;
        let above = if policy == Policy::Fork { self.fork(base, parent, keep) } else { self.realign(parent, keep) };
        // Whoever sampled it, here it is only what the model was given.
        self.tokens.extend(&TokenBuffer::given(tree.runs.get(run).ids.to_vec()).as_slice());
        above
    }

    /// Go on from inside a path: nodes that are kept whole stay above, and of the next the first tokens are repeated.
    fn realign(&mut self, parent: u32, mut keep: usize) -> u32 {
        let mut above = parent;
        for node in self.down_to(parent) {
            let span = self.span(node);
            if span.len() > keep {
                self.repeat(span.start..span.start + keep);
                break;
            }
            keep -= span.len();
            above = node;
        }
        above
    }

    /// Begin anew below the root: all that is kept is repeated, and trained where it was sampled, not here.
    fn fork(&mut self, root: u32, parent: u32, mut keep: usize) -> u32 {
        for node in self.down_to(parent) {
            let span = self.span(node);
            let kept = span.len().min(keep);
            let ids = self.tokens.ids[span.start..span.start + kept].to_vec();
            self.tokens.extend(&TokenBuffer::given(ids).as_slice());
            keep -= kept;
        }
        root
    }

    /// Note the samples of a rollout that end where a later one forked from them.
    pub(super) fn add_segments(&mut self, tree: &Tree, base: u32, rollout: RolloutId) {
        if tree.contexts.count() == 0 {
            return;
        }
        let mut forks: Vec<NodeId> = tree.nodes.upward(tree.rollouts.leaf(rollout)).collect();
        forks.retain(|&node| tree.drifted(node).is_some_and(|drift| drift.policy == Policy::Fork));
        let number = crate::id::count(self.leaves.len());
        for node in forks.into_iter().rev() {
            self.segment_leaves.push(base + tree.nodes.parent(node).get());
            self.segment_rollouts.push(number);
        }
    }

    /// The nodes whose tokens lead to a node, from the root to that node.
    fn down_to(&self, node: u32) -> Vec<u32> {
        let mut path = vec![node];
        let mut at = node;
        while self.parents[at as usize] != at {
            at = self.parents[at as usize];
            path.push(at);
        }
        path.reverse();
        path
    }

    /// Where a node's tokens are.
    #[expect(clippy::cast_possible_truncation, reason = "offsets into a vector")]
    fn span(&self, node: u32) -> Range<usize> {
        let node = node as usize;
        self.offsets[node] as usize..self.offsets[node + 1] as usize
    }

    /// Put tokens down a second time.
    fn repeat(&mut self, span: Range<usize>) {
        self.tokens.ids.extend_from_within(span.clone());
        self.tokens.logprobs.extend_from_within(span.clone());
        self.tokens.versions.extend_from_within(span.clone());
        self.tokens.flags.extend_from_within(span);
    }
}
