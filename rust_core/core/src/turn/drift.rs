//! Drift: a prompt whose token ids were not the path's with more after them, and what was made of it; and with it, the
//! ids that a model is given at a node.
//!
//! A server that renders a conversation anew may cut a model's own words into other tokens than the model sampled. What
//! the model was given is then kept as the context of the turn: a part of the path's tokens, and others after it.

use crate::error::{Error, Result, some};
use crate::id::{ContextId, NONE, NodeId, RunId};
use crate::keyword::keywords;
use crate::storage::tokens::TokenSlice;
use crate::tree::Tree;
use crate::tree::nodes::Kind;
use crate::tree::runs::TokenRun;
use crate::wire::op::Op;
use crate::wire::rules::known;

keywords! {
    /// What is made of a prompt that parts from its path.
    #[derive(Hash)]
    #[repr(u32)]
    pub enum DriftPolicy as "the policy", Or {
        /// The path's ids stay what they are: only what is new was appended to them.
        Bridge = "bridge",
        /// What the model was given replaces the rest of the path, for this turn and those after it.
        Realign = "realign",
        /// The same, and a sample of its own begins here.
        Fork = "fork",
    }
}

/// How a prompt parted from its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Drift {
    /// What was made of it.
    pub(crate) policy: DriftPolicy,
    /// Ids that prompt and path have in common at the beginning.
    pub(crate) keep: u32,
    /// What the model was given after these, where that counts.
    pub(crate) run: Option<RunId>,
    /// The messages that were sent, where they are not those of the path.
    pub(crate) messages: Option<ContextId>,
}

impl Drift {
    /// Words of a context that is a drift: the first is no fragment's id.
    pub(crate) fn words(&self) -> Vec<u32> {
        let mut words = vec![NONE, self.policy as u32, self.keep, self.run.map_or(NONE, RunId::get)];
        words.extend(self.messages.map(ContextId::get));
        words
    }

    /// The drift that a context's words are, if they are not messages.
    pub(crate) fn of(words: &[u32]) -> Option<Result<Self>> {
        let (&NONE, rest) = words.split_first()? else { return None };
        let found = match *rest {
            [policy, keep, run, ref messages @ ..] if messages.len() < 2 => {
                DriftPolicy::ALL.get(policy as usize).map(|&policy| {
                    let run = (run != NONE).then_some(RunId::new(run));
                    Self { policy, keep, run, messages: messages.first().copied().map(ContextId::new) }
                })
            }
            _ => None,
        };
        // A bridge keeps the path, so nothing replaces it; the others have something that does.
        let sound = found.filter(|drift| drift.run.is_none() == (drift.policy == DriftPolicy::Bridge));
        let value = || format!("a context is {}", some(words));
        Some(sound.ok_or_else(|| Error::conflict(value(), "a list of messages or a drift")))
    }
}

/// A drift, read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DriftView<'t> {
    /// What was made of it.
    pub policy: DriftPolicy,
    /// Ids that prompt and path have in common at the beginning.
    pub keep: u32,
    /// What the model was given after these; nothing where the path was kept.
    pub given: TokenSlice<'t>,
}

impl Tree {
    /// Record that a prompt has only the first `keep` ids of its path, as the context for the turn that came of it.
    ///
    /// # Errors
    /// If a bridge replaces tokens, another policy replaces none, a column holds what it may not, or no id is left.
    pub fn drift(&mut self, policy: DriftPolicy, keep: u32, given: Option<TokenSlice<'_>>) -> Result<ContextId> {
        self.drift_of_messages(policy, keep, given, None)
    }

    /// The same of a prompt that was made of other messages than those of the path.
    pub(crate) fn drift_of_messages(
        &mut self,
        policy: DriftPolicy,
        keep: u32,
        given: Option<TokenSlice<'_>>,
        messages: Option<ContextId>,
    ) -> Result<ContextId> {
        let run = given.map(TokenRun::new);
        if run.is_none() != (policy == DriftPolicy::Bridge) {
            let value = format!("a {} {} tokens", policy.as_str(), if run.is_none() { "without" } else { "with" });
            return Err(Error::conflict(value, "a bridge, which keeps the path, or have tokens in its place"));
        }
        let known = run.as_ref().and_then(|run| self.runs.same(run));
        let number = run.as_ref().map(|_| known.unwrap_or(RunId::new(self.runs.count())));
        let words = Drift { policy, keep, run: number, messages }.words();
        if let Some(id) = self.contexts.find(&words) {
            return Ok(id);
        }
        let store = run.filter(|_| known.is_none()).map(Op::Run);
        self.perform_all(&[store, Some(Op::Context(words.as_slice().into()))]).map(ContextId::new)
    }

    /// How the prompt of a turn parted from its path, if it did.
    ///
    /// # Errors
    /// If the node does not exist.
    pub fn drift_of(&self, node: NodeId) -> Result<Option<DriftView<'_>>> {
        self.known_node(node)?;
        Ok(self.drifted(node).map(|Drift { policy, keep, run, .. }| DriftView {
            policy,
            keep,
            given: run.map(|run| self.runs.get(run)).unwrap_or_default(),
        }))
    }

    /// The same for a node that exists.
    pub(crate) fn drifted(&self, node: NodeId) -> Option<Drift> {
        let context = self.nodes.row(node).and_then(|row| self.nodes.calls().context(row))?;
        self.contexts.drift(context)
    }
}

/// Ids that are stored together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdPiece<'t> {
    /// The ids.
    pub(crate) ids: &'t [u32],
    /// Their run, if they are the whole of a model turn.
    pub(crate) turn: Option<RunId>,
}

/// Ids in the pieces in which they are stored.
#[derive(Clone, Debug, Default)]
pub(crate) struct PathIds<'t> {
    pieces: Vec<IdPiece<'t>>,
    len: usize,
}

impl<'t> PathIds<'t> {
    /// How many ids.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The pieces, in order.
    pub(crate) fn pieces(&self) -> &[IdPiece<'t>] {
        &self.pieces
    }

    /// Their ids, in order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &'t [u32]> + '_ {
        self.pieces.iter().map(|piece| piece.ids)
    }

    fn push(&mut self, ids: &'t [u32], turn: Option<RunId>) {
        self.pieces.push(IdPiece { ids, turn });
        self.len += ids.len();
    }

    /// Drop all but the first `keep`.
    fn truncate(&mut self, keep: usize) {
        while self.len > keep {
            let Some(last) = self.pieces.pop() else { return };
            self.len -= last.ids.len();
            if self.len < keep {
                self.push(&last.ids[..keep - self.len], None);
            }
        }
    }
}

/// What a path says, as far as its ids are known.
pub(crate) struct KnownIds<'t> {
    /// The ids.
    pub(crate) ids: PathIds<'t>,
    /// Nodes after the last one whose ids are known.
    pub(crate) pending: Vec<NodeId>,
}

impl Tree {
    /// What a model is given at a node, up to the first node without ids.
    pub(crate) fn known_ids(&self, node: NodeId) -> Result<KnownIds<'_>> {
        let path = self.path(node)?;
        let mut ids = PathIds { pieces: Vec::with_capacity(path.len()), len: 0 };
        // Where the nodes without ids begin.
        let mut open = None;
        for (place, &node) in path.iter().enumerate() {
            let Some(run) = self.nodes.run(node) else {
                open.get_or_insert(place);
                continue;
            };
            if let Some(drift) = self.drifted(node).filter(|drift| drift.run.is_some()) {
                // It says all that the model was given, so nodes before it need no ids of their own.
                open = None;
                self.part(&mut ids, drift);
            }
            if open.is_none() {
                let turn = (self.nodes.kind(node) == Kind::Turn).then_some(run);
                ids.push(self.runs.get(run).ids, turn);
            }
        }
        Ok(KnownIds { ids, pending: open.map_or_else(Vec::new, |open| path[open..].to_vec()) })
    }

    /// Put what a model was given in the place of what the path says.
    fn part<'t>(&'t self, ids: &mut PathIds<'t>, drift: Drift) {
        if let Some(run) = drift.run.filter(|_| drift.policy != DriftPolicy::Bridge) {
            ids.truncate(drift.keep as usize);
            ids.push(self.runs.get(run).ids, None);
        }
    }

    /// What a model is given at a node, all of it; with a drift as context, what that makes of it.
    pub(crate) fn prompt(&self, node: NodeId, context: Option<ContextId>) -> Result<PathIds<'_>> {
        let KnownIds { mut ids, pending } = self.known_ids(node)?;
        let mut given = false;
        if let Some(context) = context {
            known("context", context.get(), self.contexts.count())?;
            let Some(drift) = self.contexts.drift(context) else {
                let value = format!("context {} is of messages", context.get());
                return Err(Error::reference(value, "a drift to be a prompt of ids"));
            };
            given = drift.run.is_some();
            self.part(&mut ids, drift);
        }
        if let Some(first) = pending.first().filter(|_| !given) {
            let value = format!("node {} has no token ids", first.get());
            return Err(Error::reference(value, "given some before its path is a prompt of ids"));
        }
        Ok(ids)
    }

    /// The last ids that a model is given at a node, as many as there are up to `most`.
    ///
    /// # Errors
    /// If the node does not exist, or a node on its path has no ids.
    pub fn last_ids(&self, node: NodeId, most: usize) -> Result<Vec<u32>> {
        let ids = self.prompt(node, None)?;
        let mut skip = ids.len().saturating_sub(most);
        let mut out = Vec::with_capacity(ids.len() - skip);
        for piece in ids.iter() {
            let start = skip.min(piece.len());
            out.extend_from_slice(&piece[start..]);
            skip -= start;
        }
        Ok(out)
    }
}
