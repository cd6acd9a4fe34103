//! A tree with operations imagined on top of it, so that a delta is judged as a whole before anything changes.

use std::collections::{HashMap, HashSet};

use crate::id::{FragmentId, NodeId, RolloutId, RunId};
use crate::tree::Tree;
use crate::tree::fragments::{self, EncodedMessage, FragmentKind};
use crate::tree::nodes::{ContentKey, Kind, NodeKey};
use crate::tree::runs::TokenRun;
use crate::tree::termination::Termination;
use crate::turn::drift::Drift;
use crate::wire::op::Op;
use crate::wire::rules::{ObjectCounts, View};

/// What a delta would change, beside the tree it would change.
pub(crate) struct Overlay<'t, 'a> {
    tree: &'t Tree,
    counts: ObjectCounts,
    names: HashSet<&'a str>,
    // The hash finds, the bytes decide: two messages of one hash are two messages.
    fragments: HashMap<u128, Vec<&'a [u8]>>,
    // The same in the order of their numbers.
    messages: Vec<&'a [u8]>,
    // Imagined runs of one hash: ids and the first run that has them. And of each imagined run the first with its ids, and
    // whether it has none.
    runs: HashMap<u128, Vec<(Vec<u32>, RunId)>>,
    firsts: Vec<(RunId, bool)>,
    contexts: HashSet<Vec<u32>>,
    joined: u64,
    nodes: HashMap<NodeKey, NodeId>,
    // Of each imagined node, its kind; and the nodes, imagined or not, that got tokens.
    kinds: Vec<Kind>,
    tokenised: HashSet<NodeId>,
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
            messages: Vec::new(),
            runs: HashMap::new(),
            firsts: Vec::new(),
            contexts: HashSet::new(),
            joined: 0,
            nodes: HashMap::new(),
            kinds: Vec::new(),
            tokenised: HashSet::new(),
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
                self.messages.push(message.bytes);
                self.counts.fragments += 1;
            }
            Op::Context(list) => {
                self.joined = self.joined.saturating_add(self.pieces(list));
                self.contexts.insert(list.to_vec());
                self.counts.contexts += 1;
            }
            Op::Run(run) => self.run(run),
            Op::Append { parent, kind, fragment, run, agent } => {
                self.node(&NodeKey::plain(*parent, *kind, *agent), *fragment, *run);
            }
            Op::Open { point, path, .. } => {
                self.paths.insert(path.to_vec());
                self.rollouts.insert(RolloutId::new(self.counts.rollouts), (*point, None));
                self.counts.rollouts += 1;
            }
            Op::Turn { rollout, fragment, run, call } => {
                let leaf = self.node(&NodeKey::turn(self.leaf(*rollout), call), *fragment, *run);
                self.rollouts.insert(*rollout, (leaf, None));
            }
            Op::Observe { rollout, fragment, run, agent, .. } => {
                let key = NodeKey::plain(self.leaf(*rollout), Kind::Observation, *agent);
                let leaf = self.node(&key, *fragment, *run);
                self.rollouts.insert(*rollout, (leaf, None));
            }
            Op::Tell { rollout, fragment, run, agent } => {
                let key = NodeKey::plain(self.leaf(*rollout), Kind::Message, *agent);
                let leaf = self.node(&key, *fragment, *run);
                self.rollouts.insert(*rollout, (leaf, None));
            }
            Op::Tokenise { node, .. } => {
                self.tokenised.insert(*node);
            }
            Op::Close { rollout, termination, .. } => {
                let leaf = self.leaf(*rollout);
                self.rollouts.insert(*rollout, (leaf, Some(*termination)));
            }
            Op::Score { .. } | Op::Note { .. } | Op::Mark(_) | Op::Report { .. } => {}
        }
    }

    /// Bytes that the imagined contexts join from pieces.
    pub(crate) const fn joined(&self) -> u64 {
        self.joined
    }

    /// The same of one context; none if it is a drift.
    fn pieces(&self, list: &[u32]) -> u64 {
        if Drift::of(list).is_some() {
            return 0;
        }
        let fragments = list.iter().filter_map(|&fragment| self.fragment(fragment.into())).map(fragments::part);
        fragments.filter(|(part, _)| *part != FragmentKind::Whole).map(|(_, text)| text.len() as u64).sum()
    }

    fn leaf(&self, rollout: RolloutId) -> NodeId {
        self.rollouts.get(&rollout).map_or_else(|| self.tree.rollouts.leaf(rollout), |(leaf, _)| *leaf)
    }

    /// Imagine a run: like one of the tree, like one imagined before, or new.
    fn run(&mut self, run: &TokenRun<'_>) {
        let next = RunId::new(self.counts.runs);
        let ids = run.tokens().ids;
        let first = self.tree.runs.find(run).unwrap_or_else(|| {
            let same = self.runs.entry(run.hash).or_default();
            let known = same.iter().find(|(known, _)| known == ids).map(|(_, first)| *first);
            known.unwrap_or_else(|| {
                same.push((ids.to_vec(), next));
                next
            })
        });
        self.firsts.push((first, ids.is_empty()));
        self.counts.runs += 1;
    }

    fn imagined(&self, run: RunId) -> Option<(RunId, bool)> {
        let place = run.index().checked_sub(self.tree.runs.count() as usize)?;
        self.firsts.get(place).copied()
    }

    /// The first run with the ids of a run of the tree or of an imagined one.
    fn first(&self, run: RunId) -> RunId {
        self.imagined(run).map_or_else(|| self.tree.runs.first(run), |(first, _)| first)
    }

    /// The node that an operation would reach: one of the tree, one imagined before, or a new one.
    fn node(&mut self, key: &NodeKey, fragment: FragmentId, run: Option<RunId>) -> NodeId {
        let said = run.map_or(ContentKey::Message(fragment), |run| ContentKey::Tokens(self.first(run)));
        let key = key.saying(said);
        if let Some(id) = self.tree.nodes.find(&key, &self.tree.runs) {
            return id;
        }
        let next = NodeId::new(self.counts.nodes);
        let id = *self.nodes.entry(key).or_insert(next);
        if id == next {
            self.counts.nodes += 1;
            self.kinds.push(key.kind);
            if run.is_some() {
                self.tokenised.insert(id);
            }
        }
        id
    }
}

impl View for Overlay<'_, '_> {
    fn counts(&self) -> ObjectCounts {
        self.counts
    }

    fn has_name(&self, text: &str) -> bool {
        self.names.contains(text) || self.tree.has_name(text)
    }

    fn has_fragment(&self, message: &EncodedMessage<'_>) -> bool {
        let imagined = self.fragments.get(&message.hash);
        imagined.is_some_and(|same| same.contains(&message.bytes)) || self.tree.has_fragment(message)
    }

    fn fragment(&self, id: FragmentId) -> Option<&[u8]> {
        match id.index().checked_sub(self.tree.fragments.count() as usize) {
            None => Some(self.tree.fragments.get(id)),
            Some(imagined) => self.messages.get(imagined).copied(),
        }
    }

    fn has_context(&self, fragments: &[u32]) -> bool {
        self.contexts.contains(fragments) || self.tree.has_context(fragments)
    }

    fn has_path(&self, path: &[u32]) -> bool {
        self.paths.contains(path) || self.tree.has_path(path)
    }

    fn kind(&self, node: NodeId) -> Kind {
        match node.index().checked_sub(self.tree.nodes.count() as usize) {
            None => self.tree.nodes.kind(node),
            Some(imagined) => self.kinds[imagined],
        }
    }

    fn has_tokens(&self, node: NodeId) -> bool {
        let of_tree = node.get() < self.tree.nodes.count() && self.tree.has_tokens(node);
        of_tree || self.tokenised.contains(&node)
    }

    fn is_empty(&self, run: RunId) -> bool {
        self.imagined(run).map_or_else(|| self.tree.is_empty(run), |(_, empty)| empty)
    }

    fn termination(&self, rollout: RolloutId) -> Option<Termination> {
        match self.rollouts.get(&rollout) {
            Some((_, termination)) => *termination,
            None => View::termination(self.tree, rollout),
        }
    }
}
