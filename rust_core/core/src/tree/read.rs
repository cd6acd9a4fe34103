//! Reading a tree. Nothing here changes anything.

use crate::error::Result;
use crate::id::{ContextId, NameId, NodeId, RolloutId, Tokens};
use crate::tree::Tree;
use crate::tree::digest;
use crate::tree::nodes::Kind;
use crate::tree::rollouts::Usage;
use crate::tree::termination::Termination;
use crate::wire::rules::known;

/// One node, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    pub prompt: Tokens,
    /// Completion tokens as first reported.
    pub generated: Tokens,
    /// What was sent, where it is not the path.
    pub context: Option<ContextId>,
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

    /// How many rollouts have not ended.
    #[must_use]
    pub fn growing_count(&self) -> usize {
        self.rollouts.growing().count()
    }

    /// Rollouts that have not ended, ascending.
    #[must_use]
    pub fn growing(&self) -> Vec<usize> {
        self.rollouts.growing().ones().iter().map(|&lane| lane as usize).collect()
    }

    /// Bytes of distinct messages.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.fragments.size()
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
        let key = self.nodes.key(id);
        Ok(NodeView {
            parent: key.parent,
            kind: key.kind,
            depth: self.nodes.depth(id),
            turns: self.nodes.turns(id),
            agent: self.names.get(key.agent),
            namespace: self.names.get(key.namespace),
            finish: self.names.get(self.nodes.finish(id)),
            prompt: self.nodes.prompt(id),
            generated: self.nodes.generated(id),
            context: key.context,
        })
    }

    /// A node's message; empty for the root.
    ///
    /// # Errors
    /// If the node does not exist.
    pub fn message(&self, id: NodeId) -> Result<&[u8]> {
        self.known_node(id)?;
        Ok(self.nodes.key(id).fragment.map_or(&[], |fragment| self.fragments.get(fragment)))
    }

    /// The bytes of what a turn said beside its message; they are UTF-8.
    ///
    /// # Errors
    /// If the node does not exist.
    pub fn aside(&self, id: NodeId) -> Result<Option<&[u8]>> {
        self.known_node(id)?;
        Ok(self.nodes.aside(id).map(|span| self.asides.get(span)))
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
            subgroup: self.rollouts.subgroup(id),
            termination: self.rollouts.termination(id),
            answer: self.rollouts.answer(id),
            error: self.rollouts.error(id),
            reward: self.rollouts.reward(id),
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
