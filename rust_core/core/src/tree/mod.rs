//! The tree of one task: how it changes. How it is read is in `read`, `statistics` and `check`, how it travels in
//! `wire`.

pub(crate) mod calls;
mod check;
mod commit;
pub(crate) mod contexts;
pub(crate) mod digest;
pub(crate) mod fork_points;
pub(crate) mod fragments;
pub(crate) mod nodes;
pub(crate) mod read;
pub(crate) mod rollouts;
pub(crate) mod rows;
pub(crate) mod runs;
pub(crate) mod statistics;
pub(crate) mod termination;
pub(crate) mod visits;

use std::borrow::Cow;

use slab::Slab;

use crate::error::{Error, Result};
use crate::id::{ContextId, FragmentId, NONE, NameId, NodeId, RolloutId, RunId};
use crate::storage::Seldom;
use crate::storage::intern::Names;
use crate::storage::tokens::TokenSlice;
use crate::tree::contexts::Contexts;
use crate::tree::fragments::{EncodedMessage, FragmentKind, Fragments};
use crate::tree::nodes::{ContentKey, Kind, NodeKey, NodeReports, Nodes};
use crate::tree::rollouts::Rollouts;
use crate::tree::runs::{TokenRun, TokenRuns};
use crate::tree::termination::Termination;
use crate::tree::visits::Visits;
use crate::wire::delta::Journal;
use crate::wire::op::{Call, Op};
use crate::wire::rules::{self, View, known};

/// Everything done for one task: nodes, rollouts, and the bytes they share.
///
/// Every change is an operation that is checked by the rules, carried out and then written into a journal; a refused one
/// changes nothing.
#[derive(Clone, Debug)]
pub struct Tree {
    pub(crate) names: Names,
    pub(crate) fragments: Fragments,
    pub(crate) runs: Seldom<TokenRuns>,
    pub(crate) contexts: Seldom<Contexts>,
    /// Messages behind a node that are sent before they are on the tree; no delta has them.
    pub(crate) drafts: Slab<(NodeId, Box<[FragmentId]>)>,
    pub(crate) nodes: Nodes,
    pub(crate) visits: Visits,
    pub(crate) rollouts: Rollouts,
    pub(crate) marks: Vec<Box<str>>,
    pub(crate) reports: NodeReports,
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
            runs: Seldom::default(),
            contexts: Seldom::default(),
            drafts: Slab::new(),
            nodes: Nodes::new(),
            visits: Visits::new(),
            rollouts: Rollouts::new(),
            marks: Vec::new(),
            reports: NodeReports::default(),
            journal: Journal::default(),
        }
    }

    /// Forget everything but the root and keep the memory for the next task.
    pub fn reset(&mut self) {
        self.names.reset();
        self.fragments.reset();
        if let Some(runs) = self.runs.changed() {
            runs.reset();
        }
        if let Some(contexts) = self.contexts.changed() {
            contexts.reset();
        }
        self.drafts.clear();
        self.nodes.reset();
        self.visits.reset();
        self.rollouts.reset();
        self.marks.clear();
        self.reports.reset();
        self.journal.reset();
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

    /// Intern a message, or a piece of one, without making a node of it.
    ///
    /// A piece begins with a byte that is stored and never sent: 2 opens a message, and 1 continues the one before it. In a
    /// context, an opening and the pieces behind it are one message.
    ///
    /// # Errors
    /// If it can be neither, or no id is left.
    pub fn fragment(&mut self, message: &[u8]) -> Result<FragmentId> {
        let message = EncodedMessage::new(message);
        if let Some(id) = self.fragments.find(&message) {
            return Ok(id);
        }
        self.perform(&Op::Fragment(message)).map(FragmentId::new)
    }

    /// Record what was really sent where it is not a path: whole messages, and messages in pieces.
    ///
    /// # Errors
    /// If a fragment does not exist, pieces make no message, or no id is left.
    pub fn context(&mut self, fragments: &[u32]) -> Result<ContextId> {
        if let Some(id) = self.contexts.find(fragments) {
            return Ok(id);
        }
        self.perform(&Op::Context(Cow::Borrowed(fragments))).map(ContextId::new)
    }

    /// Note messages that will be sent behind those of a path, and are on the tree only later, if at all.
    ///
    /// # Errors
    /// If the node or a fragment does not exist, or a fragment is a piece of a message.
    pub fn draft(&mut self, node: NodeId, fragments: &[u32]) -> Result<u32> {
        self.known_node(node)?;
        for &fragment in fragments {
            known("fragment", fragment, self.fragments.count())?;
            let (kind, _) = fragments::part(self.fragments.get(FragmentId::new(fragment)));
            if kind != FragmentKind::Whole {
                return Err(Error::reference(
                    format!("fragment {fragment} is a piece of a message"),
                    "a whole message",
                ));
            }
        }
        let fragments = fragments.iter().map(|&fragment| FragmentId::new(fragment)).collect();
        let draft = self.drafts.insert((node, fragments));
        u32::try_from(draft).map_err(|_| Error::range("a tree has no room for one more draft", "fewer"))
    }

    /// Forget a draft; one that is not known is forgotten already.
    pub fn forget_draft(&mut self, draft: u32) {
        let _gone = self.drafts.try_remove(draft as usize);
    }

    /// Whether a context has messages: none has that is only a drift of token ids from the path.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn has_messages(&self, context: ContextId) -> Result<bool> {
        known("context", context.get(), self.contexts.count())?;
        Ok(self.contexts.get(context).is_some())
    }

    /// Append a message that no rollout owns. An empty run of tokens is none; so it is below.
    ///
    /// # Errors
    /// If the parent or the agent does not exist, the kind belongs to rollouts, the bytes are no message, or a column of
    /// tokens holds what it may not.
    pub fn append(
        &mut self,
        parent: NodeId,
        kind: Kind,
        message: &[u8],
        tokens: Option<TokenSlice<'_>>,
        agent: NameId,
    ) -> Result<NodeId> {
        Kind::loose(kind as u32)?;
        let key = NodeKey::plain(parent, kind, agent);
        self.say(&key, message, tokens, None, |fragment, run| Op::Append { parent, kind, fragment, run, agent })
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
    /// Turns with equal token ids are one node whatever their bytes, and the first message stays. Their figures and
    /// log-probabilities are those of the rollout that was opened first of those that have any. A turn that comes with ids and
    /// one without never merge.
    ///
    /// # Errors
    /// If the rollout has ended, an id does not exist, the bytes are no message, or a figure is none that can be measured.
    pub fn turn(
        &mut self,
        rollout: RolloutId,
        message: &[u8],
        tokens: Option<TokenSlice<'_>>,
        call: Call<'_>,
    ) -> Result<NodeId> {
        let key = NodeKey::turn(self.leaf(rollout), &call);
        self.say(&key, message, tokens, Some(rollout), |fragment, run| Op::Turn { rollout, fragment, run, call })
    }

    /// Append a tool observation at a rollout's leaf, move the leaf there, and count the call, as failed where it did.
    ///
    /// # Errors
    /// If the rollout has ended, an id does not exist, the bytes are no message, or a column of tokens holds what it may
    /// not.
    pub fn observe(
        &mut self,
        rollout: RolloutId,
        message: &[u8],
        tokens: Option<TokenSlice<'_>>,
        agent: NameId,
        micros: u64,
        failed: bool,
    ) -> Result<NodeId> {
        let key = NodeKey::plain(self.leaf(rollout), Kind::Observation, agent);
        let op = |fragment, run| Op::Observe { rollout, fragment, run, agent, micros, failed };
        self.say(&key, message, tokens, None, op)
    }

    /// Append a message at a rollout's leaf that neither its model nor a tool said, and move the leaf there. Nothing is counted.
    ///
    /// # Errors
    /// As for [`Tree::observe`].
    pub fn tell(
        &mut self,
        rollout: RolloutId,
        message: &[u8],
        tokens: Option<TokenSlice<'_>>,
        agent: NameId,
    ) -> Result<NodeId> {
        let key = NodeKey::plain(self.leaf(rollout), Kind::Message, agent);
        self.say(&key, message, tokens, None, |fragment, run| Op::Tell { rollout, fragment, run, agent })
    }

    /// Give a prompt, an observation or a message its tokens, which the next reply reports. A run of none says that the
    /// message has no tokens of its own. Giving the same ids again changes nothing.
    ///
    /// # Errors
    /// If the node does not exist, is the root or a model turn, or has other tokens, or if a column holds what it may not.
    pub fn tokenise(&mut self, node: NodeId, tokens: TokenSlice<'_>) -> Result<()> {
        self.known_node(node)?;
        rules::untokenised(self.nodes.kind(node), node)?;
        tokens.check()?;
        if let Some(run) = self.nodes.run(node) {
            return if self.runs.get(run).ids == tokens.ids { Ok(()) } else { Err(rules::tokenised(node)) };
        }
        let run = TokenRun::new(tokens);
        if let Some(run) = self.runs.same(&run) {
            return self.perform(&Op::Tokenise { node, run }).map(|_| ());
        }
        let op = Op::Tokenise { node, run: RunId::new(self.runs.count()) };
        self.perform_all(&[Some(Op::Run(run)), Some(op)]).map(|_| ())
    }

    /// End a rollout for good; or, with [`Termination::Retried`], note of one that has ended that another draw stands in
    /// its place. Its answer and error stay then.
    ///
    /// # Errors
    /// If it has ended already, or, of one that is retried, has not ended or is given another answer or error.
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

    /// Write a note on a rollout, ended or not, in the place of the one before. It is in no digest.
    ///
    /// # Errors
    /// If the rollout does not exist.
    pub fn note(&mut self, rollout: RolloutId, text: &str) -> Result<()> {
        self.perform(&Op::Note { rollout, text }).map(|_| ())
    }

    /// Append a mark for a resumed run. It is in every delta, behind everything done before it, and in no digest.
    ///
    /// # Errors
    /// If it is longer than 4 GiB.
    pub fn mark(&mut self, text: &str) -> Result<()> {
        self.perform(&Op::Mark(text)).map(|_| ())
    }

    /// The marks, in the order in which they were written, from this one on.
    pub fn marks(&self, first: usize) -> impl Iterator<Item = &str> {
        self.marks.iter().skip(first).map(AsRef::as_ref)
    }

    /// Write down what the path to a node came to, in the place of the report before. It is in every delta and in no digest:
    /// it is made of what the digest covers, and may be written long after.
    ///
    /// # Errors
    /// If the node does not exist or is the root, or the text is longer than 4 GiB.
    pub fn report(&mut self, node: NodeId, text: &str) -> Result<()> {
        self.perform(&Op::Report { node, text }).map(|_| ())
    }

    /// The leaf of a rollout; for one that does not exist, a node that does not.
    fn leaf(&self, rollout: RolloutId) -> NodeId {
        let exists = rollout.get() < self.rollouts.count();
        if exists { self.rollouts.leaf(rollout) } else { NodeId::new(NONE) }
    }

    /// Perform an operation on a message, whose bytes and tokens are stored first, but only if they make a new node, and
    /// only once everything is known to be allowed.
    fn say<'a>(
        &mut self,
        key: &NodeKey,
        message: &'a [u8],
        tokens: Option<TokenSlice<'a>>,
        sampler: Option<RolloutId>,
        op: impl FnOnce(FragmentId, Option<RunId>) -> Op<'a>,
    ) -> Result<NodeId> {
        EncodedMessage::check_whole(message)?;
        let run = tokens.filter(|tokens| !tokens.is_empty()).map(TokenRun::new);
        let said = run.as_ref().and_then(|run| self.runs.find(run)).map(ContentKey::Tokens);
        if let Some(node) = said.and_then(|said| self.nodes.find(&key.saying(said), &self.runs))
            && let Some(fragment) = self.nodes.fragment(node)
        {
            // Nothing of it is kept, and yet what would be refused elsewhere is refused here.
            EncodedMessage::check(message)?;
            run.as_ref().map_or(Ok(()), |run| run.tokens().check())?;
            let replaces = |run: &TokenRun<'_>| {
                sampler.is_some_and(|by| self.nodes.may_replace(node, by, &run.tokens(), &self.runs))
            };
            let Some(run) = run.filter(replaces) else {
                return self.perform(&op(fragment, self.nodes.run(node))).map(NodeId::new);
            };
            let known = self.runs.same(&run);
            let op = op(fragment, Some(known.unwrap_or(RunId::new(self.runs.count()))));
            let store = Some(Op::Run(run)).filter(|_| known.is_none());
            return self.perform_all(&[store, Some(op)]).map(NodeId::new);
        }
        let message = EncodedMessage::new(message);
        let known = (self.fragments.find(&message), run.as_ref().and_then(|run| self.runs.same(run)));
        let fragment = known.0.unwrap_or(FragmentId::new(self.fragments.count()));
        let number = run.as_ref().map(|_| known.1.unwrap_or(RunId::new(self.runs.count())));
        let op = op(fragment, number);
        if run.is_none() && known.0.is_some() {
            return self.perform(&op).map(NodeId::new);
        }
        let intern = known.0.is_none().then_some(Op::Fragment(message));
        let store = run.filter(|_| known.1.is_none()).map(Op::Run);
        self.perform_all(&[intern, store, Some(op)]).map(NodeId::new)
    }

    /// Check an operation, carry it out, write it down.
    fn perform(&mut self, op: &Op<'_>) -> Result<u32> {
        rules::check(self, op, &self.counts())?;
        self.commit_and_record(op)
    }

    /// The same for operations that build on one another: all or none. What the last one made or reached.
    pub(crate) fn perform_all(&mut self, ops: &[Option<Op<'_>>]) -> Result<u32> {
        let mut counts = self.counts();
        for op in ops.iter().flatten() {
            rules::check(self, op, &counts)?;
            counts.store(op);
        }
        let mut last = NONE;
        for op in ops.iter().flatten() {
            last = self.commit_and_record(op)?;
        }
        Ok(last)
    }

    fn commit_and_record(&mut self, op: &Op<'_>) -> Result<u32> {
        let made = self.commit(op)?;
        self.journal.record(op, made);
        Ok(made)
    }
}
