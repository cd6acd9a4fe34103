//! Prompts as token ids: how far they go along with a path, and what becomes of the rest, given to the nodes they
//! belong to or kept as a drift, before the turns of a reply are appended.

use crate::error::{Error, Result};
use crate::id::{ContextId, NodeId, RunId, count};
use crate::reply::{ParsedChoice, ParsedReply};
use crate::storage::tokens::{TRUNCATED, TokenBuffer, TokenSlice};
use crate::tree::Tree;
use crate::tree::nodes::Kind;
use crate::turn::append::{AppendedChoice, RequestInfo};
use crate::turn::drift::{DriftPolicy, KnownIds};
use crate::wire::rules;

/// What to do with a prompt that drifts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriftOptions {
    /// What is made of it where that can be done.
    pub policy: DriftPolicy,
    /// A fork where this many ids of the path, or more, would have to give way to a realignment.
    pub limit: u32,
}

impl Tree {
    /// Settle the ids of a prompt that was sent, or will be, for the conversation at a node.
    ///
    /// A prompt that goes along with the path gives what it has beyond to the nodes that have no ids yet: all to the last,
    /// none to those before. A prompt that drifts is made the context of the turn that follows. So is what is new in one where
    /// a message stands behind the last turn: other rollouts may be asked before it, and come first or not.
    ///
    /// # Errors
    /// If the node does not exist, or a model turn on its path has no ids.
    pub fn settle(&mut self, node: NodeId, prompt: &[u32], drift: DriftOptions) -> Result<Option<ContextId>> {
        self.known_node(node)?;
        let (turn, told) = self.last_turn(node);
        let Alignment { common, known, pending } = self.align(if told { turn } else { node }, prompt)?;
        let (keep, rest) = (count(common), &prompt[common..]);
        let given = TokenBuffer::given(rest.to_vec());
        if told && common == known {
            return self.drift(DriftPolicy::Realign, keep, Some(given.as_slice())).map(Some);
        }
        if common == known {
            if !pending.is_empty() || rest.is_empty() {
                return self.give_to(&pending, rest).map(|()| None);
            }
            // The last message has no ids of its own, as others followed it in another rollout: nothing has to give way.
            return self.drift(DriftPolicy::Realign, keep, Some(given.as_slice())).map(Some);
        }
        if drift.policy == DriftPolicy::Bridge
            && told
            && let Some(at) = self.resumes(turn, prompt)?
        {
            let new = TokenBuffer::given(prompt[at..].to_vec());
            return self.drift(DriftPolicy::Realign, count(known), Some(new.as_slice())).map(Some);
        }
        // Nothing may be new where no message waits for it, and something must be where one does.
        if drift.policy == DriftPolicy::Bridge
            && let Some(at) = self.resumes(node, prompt)?.filter(|&at| pending.is_empty() == (at == prompt.len()))
        {
            self.give_to(&pending, &prompt[at..])?;
            return self.drift(DriftPolicy::Bridge, keep, None).map(Some);
        }
        let lost = count(known - common);
        let realigns = drift.policy != DriftPolicy::Fork && lost < drift.limit;
        if !told {
            self.give_to(&pending, &[])?;
        }
        let policy = if realigns { DriftPolicy::Realign } else { DriftPolicy::Fork };
        self.drift(policy, keep, Some(given.as_slice())).map(Some)
    }

    /// Settle the ids of a prompt that was made of other messages than those of the path to a node, as the context of the
    /// turn that follows. No node is given any: it depends on other rollouts when that would happen.
    ///
    /// What a prompt has beyond that of the last turn and that turn goes on with its sample. Any other begins a new one, unless
    /// there is no turn before it.
    ///
    /// # Errors
    /// If the node or the context does not exist.
    pub fn settle_messages(&mut self, node: NodeId, prompt: &[u32], messages: ContextId) -> Result<ContextId> {
        self.known_node(node)?;
        let (turn, _) = self.last_turn(node);
        let Alignment { common, known, pending } = self.align(turn, prompt)?;
        let goes_on = turn == NodeId::ROOT || (common == known && pending.is_empty());
        let policy = if goes_on { DriftPolicy::Realign } else { DriftPolicy::Fork };
        let given = TokenBuffer::given(prompt[common..].to_vec());
        self.drift_of_messages(policy, count(common), Some(given.as_slice()), Some(messages))
    }

    /// The last model turn on the path to a node, the root if there is none, and whether a message stands after it.
    fn last_turn(&self, node: NodeId) -> (NodeId, bool) {
        let mut told = false;
        let turn = self.nodes.to_root(node).find(|&id| {
            told |= self.nodes.kind(id) == Kind::Message;
            self.nodes.kind(id) == Kind::Turn
        });
        (turn.unwrap_or(NodeId::ROOT), told)
    }

    /// Give ids to the nodes up to this one that have none: all to the last, none to those before. Nothing where all have.
    ///
    /// # Errors
    /// If the node does not exist, a model turn on its path has no ids, or there are ids and no message that they are of.
    pub fn give(&mut self, node: NodeId, ids: &[u32]) -> Result<()> {
        let pending = self.known_ids(node)?.pending;
        self.give_to(&pending, ids)
    }

    fn give_to(&mut self, pending: &[NodeId], ids: &[u32]) -> Result<()> {
        pending.iter().try_for_each(|&node| rules::untokenised(self.nodes.kind(node), node))?;
        let last = pending.last();
        for node in pending {
            let own = if Some(node) == last { ids } else { &[] };
            // A node further down may have had ids before those above it.
            if self.nodes.run(*node).is_none() {
                self.tokenise(*node, TokenBuffer::given(own.to_vec()).as_slice())?;
            }
        }
        Ok(())
    }

    /// Where in a prompt that drifts what a model was given at a node ends, and what is new begins.
    ///
    /// What a model sampled may be cut into other ids there, but ends with the same one if that is what ended the turn: ids
    /// that no text can spell do.
    fn resumes(&self, node: NodeId, prompt: &[u32]) -> Result<Option<usize>> {
        let ids = self.known_ids(node)?.ids;
        let mut at = 0;
        for piece in ids.pieces() {
            let rest = &prompt[at..];
            let length = if rest.starts_with(piece.ids) {
                Some(piece.ids.len())
            } else {
                let end = piece.turn.and_then(|run| self.end(run));
                end.and_then(|end| rest.iter().position(|&id| id == end)).map(|place| place + 1)
            };
            match length {
                Some(length) => at += length,
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }

    /// The id that ended a turn: the last, unless the turn was cut off, or says the same id before, which text does.
    fn end(&self, run: RunId) -> Option<u32> {
        let TokenSlice { ids, flags, .. } = self.runs.get(run);
        let (&end, before) = ids.split_last()?;
        let cut = flags.last().is_some_and(|flags| flags & TRUNCATED != 0);
        (!cut && !before.contains(&end)).then_some(end)
    }

    /// Refuse a prompt that is not, to the id, what a model is given at a node, and what is kept of a turn there.
    ///
    /// # Errors
    /// [`Error::Value`] saying where it differs.
    pub fn same_prompt(&self, node: NodeId, request: RequestInfo<'_>, prompt: &[u32]) -> Result<()> {
        let mut at = 0;
        let ids = self.prompt(node, request.context)?;
        let kept = request.kept.map(|kept| self.beginning(kept)).transpose()?.map_or_else(Vec::new, |kept| kept.ids);
        let same = ids.len() + kept.len() == prompt.len()
            && prompt.ends_with(&kept)
            && ids.iter().all(|piece| {
                at += piece.len();
                prompt[at - piece.len()..at] == *piece
            });
        if same {
            return Ok(());
        }
        Err(other_prompt(prompt))
    }
}

/// A prompt beside a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Ids that both have in common at the beginning.
    pub common: usize,
    /// Ids of the path, up to the first node without.
    pub known: usize,
    /// The nodes from there on: what the prompt has beyond `known` is theirs, if it is in step with the path.
    pub pending: Vec<NodeId>,
}

impl Tree {
    /// Compare the ids of a prompt with those that a model is given at a node. Nothing is copied.
    ///
    /// # Errors
    /// If the node does not exist.
    pub fn align(&self, node: NodeId, prompt: &[u32]) -> Result<Alignment> {
        let KnownIds { ids, pending } = self.known_ids(node)?;
        let mut common = 0;
        for piece in ids.iter() {
            let rest = &prompt[common..];
            let same = shared(piece, rest);
            common += same;
            if same < piece.len() {
                break;
            }
        }
        Ok(Alignment { common, known: ids.len(), pending })
    }
}

/// How many elements two slices have in common at the beginning.
fn shared(one: &[u32], other: &[u32]) -> usize {
    const BLOCK: usize = 64;
    // Whole blocks are compared at the speed of memory, and only the one that differs is walked through.
    let blocks = one.chunks_exact(BLOCK).zip(other.chunks_exact(BLOCK));
    let start = BLOCK * blocks.take_while(|(a, b)| a == b).count();
    start + one[start..].iter().zip(&other[start..]).take_while(|(a, b)| a == b).count()
}

impl Tree {
    /// Like [`Tree::append_reply`], for a reply to the conversation at `node` whose every token must be known.
    ///
    /// With a `drift` the prompt was made by the server, and its ids are settled. Without, it was sent as ids, and the
    /// server may not say that it was given others. A choice without ids or log-probabilities makes no turn, and without
    /// ids of the prompt none does.
    ///
    /// # Errors
    /// Like [`Tree::append_reply`] and [`Tree::settle`].
    pub fn append_ids_reply(
        &mut self,
        rollouts: &[crate::RolloutId],
        reply: &ParsedReply,
        request: RequestInfo<'_>,
        node: NodeId,
        drift: Option<DriftOptions>,
    ) -> Result<Vec<AppendedChoice>> {
        let mut request = RequestInfo { exact: true, ..request };
        let refused = match (reply.prompt_ids.as_ref().filter(|ids| !ids.is_empty()), drift) {
            (None, Some(_)) => Some(UNPROMPTED.to_owned()),
            (Some(prompt), Some(drift)) if reply.choices.iter().any(|choice| fault(choice).is_none()) => {
                request.context = self.settle(node, prompt, drift)?;
                None
            }
            (Some(prompt), None) => self.same_prompt(node, request, prompt).err().map(|error| error.to_string()),
            _ => None,
        };
        match refused {
            Some(fault) => Ok(vec![AppendedChoice::Fault(fault); rollouts.len().min(reply.choices.len())]),
            None => self.append_reply(rollouts, reply, request),
        }
    }
}

impl ParsedReply {
    /// The ids of the prompt: those that were sent, or else those that the server says it made.
    ///
    /// # Errors
    /// Why they are not known, or what the server says of them instead.
    pub fn prompt(&self, sent: Option<Vec<u32>>) -> std::result::Result<Vec<u32>, String> {
        match (sent, self.prompt_ids.as_ref().filter(|ids| !ids.is_empty())) {
            (Some(sent), Some(seen)) if sent != *seen => Err(other_prompt(seen).to_string()),
            (Some(sent), _) => Ok(sent),
            (None, Some(seen)) => Ok(seen.clone()),
            (None, None) => Err(UNPROMPTED.to_owned()),
        }
    }
}

fn other_prompt(seen: &[u32]) -> Error {
    let value = format!("the server says that it was given {} ids", seen.len());
    Error::conflict(value, "the prompt of ids that was sent")
}

/// What a choice lacks whose every token must be known.
pub(crate) fn fault(choice: &ParsedChoice) -> Option<String> {
    let ids = choice.tokens.as_ref().map_or(0, |tokens| tokens.ids.len());
    if let (0, true, Some(listed)) = (ids, choice.by_entry, &choice.listed) {
        let listed = listed.logprobs.len();
        return Some(format!(
            "the server gave ids of {listed} tokens, which are not all that it generated: it lists the tokens of one \
             character as one; {ASK}"
        ));
    }
    if ids == 0 {
        return Some(format!("the server gave no token ids of what it generated; {ASK}"));
    }
    let listed = choice.listed.as_ref().map_or(0, |listed| listed.logprobs.len());
    let text = || format!("the server gave {ids} token ids and {listed} log-probabilities of them; {ASK}");
    (!choice.is_aligned()).then(text)
}

const ASK: &str = "`trunkline probe` says what it can do";
const UNPROMPTED: &str = "the server gave no token ids of its prompt; `trunkline probe` says what it can do";
