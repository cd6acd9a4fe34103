//! What makes two nodes one.

use crate::error::{Error, Result};
use crate::id::{self, ContextId, FragmentId, NONE, NameId, NodeId, RunId};
use crate::storage::hash;
use crate::tree::runs::Runs;
use crate::wire::op::Call;

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The empty node above everything.
    Root = 0,
    /// A message the model is shown first.
    Prompt = 1,
    /// A model turn.
    Turn = 2,
    /// What a tool gave back.
    Observation = 3,
    /// A message between agents.
    Message = 4,
}

impl Kind {
    /// The kind of a node that belongs to no rollout: a prompt or a message.
    ///
    /// # Errors
    /// [`Error::Kind`] for any other.
    pub fn loose(kind: u32) -> Result<Self> {
        match kind {
            1 => Ok(Self::Prompt),
            4 => Ok(Self::Message),
            _ => Err(Error::Kind { kind }),
        }
    }
}

/// What a node says, as its key has it: the ids of its tokens where they came with it, else its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Said {
    /// The root says nothing.
    Nothing,
    /// A message.
    Message(FragmentId),
    /// The first run with its ids.
    Tokens(RunId),
}

impl Said {
    /// What a message says that comes with tokens or without.
    pub(crate) fn new(fragment: FragmentId, run: Option<RunId>, runs: &Runs) -> Self {
        run.map_or(Self::Message(fragment), |run| Self::Tokens(runs.first(run)))
    }
}

/// What makes two nodes one: nodes with equal keys merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// The node before.
    pub(crate) parent: NodeId,
    /// What it is.
    pub(crate) kind: Kind,
    /// Who said it.
    pub(crate) agent: NameId,
    /// Model, sampling parameters and weight version.
    pub(crate) namespace: NameId,
    /// What was sent, where it is not the path.
    pub(crate) context: Option<ContextId>,
    /// What it says.
    pub(crate) said: Said,
}

impl Key {
    /// The key of what is no model turn.
    pub(crate) const fn plain(parent: NodeId, kind: Kind, agent: NameId) -> Self {
        Self { parent, kind, agent, namespace: NameId::EMPTY, context: None, said: Said::Nothing }
    }

    /// The key of a model turn.
    pub(crate) const fn turn(parent: NodeId, call: &Call<'_>) -> Self {
        let Call { agent, namespace, context, .. } = *call;
        Self { parent, kind: Kind::Turn, agent, namespace, context, said: Said::Nothing }
    }

    /// The same key, saying something.
    pub(crate) const fn saying(self, said: Said) -> Self {
        Self { said, ..self }
    }

    /// Where an index of nodes looks for it.
    pub(crate) fn hash(&self) -> u64 {
        let (way, said) = match self.said {
            Said::Nothing => (0, NONE),
            Said::Message(fragment) => (1, fragment.get()),
            Said::Tokens(run) => (2, run.get()),
        };
        let context = id::pack(self.context.map(ContextId::get));
        hash::mix([
            self.parent.get(),
            self.kind as u32 | way << 8,
            self.agent.get(),
            self.namespace.get(),
            context,
            said,
        ])
    }
}
