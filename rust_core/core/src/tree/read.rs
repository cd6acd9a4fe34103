//! Reading a tree. Nothing here changes anything.

use crate::error::Result;
use crate::id::{ContextId, FragmentId, NameId, NodeId, RolloutId, TokenCount};
use crate::reply::Uncertainty;
use crate::storage::held;
use crate::storage::tokens::TokenSlice;
use crate::tree::nodes::Kind;
use crate::tree::rollouts::Usage;
use crate::tree::termination::Termination;
use crate::tree::{Tree, digest};
use crate::wire::rules::known;

/// One node, read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeView<'t> {
    /// The node before; the root's is itself.
    pub parent: NodeId,
    /// What it is.
    pub kind: Kind,
    /// Nodes above it; 0 for the root.
    pub depth: u32,
    /// Model turns from the root to here, this one included.
    pub turns: u32,
    /// Who said it.
    pub agent: &'t str,
    /// Model, sampling parameters and weight version.
    pub namespace: &'t str,
    /// Why the model stopped.
    pub finish: &'t str,
    /// Prompt tokens as first reported.
    pub prompt: TokenCount,
    /// Completion tokens as first reported.
    pub generated: TokenCount,
    /// What was sent, where it is not the path.
    pub context: Option<ContextId>,
    /// How sure the model was of a turn.
    pub uncertainty: Uncertainty,
    /// Scored rollouts whose path holds it.
    pub visits: u32,
    /// The sum of their rewards.
    pub value: f64,
    /// Rollouts that pass or end here, scored or not.
    pub passes: u32,
}

/// Bytes that a tree holds memory for, by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Columns and index of the nodes, model calls with their asides included.
    pub nodes: usize,
    /// Bytes of messages, and what finds them.
    pub messages: usize,
    /// Columns of tokens, and what finds them.
    pub tokens: usize,
    /// Rollouts, their fork paths and their answers.
    pub rollouts: usize,
    /// Names, contexts, and what the next delta will say.
    pub other: usize,
}

impl Memory {
    /// All of it.
    #[must_use]
    pub const fn total(&self) -> usize {
        self.nodes + self.messages + self.tokens + self.rollouts + self.other
    }
}

/// One rollout, read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RolloutView<'t> {
    /// Where it was opened.
    pub point: NodeId,
    /// Where it is now, or ended.
    pub leaf: NodeId,
    /// Its fork path.
    pub path: &'t [u32],
    /// Which sample of its fork point it is: the last number of its fork path, 0 if that is empty.
    pub draw: u32,
    /// Its lane while it grows, which is its id.
    pub lane: Option<u32>,
    /// The initial chain it was expanded for.
    pub subgroup: u32,
    /// How it ended; nothing while it grows.
    pub termination: Option<Termination>,
    /// Its answer.
    pub answer: Option<&'t str>,
    /// What went wrong.
    pub error: Option<&'t str>,
    /// Its reward; NaN while unscored.
    pub reward: f64,
    /// What was noted on it last.
    pub note: Option<&'t str>,
    /// What its own calls cost.
    pub usage: Usage,
    /// Model turns from the root to its leaf, shared ones included.
    pub turns: u32,
}

impl Tree {
    /// Check that a node exists.
    pub(crate) fn known_node(&self, id: NodeId) -> Result<()> {
        known("node", id.get(), self.nodes.count())
    }

    /// How many nodes there are, the root included.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        self.nodes.count()
    }

    /// How many rollouts were opened.
    #[must_use]
    pub fn rollouts(&self) -> u32 {
        self.rollouts.count()
    }

    /// Per node its parent and its kind, per rollout the node it has reached: what selection is fed with.
    #[must_use]
    pub fn shape(&self) -> (Vec<u32>, Vec<u8>, Vec<u32>) {
        let nodes = &self.nodes;
        (
            nodes.parents().iter().map(|parent| parent.get()).collect(),
            nodes.ids().map(|node| nodes.kind(node) as u8).collect(),
            self.rollouts.ids().map(|rollout| self.rollouts.leaf(rollout).get()).collect(),
        )
    }

    /// How many rollouts have not ended.
    #[must_use]
    pub fn growing_count(&self) -> usize {
        self.rollouts.growing().count()
    }

    /// Rollouts that have not ended, ascending.
    #[must_use]
    pub fn growing(&self) -> Vec<usize> {
        let mut growing = Vec::new();
        self.rollouts.growing().ones_into(&mut growing);
        growing.into_iter().map(|lane| lane as usize).collect()
    }

    /// Bytes of distinct messages.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.fragments.size()
    }

    /// Bytes that memory is held for: payload, bookkeeping, and what is kept for the next task.
    #[must_use]
    pub fn memory(&self) -> Memory {
        Memory {
            nodes: self.nodes.memory() + self.visits.memory(),
            messages: self.fragments.memory(),
            tokens: self.runs.memory(),
            rollouts: self.rollouts.memory(),
            other: self.names.memory()
                + self.contexts.memory()
                + self.journal.memory()
                + self.written()
                + self.drafted(),
        }
    }

    /// What drafts hold.
    fn drafted(&self) -> usize {
        let each = self.drafts.iter().map(|(_, (_, fragments))| size_of_val(&**fragments));
        self.drafts.capacity() * size_of::<(NodeId, Box<[FragmentId]>)>() + each.sum::<usize>()
    }

    /// What marks and reports hold.
    fn written(&self) -> usize {
        held(&self.marks) + self.marks.iter().map(|mark| mark.len()).sum::<usize>() + self.reports.memory()
    }

    /// The text of a name.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn text(&self, id: NameId) -> Result<&str> {
        known("name", id.get(), self.names.count())?;
        Ok(self.names.get(id))
    }

    /// One node.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn node(&self, id: NodeId) -> Result<NodeView<'_>> {
        self.known_node(id)?;
        let (nodes, calls) = (&self.nodes, self.nodes.calls());
        let row = nodes.row(id);
        let (prompt, generated) =
            row.map_or((TokenCount::UNREPORTED, TokenCount::UNREPORTED), |row| calls.figures(row));
        Ok(NodeView {
            parent: nodes.parent(id),
            kind: nodes.kind(id),
            depth: nodes.depth(id),
            turns: nodes.turns(id),
            agent: self.names.get(nodes.agent(id)),
            namespace: row.map_or("", |row| self.names.get(calls.namespace(row))),
            finish: row.map_or("", |row| self.names.get(calls.finish(row))),
            prompt,
            generated,
            context: row.and_then(|row| calls.context(row)),
            uncertainty: row.map_or(Uncertainty::UNKNOWN, |row| calls.uncertainty(row)),
            visits: self.visits.visits()[id.index()],
            value: self.visits.values()[id.index()],
            passes: self.visits.passes()[id.index()],
        })
    }

    /// A node's message; empty for the root.
    ///
    /// # Errors
    /// If the node does not exist.
    pub fn message(&self, id: NodeId) -> Result<&[u8]> {
        self.known_node(id)?;
        Ok(self.nodes.fragment(id).map_or(&[], |fragment| self.fragments.get(fragment)))
    }

    /// The bytes of what a turn said beside its message; they are UTF-8.
    ///
    /// # Errors
    /// If the node does not exist.
    pub fn aside(&self, id: NodeId) -> Result<Option<&[u8]>> {
        self.known_node(id)?;
        Ok(self.nodes.row(id).and_then(|row| self.nodes.calls().aside(row)))
    }

    /// What was reported on a node last.
    ///
    /// # Errors
    /// If the node does not exist.
    pub fn report_of(&self, id: NodeId) -> Result<Option<&str>> {
        self.known_node(id)?;
        Ok(self.reports.get(id))
    }

    /// A node's tokens, if they are known.
    ///
    /// # Errors
    /// If the node does not exist.
    pub fn tokens_of(&self, id: NodeId) -> Result<Option<TokenSlice<'_>>> {
        self.known_node(id)?;
        Ok(self.nodes.run(id).map(|run| self.runs.get(run)))
    }

    /// Nodes from the root's child to this one, in order; none for the root.
    ///
    /// # Errors
    /// If the node does not exist.
    pub fn path(&self, id: NodeId) -> Result<Vec<NodeId>> {
        self.known_node(id)?;
        let mut path = Vec::with_capacity(self.nodes.depth(id) as usize);
        path.extend(self.nodes.upward(id));
        path.reverse();
        Ok(path)
    }

    /// Children in the order they were made.
    ///
    /// # Errors
    /// If the node does not exist.
    pub fn children(&self, id: NodeId) -> Result<Vec<NodeId>> {
        self.known_node(id)?;
        Ok(self.nodes.children(id).collect())
    }

    /// One rollout.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn rollout(&self, id: RolloutId) -> Result<RolloutView<'_>> {
        known("rollout", id.get(), self.rollouts.count())?;
        let leaf = self.rollouts.leaf(id);
        Ok(RolloutView {
            point: self.rollouts.point(id),
            leaf,
            path: self.rollouts.path(id),
            draw: self.rollouts.draw(id),
            lane: self.rollouts.termination(id).is_none().then_some(id.get()),
            subgroup: self.rollouts.subgroup(id),
            termination: self.rollouts.termination(id),
            answer: self.rollouts.answer(id),
            error: self.rollouts.error(id),
            reward: self.rollouts.reward(id),
            note: self.rollouts.noted(id),
            usage: *self.rollouts.usage(id),
            turns: self.nodes.turns(leaf),
        })
    }

    /// What the tree says, in 128 bits: equal for any order of arrival. Ids, times and usage are left out.
    #[must_use]
    pub fn digest(&self) -> u128 {
        digest::tree(&self.nodes, &self.rollouts)
    }
}
