//! The nodes of a tree, as columns, what makes two nodes one, and the few reports on nodes, which are kept apart.
//!
//! Ids are given in order of arrival, so a parent always comes before its children and every statistic of the tree is
//! one forward or one backward sweep. Nodes are never removed, renamed or moved.

use hashbrown::HashTable;
use std::collections::BTreeMap;

use crate::error::{Error, Finding, Result};
use crate::id::{self, ContextId, FragmentId, NONE, NameId, NodeId, RolloutId, RunId};
use crate::storage::tokens::TokenSlice;
use crate::storage::{hash, held};
use crate::tree::calls::Calls;
use crate::tree::digest;
use crate::tree::runs::TokenRuns;
use crate::wire::op::Call;

/// What is kept of a node beside its parent and its digest.
#[derive(Clone, Copy, Debug)]
struct NodeRow {
    agent: NameId,
    fragment: u32,
    run: u32,
    call: u32,
    first_child: u32,
    last_child: u32,
    next_sibling: u32,
    depth: u32,
    turns: u32,
    // Of the messages from the root to here.
    bytes: u64,
    kind: Kind,
    // Whether the tokens came with the message, and are its key.
    keyed: bool,
    // A bit for each kind of child.
    child_kinds: u8,
}

/// The nodes. What only model turns have is in `calls`.
#[derive(Clone, Debug)]
pub(crate) struct Nodes {
    parents: Vec<NodeId>,
    rows: Vec<NodeRow>,
    digests: Vec<u128>,
    sum: u128,
    calls: Calls,
    index: HashTable<u32>,
}

impl Nodes {
    /// Only the root.
    pub(crate) fn new() -> Self {
        let mut nodes = Self {
            parents: Vec::new(),
            rows: Vec::new(),
            digests: Vec::new(),
            sum: 0,
            calls: Calls::new(),
            index: HashTable::new(),
        };
        nodes.push_root();
        nodes
    }

    /// Forget everything but the root and keep the memory.
    pub(crate) fn reset(&mut self) {
        self.parents.clear();
        self.rows.clear();
        self.digests.clear();
        self.index.clear();
        self.calls.reset();
        self.sum = 0;
        self.push_root();
    }

    fn push_root(&mut self) {
        let root = NodeKey::plain(NodeId::ROOT, Kind::Root, NameId::EMPTY);
        self.push(root, (None, None, NONE), (0, 0, 0), digest::root());
    }

    fn push(
        &mut self,
        key: NodeKey,
        (fragment, run, call): (Option<FragmentId>, Option<RunId>, u32),
        (depth, turns, bytes): (u32, u32, u64),
        digest: u128,
    ) {
        self.parents.push(key.parent);
        self.rows.push(NodeRow {
            agent: key.agent,
            fragment: id::pack(fragment.map(FragmentId::get)),
            run: id::pack(run.map(RunId::get)),
            call,
            first_child: NONE,
            last_child: NONE,
            next_sibling: NONE,
            depth,
            turns,
            bytes,
            kind: key.kind,
            keyed: run.is_some(),
            child_kinds: 0,
        });
        self.digests.push(digest);
        self.sum = self.sum.wrapping_add(digest);
    }

    /// The node with a key, if there is one.
    pub(crate) fn find(&self, key: &NodeKey, runs: &TokenRuns) -> Option<NodeId> {
        let same = |&id: &u32| self.key(NodeId::new(id), runs) == *key;
        self.index.find(key.hash(), same).copied().map(NodeId::new)
    }

    /// Append a node that [`Nodes::find`] does not know, with the bytes of its message, as the last child of its parent. A model
    /// turn comes with its call.
    pub(crate) fn insert(
        &mut self,
        key: NodeKey,
        (fragment, bytes, run): (FragmentId, usize, Option<RunId>),
        call: Option<(RolloutId, &Call<'_>)>,
        (digest, runs): (u128, &TokenRuns),
    ) -> Result<NodeId> {
        let id = id::next(self.parents.len(), "node")?;
        let row = call.map_or(Ok(NONE), |(by, call)| self.calls.insert(by, call))?;
        let parent = key.parent.index();
        // Neither can overflow: both are smaller than the number of nodes, which is an id.
        let NodeRow { depth, turns, bytes: above, last_child: last, .. } = self.rows[parent];
        let place = (depth + 1, turns + u32::from(key.kind == Kind::Turn), above + bytes as u64);
        self.push(key, (Some(fragment), run, row), place, digest);
        self.index(id, runs);
        if last == NONE {
            self.rows[parent].first_child = id;
        } else {
            self.rows[last as usize].next_sibling = id;
        }
        self.rows[parent].last_child = id;
        self.rows[parent].child_kinds |= 1 << key.kind as u8;
        Ok(NodeId::new(id))
    }

    fn index(&mut self, id: u32, runs: &TokenRuns) {
        // Taken out for a moment, so that the keys of the others can be read from the columns.
        let mut index = std::mem::take(&mut self.index);
        let hash = |id: u32| self.key(NodeId::new(id), runs).hash();
        index.insert_unique(hash(id), id, |&other| hash(other));
        self.index = index;
    }

    /// Take in what another rollout's call of a turn said, and its tokens.
    pub(crate) fn fill(
        &mut self,
        id: NodeId,
        run: Option<RunId>,
        (by, call): (RolloutId, &Call<'_>),
        runs: &TokenRuns,
    ) -> Result<()> {
        let Some(row) = self.row(id) else { return Ok(()) };
        self.calls.fill(row, by, call)?;
        let (Some(run), Some(known)) = (run, self.run(id)) else { return Ok(()) };
        let from = self.calls.tokens_by(row);
        let lacks = |run: RunId| runs.get(run).lacks_logprobs();
        if run == known && by < from || run != known && (lacks(run), by) < (lacks(known), from) {
            self.calls.set_tokens_by(row, by)?;
            self.rows[id.index()].run = run.get();
        }
        Ok(())
    }

    /// Whether the tokens that a rollout sampled may count instead of those that a turn has.
    pub(crate) fn may_replace(&self, id: NodeId, by: RolloutId, tokens: &TokenSlice<'_>, runs: &TokenRuns) -> bool {
        let (Some(row), Some(known)) = (self.row(id), self.run(id)) else { return false };
        let known = runs.get(known);
        let older = by < self.calls.tokens_by(row) && !known.same(tokens);
        older || known.lacks_logprobs() && !tokens.lacks_logprobs()
    }

    /// Give tokens to a node that came without.
    pub(crate) fn tokenise(&mut self, id: NodeId, run: RunId, hash: u128) {
        self.rows[id.index()].run = run.get();
        self.sum = self.sum.wrapping_add(digest::tokens(self.digest(id), hash));
    }

    pub(crate) fn count(&self) -> u32 {
        id::count(self.parents.len())
    }

    /// Every node, parents first.
    pub(crate) fn ids(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        (0..self.count()).map(NodeId::new)
    }

    /// What makes a node the one it is.
    pub(crate) fn key(&self, id: NodeId, runs: &TokenRuns) -> NodeKey {
        let at = id.index();
        let (namespace, context) = match self.row(id) {
            Some(row) => (self.calls.namespace(row), self.calls.context(row)),
            None => (NameId::EMPTY, None),
        };
        let said = match (self.fragment(id), self.keyed(id)) {
            (Some(fragment), keyed) => ContentKey::new(fragment, self.run(id).filter(|_| keyed), runs),
            (None, _) => ContentKey::Nothing,
        };
        NodeKey { parent: self.parents[at], kind: self.kind(id), agent: self.agent(id), namespace, context, said }
    }

    /// Per node the one before it.
    pub(crate) fn parents(&self) -> &[NodeId] {
        &self.parents
    }

    pub(crate) fn parent(&self, id: NodeId) -> NodeId {
        self.parents[id.index()]
    }

    pub(crate) fn kind(&self, id: NodeId) -> Kind {
        self.rows[id.index()].kind
    }

    pub(crate) fn agent(&self, id: NodeId) -> NameId {
        self.rows[id.index()].agent
    }

    /// The message; the root has none.
    pub(crate) fn fragment(&self, id: NodeId) -> Option<FragmentId> {
        id::unpack(self.rows[id.index()].fragment).map(FragmentId::new)
    }

    /// The tokens, if they are known.
    pub(crate) fn run(&self, id: NodeId) -> Option<RunId> {
        id::unpack(self.rows[id.index()].run).map(RunId::new)
    }

    /// Whether the tokens came with the message.
    pub(crate) fn keyed(&self, id: NodeId) -> bool {
        self.rows[id.index()].keyed
    }

    /// The row of a model turn in [`Nodes::calls`].
    pub(crate) fn row(&self, id: NodeId) -> Option<u32> {
        id::unpack(self.rows[id.index()].call)
    }

    /// What only model turns have.
    pub(crate) const fn calls(&self) -> &Calls {
        &self.calls
    }

    pub(crate) fn depth(&self, id: NodeId) -> u32 {
        self.rows[id.index()].depth
    }

    /// Model turns from the root to a node, itself included.
    pub(crate) fn turns(&self, id: NodeId) -> u32 {
        self.rows[id.index()].turns
    }

    /// Bytes of the messages from the root to a node.
    pub(crate) fn bytes(&self, id: NodeId) -> u64 {
        self.rows[id.index()].bytes
    }

    pub(crate) fn digest(&self, id: NodeId) -> u128 {
        self.digests[id.index()]
    }

    /// The sum of all nodes' digests.
    pub(crate) const fn sum(&self) -> u128 {
        self.sum
    }

    /// Children in the order they were made.
    pub(crate) fn children(&self, id: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let first = id::unpack(self.rows[id.index()].first_child);
        std::iter::successors(first, move |&id| id::unpack(self.rows[id as usize].next_sibling)).map(NodeId::new)
    }

    /// Whether a node has a child of a kind.
    pub(crate) fn has_child(&self, id: NodeId, kind: Kind) -> bool {
        self.rows[id.index()].child_kinds & (1 << kind as u8) != 0
    }

    /// The last child, if there is one.
    pub(crate) fn last_child(&self, id: NodeId) -> Option<NodeId> {
        id::unpack(self.rows[id.index()].last_child).map(NodeId::new)
    }

    /// From a node up to the root's child; nothing for the root.
    pub(crate) fn upward(&self, id: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let below_root = |id: NodeId| (id != NodeId::ROOT).then_some(id);
        std::iter::successors(below_root(id), move |&id| below_root(self.parent(id)))
    }

    /// From a node up to the root, both included.
    pub(crate) fn to_root(&self, id: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        self.upward(id).chain(std::iter::once(NodeId::ROOT))
    }

    /// Entries of the merge index, which does not hold the root.
    pub(crate) fn indexed(&self) -> usize {
        self.index.len()
    }

    /// Bytes that memory is held for.
    pub(crate) fn memory(&self) -> usize {
        let columns = held(&self.parents) + held(&self.rows) + held(&self.digests);
        columns + self.calls.memory() + self.index.allocation_size()
    }
}

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
pub(crate) enum ContentKey {
    /// The root says nothing.
    Nothing,
    /// A message.
    Message(FragmentId),
    /// The first run with its ids.
    Tokens(RunId),
}

impl ContentKey {
    /// What a message says that comes with tokens or without.
    pub(crate) fn new(fragment: FragmentId, run: Option<RunId>, runs: &TokenRuns) -> Self {
        run.map_or(Self::Message(fragment), |run| Self::Tokens(runs.first(run)))
    }
}

/// What makes two nodes one: nodes with equal keys merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NodeKey {
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
    pub(crate) said: ContentKey,
}

impl NodeKey {
    /// The key of what is no model turn.
    pub(crate) const fn plain(parent: NodeId, kind: Kind, agent: NameId) -> Self {
        Self { parent, kind, agent, namespace: NameId::EMPTY, context: None, said: ContentKey::Nothing }
    }

    /// The key of a model turn.
    pub(crate) const fn turn(parent: NodeId, call: &Call<'_>) -> Self {
        let Call { agent, namespace, context, .. } = *call;
        Self { parent, kind: Kind::Turn, agent, namespace, context, said: ContentKey::Nothing }
    }

    /// The same key, saying something.
    pub(crate) const fn saying(self, said: ContentKey) -> Self {
        Self { said, ..self }
    }

    /// Where an index of nodes looks for it.
    pub(crate) fn hash(&self) -> u64 {
        let (way, said) = match self.said {
            ContentKey::Nothing => (0, NONE),
            ContentKey::Message(fragment) => (1, fragment.get()),
            ContentKey::Tokens(run) => (2, run.get()),
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

/// The reports, by node.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeReports {
    texts: BTreeMap<u32, Box<str>>,
}

impl NodeReports {
    /// Forget all of them.
    pub(crate) fn reset(&mut self) {
        self.texts.clear();
    }

    /// Write one in the place of the one before; an empty one is none.
    pub(crate) fn write(&mut self, id: NodeId, text: &str) {
        if text.is_empty() {
            self.texts.remove(&id.get());
        } else {
            self.texts.insert(id.get(), text.into());
        }
    }

    pub(crate) fn get(&self, id: NodeId) -> Option<&str> {
        self.texts.get(&id.get()).map(AsRef::as_ref)
    }

    /// Bytes that memory is held for, without what the map needs to find them.
    pub(crate) fn memory(&self) -> usize {
        let entry = size_of::<(u32, Box<str>)>();
        self.texts.values().map(|text| entry + text.len()).sum()
    }

    /// Every report is on a node that exists and is not the root, and says something.
    pub(crate) fn check(&self, nodes: u32) -> Finding {
        for (&id, text) in &self.texts {
            if id == NodeId::ROOT.get() || id >= nodes {
                return Err(format!("node {id}: has a report and can have none"));
            }
            if text.is_empty() {
                return Err(format!("node {id}: has an empty report"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::*;
    use crate::id::{NameId, NodeId};
    use crate::storage::tokens::TokenBuffer;
    use crate::tree::Tree;
    use crate::tree::runs::TokenRun;

    #[test]
    fn a_wrong_count_of_turns_and_a_wrong_depth_are_found() {
        let mut tree = Tree::new();
        tree.append(NodeId::ROOT, Kind::Prompt, b"{}", None, NameId::EMPTY).unwrap();
        tree.nodes.rows[1].turns = 1;
        let text = tree.check().unwrap_err().to_string();
        assert!(text.ends_with("node 1: has the wrong count of turns"), "{text}");
        tree.nodes.rows[1].turns = 0;
        assert_eq!(tree.check(), Ok(()));
        tree.nodes.rows[0].turns = 1;
        assert!(tree.check().unwrap_err().to_string().ends_with("node 0: is the root and has turns"));
        tree.nodes.rows[0].turns = 0;
        tree.nodes.rows[1].depth = 2;
        assert!(tree.check().unwrap_err().to_string().ends_with("node 1: is not one deeper than its parent"));
        tree.nodes.rows[1].depth = 1;
        tree.nodes.rows[1].bytes = 1;
        assert!(tree.check().unwrap_err().to_string().ends_with("node 1: has the wrong count of bytes"));
    }

    #[test]
    fn a_wrong_way_to_have_tokens_is_found() {
        let finding = |break_it: fn(&mut Tree)| {
            let mut tree = Tree::new();
            tree.append(NodeId::ROOT, Kind::Prompt, b"{}", None, NameId::EMPTY).unwrap();
            let rollout = tree.open(NodeId::ROOT, &[], 0).unwrap();
            tree.turn(rollout, b"{}", None, Call::default()).unwrap();
            assert_eq!(tree.check(), Ok(()));
            break_it(&mut tree);
            tree.check().unwrap_err().to_string()
        };
        let text = finding(|tree| tree.nodes.rows[1].run = 0);
        assert!(text.ends_with("node 1: has tokens that do not exist"), "{text}");
        let text = finding(|tree| tree.nodes.rows[1].keyed = true);
        assert!(text.ends_with("node 1: is known by tokens that it does not have"), "{text}");
        let text = finding(|tree| {
            let run = tree.runs.insert(&TokenRun::owned(TokenBuffer::default())).unwrap();
            let key = NodeKey::plain(NodeId::ROOT, Kind::Message, NameId::EMPTY).saying(ContentKey::Tokens(run));
            let digest = digest::node(&tree.content(&key));
            tree.nodes.insert(key, (FragmentId::new(0), 2, Some(run)), None, (digest, &tree.runs)).unwrap();
        });
        assert!(text.ends_with("node 3: is known by tokens that it does not have"), "{text}");
        let text = finding(|tree| tree.nodes.rows[2].call = 1);
        assert!(text.ends_with("node 2: has a call that does not exist"), "{text}");
        let text = finding(|tree| {
            let run = TokenRun::owned(TokenBuffer::given(vec![1]));
            tree.nodes.rows[0].run = tree.runs.insert(&run).unwrap().get();
        });
        assert!(text.ends_with("node 0: is not an empty root"), "{text}");
        let text = finding(|tree| tree.nodes.rows[1].call = 0);
        assert!(text.ends_with("node 1: has a call and is no model turn, or is one and has none"), "{text}");
        let text = finding(|tree| {
            let run = TokenRun::owned(TokenBuffer::given(vec![1]));
            tree.nodes.rows[2].run = tree.runs.insert(&run).unwrap().get();
        });
        assert!(text.ends_with("node 2: is a model turn and was given its tokens later"), "{text}");
    }

    #[test]
    fn a_report_where_none_can_be_is_found() {
        let finding = |id: u32, text: &str| {
            let mut tree = Tree::new();
            tree.append(NodeId::ROOT, Kind::Prompt, b"{}", None, NameId::EMPTY).unwrap();
            tree.report(NodeId::new(1), "as it went").unwrap();
            assert_eq!(tree.check(), Ok(()));
            tree.reports.texts.insert(id, text.into());
            tree.check().unwrap_err().to_string()
        };
        assert!(finding(0, "x").ends_with("node 0: has a report and can have none"));
        assert!(finding(2, "x").ends_with("node 2: has a report and can have none"));
        assert!(finding(1, "").ends_with("node 1: has an empty report"));
    }
}
