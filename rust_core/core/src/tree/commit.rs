//! Carrying out operations, and what the rules ask of a tree before.

use crate::error::Result;
use crate::id::{ContextId, FragmentId, NameId, NodeId, RolloutId, RunId};
use crate::tree::Tree;
use crate::tree::digest::{self, NodeContent};
use crate::tree::fragments::EncodedMessage;
use crate::tree::nodes::{ContentKey, Kind, NodeKey};
use crate::tree::rollouts::Usage;
use crate::tree::termination::Termination;
use crate::turn::drift::DriftPolicy;
use crate::wire::op::{Call, Op};
use crate::wire::rules::{ObjectCounts, View};

/// What a node is made of: its message, and its tokens where they came with it.
type Content = (FragmentId, Option<RunId>);

impl Tree {
    /// Carry out an operation that the rules allow and return the id it made or reached. The only way a tree changes.
    pub(crate) fn commit(&mut self, op: &Op<'_>) -> Result<u32> {
        match op {
            Op::Name(text) => self.names.insert(text).map(NameId::get),
            Op::Fragment(message) => self.fragments.insert(message).map(FragmentId::get),
            Op::Run(run) => self.runs.insert(run).map(RunId::get),
            Op::Context(list) => self.contexts.insert(list, &self.fragments, &self.runs).map(ContextId::get),
            Op::Append { parent, kind, fragment, run, agent } => {
                let key = NodeKey::plain(*parent, *kind, *agent);
                self.merge(&key, (*fragment, *run), None).map(NodeId::get)
            }
            Op::Open { point, path, subgroup } => {
                let rollout = self.rollouts.open(*point, path, *subgroup)?;
                self.visits.open(&self.nodes, *point, rollout);
                Ok(rollout.get())
            }
            Op::Turn { rollout, fragment, run, call } => {
                let key = NodeKey::turn(self.rollouts.leaf(*rollout), call);
                let drift = call.context.and_then(|context| self.contexts.drift(context));
                let cost = cost(call, drift.map(|drift| drift.policy));
                self.advance(*rollout, &key, (*fragment, *run), Some(call), &cost)
            }
            Op::Observe { rollout, fragment, run, agent, micros, failed } => {
                let key = NodeKey::plain(self.rollouts.leaf(*rollout), Kind::Observation, *agent);
                let tool_errors = u64::from(*failed);
                let cost = Usage { tools: 1, tool_errors, tool_micros: *micros, ..Usage::default() };
                self.advance(*rollout, &key, (*fragment, *run), None, &cost)
            }
            Op::Tell { rollout, fragment, run, agent } => {
                let key = NodeKey::plain(self.rollouts.leaf(*rollout), Kind::Message, *agent);
                self.advance(*rollout, &key, (*fragment, *run), None, &Usage::default())
            }
            Op::Tokenise { node, run } => {
                self.nodes.tokenise(*node, *run, self.runs.hash(*run));
                Ok(node.get())
            }
            Op::Close { rollout, termination, answer, error } => {
                let could = self.rollouts.may_go_on(*rollout);
                self.rollouts.close(*rollout, *termination, *answer, *error)?;
                if could && !self.rollouts.may_go_on(*rollout) {
                    self.visits.end(self.rollouts.leaf(*rollout));
                }
                Ok(rollout.get())
            }
            Op::Score { rollout, reward } => {
                let (leaf, old) = (self.rollouts.leaf(*rollout), self.rollouts.reward(*rollout));
                self.visits.score(&self.nodes, leaf, old, *reward);
                self.rollouts.score(*rollout, *reward);
                Ok(rollout.get())
            }
            Op::Note { rollout, text } => {
                self.rollouts.note(*rollout, text);
                Ok(rollout.get())
            }
            Op::Mark(text) => {
                self.marks.push((*text).into());
                Ok(0)
            }
            Op::Report { node, text } => {
                self.reports.write(*node, text);
                Ok(node.get())
            }
        }
    }

    /// Move a rollout's leaf down.
    fn advance(
        &mut self,
        rollout: RolloutId,
        key: &NodeKey,
        content: Content,
        call: Option<&Call<'_>>,
        cost: &Usage,
    ) -> Result<u32> {
        let leaf = self.merge(key, content, call.map(|call| (rollout, call)))?;
        self.visits.advance(self.rollouts.leaf(rollout), leaf, rollout);
        self.rollouts.advance(rollout, leaf, cost);
        Ok(leaf.get())
    }

    /// The node with this key and content: the one that is there, or a new one.
    fn merge(
        &mut self,
        key: &NodeKey,
        (fragment, run): Content,
        call: Option<(RolloutId, &Call<'_>)>,
    ) -> Result<NodeId> {
        let key = key.saying(ContentKey::new(fragment, run, &self.runs));
        if let Some(known) = self.nodes.find(&key, &self.runs) {
            call.map_or(Ok(()), |call| self.nodes.fill(known, run, call, &self.runs))?;
            return Ok(known);
        }
        let digest = digest::node(&self.content(&key));
        let bytes = self.fragments.get(fragment).len();
        let node = self.nodes.insert(key, (fragment, bytes, run), call, (digest, &self.runs))?;
        self.visits.push();
        Ok(node)
    }

    /// What a node says, as hashes.
    pub(crate) fn content(&self, key: &NodeKey) -> NodeContent {
        let (said, tokens) = match key.said {
            ContentKey::Nothing => (0, false),
            ContentKey::Message(fragment) => (self.fragments.hash(fragment), false),
            ContentKey::Tokens(run) => (self.runs.hash(run), true),
        };
        NodeContent {
            parent: self.nodes.digest(key.parent),
            kind: key.kind,
            agent: self.names.hash(key.agent),
            namespace: self.names.hash(key.namespace),
            said,
            tokens,
            context: key.context.map(|context| self.contexts.digest(context)),
        }
    }
}

/// What a model call costs its rollout. A call that lacks a figure is counted as unreported and in no total.
fn cost(call: &Call<'_>, drift: Option<DriftPolicy>) -> Usage {
    let base = Usage {
        calls: 1,
        retries: u64::from(call.retries),
        bridged: u64::from(drift == Some(DriftPolicy::Bridge)),
        realigned: u64::from(drift == Some(DriftPolicy::Realign)),
        forked: u64::from(drift == Some(DriftPolicy::Fork)),
        llm_micros: call.micros,
        ..Usage::default()
    };
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
    fn counts(&self) -> ObjectCounts {
        ObjectCounts {
            names: self.names.count(),
            fragments: self.fragments.count(),
            runs: self.runs.count(),
            contexts: self.contexts.count(),
            nodes: self.nodes.count(),
            rollouts: self.rollouts.count(),
        }
    }

    fn has_name(&self, text: &str) -> bool {
        self.names.find(text).is_some()
    }

    fn has_fragment(&self, message: &EncodedMessage<'_>) -> bool {
        self.fragments.find(message).is_some()
    }

    fn fragment(&self, id: FragmentId) -> Option<&[u8]> {
        (id.get() < self.fragments.count()).then(|| self.fragments.get(id))
    }

    fn has_context(&self, fragments: &[u32]) -> bool {
        self.contexts.find(fragments).is_some()
    }

    fn has_path(&self, path: &[u32]) -> bool {
        self.rollouts.find(path).is_some()
    }

    fn kind(&self, node: NodeId) -> Kind {
        self.nodes.kind(node)
    }

    fn has_tokens(&self, node: NodeId) -> bool {
        self.nodes.run(node).is_some()
    }

    fn is_empty(&self, run: RunId) -> bool {
        // One that is about to be stored with its message is not empty.
        run.get() < self.runs.count() && self.runs.len(run) == 0
    }

    fn termination(&self, rollout: RolloutId) -> Option<Termination> {
        self.rollouts.termination(rollout)
    }
}
