//! The rules: what an operation needs of the state it meets. Written once, for direct calls and for deltas.

use crate::error::{Error, Result};
use crate::id::{FragmentId, NONE, NameId, NodeId, RolloutId, RunId};
use crate::tree::fragments;
use crate::tree::fragments::EncodedMessage;
use crate::tree::nodes::Kind;
use crate::tree::termination::Termination;
use crate::turn::drift::Drift;
use crate::wire::op::{Call, Op};

/// What the rules must know about a state: a tree, or a tree with some operations imagined on top.
pub(crate) trait View {
    /// How many there are of each.
    fn counts(&self) -> ObjectCounts;
    /// Whether this name is interned.
    fn has_name(&self, text: &str) -> bool;
    /// Whether this message is interned.
    fn has_fragment(&self, message: &EncodedMessage<'_>) -> bool;
    /// The bytes of a message or piece that is stored.
    fn fragment(&self, id: FragmentId) -> Option<&[u8]>;
    /// Whether this context is recorded.
    fn has_context(&self, fragments: &[u32]) -> bool;
    /// Whether a rollout has this fork path.
    fn has_path(&self, path: &[u32]) -> bool;
    /// What a node that exists is.
    fn kind(&self, node: NodeId) -> Kind;
    /// Whether a node that exists has tokens.
    fn has_tokens(&self, node: NodeId) -> bool;
    /// Whether a run that is stored has no tokens.
    fn is_empty(&self, run: RunId) -> bool;
    /// How a rollout that exists ended, or nothing while it grows.
    fn termination(&self, rollout: RolloutId) -> Option<Termination>;
}

/// How many of each there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectCounts {
    pub(crate) names: u32,
    pub(crate) fragments: u32,
    pub(crate) runs: u32,
    pub(crate) contexts: u32,
    pub(crate) nodes: u32,
    pub(crate) rollouts: u32,
}

impl ObjectCounts {
    /// What an operation stores for the ones after it counts as there.
    pub(crate) fn store(&mut self, op: &Op<'_>) {
        self.fragments += u32::from(matches!(op, Op::Fragment(_)));
        self.runs += u32::from(matches!(op, Op::Run(_)));
    }
}

/// Check one operation. `counts` is what there will be when it runs: more than now if it brings a message or tokens.
pub(crate) fn check(view: &impl View, op: &Op<'_>, counts: &ObjectCounts) -> Result<()> {
    match op {
        Op::Name(text) => {
            fits("name", text.len())?;
            fresh("name", view.has_name(text))?;
            room("name", counts.names)
        }
        Op::Fragment(message) => {
            EncodedMessage::check(message.bytes)?;
            fresh("fragment", view.has_fragment(message))?;
            room("fragment", counts.fragments)
        }
        Op::Run(run) => {
            fits("run of tokens", run.tokens().len())?;
            run.tokens().check()?;
            room("run", counts.runs)
        }
        Op::Context(list) => {
            fits("context", list.len())?;
            match Drift::of(list) {
                None => messages(view, counts, list)?,
                Some(drift) => {
                    let drift = drift?;
                    drift.run.map_or(Ok(()), |run| known("run", run.get(), counts.runs))?;
                    drift.messages.map_or(Ok(()), |id| known("context", id.get(), counts.contexts))?;
                }
            }
            fresh("context", view.has_context(list))?;
            room("context", counts.contexts)
        }
        Op::Append { parent, fragment, run, agent, .. } => {
            node(counts, *parent)?;
            name(counts, *agent)?;
            content(view, counts, *fragment, *run)?;
            room("node", counts.nodes)
        }
        Op::Open { point, path, .. } => {
            node(counts, *point)?;
            fits("fork path", path.len())?;
            if view.has_path(path) {
                return Err(Error::DuplicatePath { path: path.to_vec() });
            }
            room("rollout", counts.rollouts)
        }
        Op::Turn { rollout, fragment, run, call } => {
            growing(view, counts, *rollout, "continued")?;
            content(view, counts, *fragment, *run)?;
            check_call(counts, call)?;
            room("node", counts.nodes)
        }
        Op::Observe { rollout, fragment, run, agent, .. } | Op::Tell { rollout, fragment, run, agent } => {
            growing(view, counts, *rollout, "continued")?;
            content(view, counts, *fragment, *run)?;
            name(counts, *agent)?;
            room("node", counts.nodes)
        }
        Op::Tokenise { node: id, run } => {
            node(counts, *id)?;
            known("run", run.get(), counts.runs)?;
            untokenised(view.kind(*id), *id)?;
            if view.has_tokens(*id) { Err(tokenised(*id)) } else { Ok(()) }
        }
        Op::Close { rollout, termination, answer, error } => {
            fits("answer", answer.map_or(0, str::len))?;
            fits("error", error.map_or(0, str::len))?;
            if *termination != Termination::Retried {
                return growing(view, counts, *rollout, "closed");
            }
            known("rollout", rollout.get(), counts.rollouts)?;
            if answer.is_some() || error.is_some() {
                let value = format!("rollout {} with another answer or error", rollout.get());
                return Err(Error::conflict(value, "those that it had when it is retried"));
            }
            match view.termination(*rollout) {
                None => Err(Error::Growing { rollout: rollout.get() }),
                Some(Termination::Retried) => growing(view, counts, *rollout, "retried again"),
                Some(_) => Ok(()),
            }
        }
        Op::Note { rollout, text } => {
            fits("note", text.len())?;
            known("rollout", rollout.get(), counts.rollouts)
        }
        Op::Mark(text) => fits("mark", text.len()),
        Op::Report { node: id, text } => {
            fits("report", text.len())?;
            node(counts, *id)?;
            reportable(*id)
        }
        Op::Score { rollout, reward } => {
            known("rollout", rollout.get(), counts.rollouts)?;
            if reward.is_infinite() {
                return Err(Error::Reward { reward: *reward });
            }
            match view.termination(*rollout) {
                Some(_) => Ok(()),
                None => Err(Error::Growing { rollout: rollout.get() }),
            }
        }
    }
}

fn check_call(counts: &ObjectCounts, call: &Call<'_>) -> Result<()> {
    for id in [call.agent, call.namespace, call.finish] {
        name(counts, id)?;
    }
    call.uncertainty.check()?;
    fits("aside", call.aside.map_or(0, str::len))?;
    call.context.map_or(Ok(()), |context| known("context", context.get(), counts.contexts))
}

/// The fragments of a context exist, and what is in pieces is whole.
fn messages(view: &impl View, counts: &ObjectCounts, list: &[u32]) -> Result<()> {
    list.iter().try_for_each(|&fragment| known("fragment", fragment, counts.fragments))?;
    fragments::check_all(list, |fragment| view.fragment(fragment.into()).unwrap_or_default())
}

/// The message exists and is whole, and so do the tokens that came with it exist. No tokens are no key, or all such messages
/// would be one.
fn content(view: &impl View, counts: &ObjectCounts, fragment: FragmentId, run: Option<RunId>) -> Result<()> {
    known("fragment", fragment.get(), counts.fragments)?;
    // One that is about to be stored with its node was looked at before.
    view.fragment(fragment).map_or(Ok(()), EncodedMessage::check_whole)?;
    let Some(run) = run else { return Ok(()) };
    known("run", run.get(), counts.runs)?;
    if view.is_empty(run) {
        let value = format!("run {} has no tokens", run.get());
        return Err(Error::conflict(value, "one with tokens to come with a message"));
    }
    Ok(())
}

/// A node of this kind can be given tokens later. What a model sampled is known at once or never.
pub(crate) fn untokenised(kind: Kind, id: NodeId) -> Result<()> {
    match kind {
        Kind::Prompt | Kind::Observation | Kind::Message => Ok(()),
        Kind::Root | Kind::Turn => {
            let value =
                format!("node {} is {}", id.get(), if kind == Kind::Turn { "a model turn" } else { "the root" });
            Err(Error::conflict(value, "a prompt, an observation or a message to be given tokens"))
        }
    }
}

/// A node has tokens, and they cannot be replaced.
pub(crate) fn tokenised(id: NodeId) -> Error {
    Error::conflict(format!("node {} has other tokens already", id.get()), "a node without")
}

/// There is something to report on: the root says nothing.
fn reportable(id: NodeId) -> Result<()> {
    if id != NodeId::ROOT {
        return Ok(());
    }
    Err(Error::conflict("node 0 is the root", "a node that can have a report"))
}

fn growing(view: &impl View, counts: &ObjectCounts, rollout: RolloutId, verb: &'static str) -> Result<()> {
    known("rollout", rollout.get(), counts.rollouts)?;
    match view.termination(rollout) {
        None => Ok(()),
        Some(ended) => Err(Error::Ended { rollout: rollout.get(), termination: ended.as_str(), verb }),
    }
}

fn node(counts: &ObjectCounts, id: NodeId) -> Result<()> {
    known("node", id.get(), counts.nodes)
}

fn name(counts: &ObjectCounts, id: NameId) -> Result<()> {
    known("name", id.get(), counts.names)
}

/// The id names something.
pub(crate) fn known(what: &'static str, id: u32, count: u32) -> Result<()> {
    if id < count { Ok(()) } else { Err(Error::Unknown { what, id, count }) }
}

/// There is an id left. A node that merges needs none, but a tree this full has no use for the exception.
fn room(what: &'static str, count: u32) -> Result<()> {
    if count < NONE { Ok(()) } else { Err(Error::Full { what }) }
}

fn fits(what: &'static str, len: usize) -> Result<()> {
    if u32::try_from(len).is_ok() { Ok(()) } else { Err(Error::TooLong { what, len }) }
}

/// What is there already is never written down again; only a foreign or damaged delta does that.
fn fresh(what: &'static str, exists: bool) -> Result<()> {
    if exists { Err(Error::Repeated { what }) } else { Ok(()) }
}
