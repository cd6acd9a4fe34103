//! A tree with operations imagined on top of it, so that a delta is judged as a whole before anything changes.

use std::collections::{HashMap, HashSet};

use crate::id::{NameId, NodeId, RolloutId};
use crate::tree::Tree;
use crate::tree::fragments::Message;
use crate::tree::nodes::{Key, Kind};
use crate::tree::termination::Termination;
use crate::wire::op::Op;
use crate::wire::rules::{Counts, View};

/// What a delta would change, beside the tree it would change.
pub(crate) struct Overlay<'t, 'a> {
    tree: &'t Tree,
    counts: Counts,
    names: HashSet<&'a str>,
    // The hash finds, the bytes decide: two messages of one hash are two messages.
    fragments: HashMap<u128, Vec<&'a [u8]>>,
    contexts: HashSet<Vec<u32>>,
    nodes: HashMap<[u32; 6], NodeId>,
    paths: HashSet<Vec<u32>>,
    rollouts: HashMap<RolloutId, (NodeId, Option<Termination>)>,
}

impl<'t, 'a> Overlay<'t, 'a> {
    /// Nothing imagined yet.
    pub(crate) fn new(tree: &'t Tree) -> Self {
        Self {
            tree,
            counts: tree.counts(),
            names: HashSet::new(),
            fragments: HashMap::new(),
            contexts: HashSet::new(),
            nodes: HashMap::new(),
            paths: HashSet::new(),
            rollouts: HashMap::new(),
        }
    }

    /// Imagine an operation that the rules allow.
    pub(crate) fn advance(&mut self, op: &Op<'a>) {
        match op {
            Op::Name(text) => {
                self.names.insert(text);
                self.counts.names += 1;
            }
            Op::Fragment(message) => {
                self.fragments.entry(message.hash).or_default().push(message.bytes);
                self.counts.fragments += 1;
            }
            Op::Context(list) => {
                self.contexts.insert(list.to_vec());
                self.counts.contexts += 1;
            }
            Op::Append { parent, kind, fragment, agent } => {
                self.node(&Key {
                    parent: *parent,
                    kind: *kind,
                    agent: *agent,
                    namespace: NameId::EMPTY,
                    fragment: Some(*fragment),
                    context: None,
                });
            }
            Op::Open { point, path, .. } => {
                self.paths.insert(path.to_vec());
                self.rollouts.insert(RolloutId::new(self.counts.rollouts), (*point, None));
                self.counts.rollouts += 1;
            }
            Op::Turn { rollout, fragment, call } => {
                let (kind, namespace) = (Kind::Turn, call.namespace);
                let (agent, context) = (call.agent, call.context);
                let parent = self.leaf(*rollout);
                let leaf = self.node(&Key { parent, kind, agent, namespace, fragment: Some(*fragment), context });
                self.rollouts.insert(*rollout, (leaf, None));
            }
            Op::Observe { rollout, fragment, agent, .. } => {
                let (kind, namespace) = (Kind::Observation, NameId::EMPTY);
                let (fragment, agent) = (Some(*fragment), *agent);
                let parent = self.leaf(*rollout);
                let leaf = self.node(&Key { parent, kind, agent, namespace, fragment, context: None });
                self.rollouts.insert(*rollout, (leaf, None));
            }
            Op::Close { rollout, termination, .. } => {
                let leaf = self.leaf(*rollout);
                self.rollouts.insert(*rollout, (leaf, Some(*termination)));
            }
            Op::Score { .. } => {}
        }
    }

    fn leaf(&self, rollout: RolloutId) -> NodeId {
        self.rollouts.get(&rollout).map_or_else(|| self.tree.rollouts.leaf(rollout), |(leaf, _)| *leaf)
    }

    /// The node that an operation would reach: one of the tree, one imagined before, or a new one.
    fn node(&mut self, key: &Key) -> NodeId {
        if let Some(id) = self.tree.nodes.find(key) {
            return id;
        }
        let next = NodeId::new(self.counts.nodes);
        let id = *self.nodes.entry(key.words()).or_insert(next);
        if id == next {
            self.counts.nodes += 1;
        }
        id
    }
}

impl View for Overlay<'_, '_> {
    fn counts(&self) -> Counts {
        self.counts
    }

    fn has_name(&self, text: &str) -> bool {
        self.names.contains(text) || self.tree.has_name(text)
    }

    fn has_fragment(&self, message: &Message<'_>) -> bool {
        let imagined = self.fragments.get(&message.hash);
        imagined.is_some_and(|same| same.contains(&message.bytes)) || self.tree.has_fragment(message)
    }

    fn has_context(&self, fragments: &[u32]) -> bool {
        self.contexts.contains(fragments) || self.tree.has_context(fragments)
    }

    fn has_path(&self, path: &[u32]) -> bool {
        self.paths.contains(path) || self.tree.has_path(path)
    }

    fn termination(&self, rollout: RolloutId) -> Option<Termination> {
        match self.rollouts.get(&rollout) {
            Some((_, termination)) => *termination,
            None => View::termination(self.tree, rollout),
        }
    }
}
