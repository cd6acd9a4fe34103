//! The tree of one task: how it changes. How it is read is in `read`, `body`, `counts`, `check` and `delta`.

pub(crate) mod body;
mod check;
pub(crate) mod contexts;
pub(crate) mod counts;
pub(crate) mod digest;
pub(crate) mod fragments;
pub(crate) mod names;
pub(crate) mod nodes;
pub(crate) mod read;
pub(crate) mod rollouts;
pub(crate) mod termination;

use std::borrow::Cow;

use crate::error::Result;
use crate::id::{ContextId, FragmentId, NameId, NodeId, RolloutId};
use crate::memory::slab::Slab;
use crate::tree::contexts::Contexts;
use crate::tree::digest::NodeContent;
use crate::tree::fragments::{Fragments, Message};
use crate::tree::names::Names;
use crate::tree::nodes::{Extra, Key, Kind, Nodes};
use crate::tree::rollouts::{Rollouts, Usage};
use crate::tree::termination::Termination;
use crate::wire::delta::Journal;
use crate::wire::op::{Call, Op};
use crate::wire::rules::{self, Counts, View};

/// Everything done for one task: nodes, rollouts, and the bytes they share.
///
/// Every change is an operation that is checked by the rules, written into a journal and then carried out; a refused one
/// changes nothing.
#[derive(Clone, Debug)]
pub struct Tree {
    pub(crate) names: Names,
    pub(crate) fragments: Fragments,
    pub(crate) contexts: Contexts,
    pub(crate) nodes: Nodes,
    pub(crate) rollouts: Rollouts,
    pub(crate) asides: Slab<u8>,
    pub(crate) journal: Journal,
}

impl Default for Tree {
    fn default() -> Self {
        Self::new()
    }
}

impl Tree {
    /// A tree with a root and nothing else.
    #[must_use]
    pub fn new() -> Self {
        Self {
            names: Names::new(),
            fragments: Fragments::new(),
            contexts: Contexts::new(),
            nodes: Nodes::new(),
            rollouts: Rollouts::new(),
            asides: Slab::default(),
            journal: Journal::default(),
        }
    }

    /// Forget everything but the root and keep the memory for the next task.
    pub fn reset(&mut self) {
        self.names.reset();
        self.fragments.reset();
        self.contexts.reset();
        self.nodes.reset();
        self.rollouts.reset();
        self.asides.reset();
        self.journal = Journal::default();
    }

    /// Intern a name.
    ///
    /// # Errors
    /// If no id is left.
    pub fn name(&mut self, text: &str) -> Result<NameId> {
        if let Some(id) = self.names.find(text) {
            return Ok(id);
        }
        self.perform(&Op::Name(text)).map(NameId::new)
    }

    /// Intern a message without making a node of it.
    ///
    /// # Errors
    /// If it cannot be a message, or no id is left.
    pub fn fragment(&mut self, message: &[u8]) -> Result<FragmentId> {
        let message = Message::new(message);
        if let Some(id) = self.fragments.find(&message) {
            return Ok(id);
        }
        self.perform(&Op::Fragment(message)).map(FragmentId::new)
    }

    /// Record what was really sent where it is not a path.
    ///
    /// # Errors
    /// If a fragment does not exist, or no id is left.
    pub fn context(&mut self, fragments: &[u32]) -> Result<ContextId> {
        if let Some(id) = self.contexts.find(fragments) {
            return Ok(id);
        }
        self.perform(&Op::Context(Cow::Borrowed(fragments))).map(ContextId::new)
    }

    /// Append a message that no rollout owns.
    ///
    /// # Errors
    /// If the parent or the agent does not exist, the kind belongs to rollouts, or the bytes are no message.
    pub fn append(&mut self, parent: NodeId, kind: Kind, message: &[u8], agent: NameId) -> Result<NodeId> {
        Kind::loose(kind as u32)?;
        self.perform_with(message, |fragment| Op::Append { parent, kind, fragment, agent })
    }

    /// Open a rollout at a node.
    ///
    /// # Errors
    /// If the node does not exist, or a rollout with this fork path does.
    pub fn open(&mut self, point: NodeId, path: &[u32], subgroup: u32) -> Result<RolloutId> {
        self.perform(&Op::Open { point, path: Cow::Borrowed(path), subgroup }).map(RolloutId::new)
    }

    /// Append a model turn at a rollout's leaf and move the leaf there.
    ///
    /// # Errors
    /// If the rollout has ended, an id does not exist, or the bytes are no message.
    pub fn turn(&mut self, rollout: RolloutId, message: &[u8], call: Call<'_>) -> Result<NodeId> {
        self.perform_with(message, |fragment| Op::Turn { rollout, fragment, call })
    }

    /// Append a tool observation at a rollout's leaf, move the leaf there, and count the call, as failed where it did.
    ///
    /// # Errors
    /// If the rollout has ended, an id does not exist, or the bytes are no message.
    pub fn observe(
        &mut self,
        rollout: RolloutId,
        message: &[u8],
        agent: NameId,
        micros: u64,
        failed: bool,
    ) -> Result<NodeId> {
        self.perform_with(message, |fragment| Op::Observe { rollout, fragment, agent, micros, failed })
    }

    /// End a rollout for good.
    ///
    /// # Errors
    /// If it has ended already.
    pub fn close(
        &mut self,
        rollout: RolloutId,
        termination: Termination,
        answer: Option<&str>,
        error: Option<&str>,
    ) -> Result<()> {
        self.perform(&Op::Close { rollout, termination, answer, error }).map(|_| ())
    }

    /// Set the reward of an ended rollout; NaN for unscored.
    ///
    /// # Errors
    /// If it has not ended, or the reward is infinite.
    pub fn score(&mut self, rollout: RolloutId, reward: f64) -> Result<()> {
        self.perform(&Op::Score { rollout, reward }).map(|_| ())
    }

    /// Check an operation, write it down, carry it out.
    fn perform(&mut self, op: &Op<'_>) -> Result<u32> {
        rules::check(self, op, self.fragments.count())?;
        self.journal.record(op);
        self.commit(op)
    }

    /// The same for an operation on a message, which is interned first, but only once both are known to be allowed.
    fn perform_with<'a>(&mut self, bytes: &'a [u8], op: impl FnOnce(FragmentId) -> Op<'a>) -> Result<NodeId> {
        let message = Message::new(bytes);
        let count = self.fragments.count();
        if let Some(known) = self.fragments.find(&message) {
            return self.perform(&op(known)).map(NodeId::new);
        }
        let intern = Op::Fragment(message);
        let op = op(FragmentId::new(count));
        rules::check(self, &intern, count)?;
        rules::check(self, &op, count + 1)?;
        self.journal.record(&intern);
        self.commit(&intern)?;
        self.journal.record(&op);
        self.commit(&op).map(NodeId::new)
    }

    /// Carry out an operation that the rules allow and return the id it made or reached. The only way a tree changes.
    pub(crate) fn commit(&mut self, op: &Op<'_>) -> Result<u32> {
        match op {
            Op::Name(text) => self.names.insert(text).map(NameId::get),
            Op::Fragment(message) => self.fragments.insert(message).map(FragmentId::get),
            Op::Context(list) => self.contexts.insert(list, &self.fragments).map(ContextId::get),
            Op::Append { parent, kind, fragment, agent } => {
                let key = key(*parent, *kind, *agent, *fragment);
                self.merge(key, Extra::NOTHING).map(NodeId::get)
            }
            Op::Open { point, path, subgroup } => self.rollouts.open(*point, path, *subgroup).map(RolloutId::get),
            Op::Turn { rollout, fragment, call } => self.commit_turn(*rollout, *fragment, call),
            Op::Observe { rollout, fragment, agent, micros, failed } => {
                let parent = self.rollouts.leaf(*rollout);
                let leaf = self.merge(key(parent, Kind::Observation, *agent, *fragment), Extra::NOTHING)?;
                let tool_errors = u64::from(*failed);
                let cost = Usage { tools: 1, tool_errors, tool_micros: *micros, ..Usage::default() };
                self.rollouts.advance(*rollout, leaf, &cost);
                Ok(leaf.get())
            }
            Op::Close { rollout, termination, answer, error } => {
                self.rollouts.close(*rollout, *termination, *answer, *error)?;
                Ok(rollout.get())
            }
            Op::Score { rollout, reward } => {
                self.rollouts.score(*rollout, *reward);
                Ok(rollout.get())
            }
        }
    }

    fn commit_turn(&mut self, rollout: RolloutId, fragment: FragmentId, call: &Call<'_>) -> Result<u32> {
        let parent = self.rollouts.leaf(rollout);
        let mut key = key(parent, Kind::Turn, call.agent, fragment);
        key.namespace = call.namespace;
        key.context = call.context;
        let known = self.nodes.find(&key).is_some_and(|node| self.nodes.aside(node).is_some());
        let aside = match call.aside {
            Some(text) if !known => Some(self.asides.push(text.as_bytes())?),
            _ => None,
        };
        let extra = Extra { finish: call.finish, prompt: call.prompt, generated: call.generated, aside };
        let leaf = self.merge(key, extra)?;
        self.rollouts.advance(rollout, leaf, &cost(call));
        Ok(leaf.get())
    }

    /// The node with this key: the one that is there, or a new one.
    fn merge(&mut self, key: Key, extra: Extra) -> Result<NodeId> {
        if let Some(known) = self.nodes.find(&key) {
            self.nodes.fill(known, &extra);
            return Ok(known);
        }
        let digest = digest::node(&self.content(&key));
        self.nodes.insert(key, extra, digest)
    }

    /// What a node says, as hashes.
    pub(crate) fn content(&self, key: &Key) -> NodeContent {
        NodeContent {
            parent: self.nodes.digest(key.parent),
            kind: key.kind,
            agent: self.names.hash(key.agent),
            namespace: self.names.hash(key.namespace),
            message: key.fragment.map_or(0, |fragment| self.fragments.hash(fragment)),
            context: key.context.map(|context| self.contexts.digest(context)),
        }
    }
}

const fn key(parent: NodeId, kind: Kind, agent: NameId, fragment: FragmentId) -> Key {
    Key { parent, kind, agent, namespace: NameId::EMPTY, fragment: Some(fragment), context: None }
}

/// What a model call costs its rollout. A call that lacks a figure is counted as unreported and in no total.
fn cost(call: &Call<'_>) -> Usage {
    let base = Usage { calls: 1, retries: u64::from(call.retries), llm_micros: call.micros, ..Usage::default() };
    match (call.prompt.get(), call.generated.get()) {
        (Some(prompt), Some(generated)) => Usage {
            prompt: prompt.into(),
            // No more than the prompt can have been cached, whatever the server says.
            cached: call.cached.get().unwrap_or(0).min(prompt).into(),
            generated: generated.into(),
            ..base
        },
        _ => Usage { unreported: 1, ..base },
    }
}

impl View for Tree {
    fn counts(&self) -> Counts {
        Counts {
            names: self.names.count(),
            fragments: self.fragments.count(),
            contexts: self.contexts.count(),
            nodes: self.nodes.count(),
            rollouts: self.rollouts.count(),
        }
    }

    fn has_name(&self, text: &str) -> bool {
        self.names.find(text).is_some()
    }

    fn has_fragment(&self, message: &Message<'_>) -> bool {
        self.fragments.find(message).is_some()
    }

    fn has_context(&self, fragments: &[u32]) -> bool {
        self.contexts.find(fragments).is_some()
    }

    fn has_path(&self, path: &[u32]) -> bool {
        self.rollouts.find(path).is_some()
    }

    fn termination(&self, rollout: RolloutId) -> Option<Termination> {
        self.rollouts.termination(rollout)
    }
}
