//! The nodes of a tree, as columns.
//!
//! Ids are given in order of arrival, so a parent always comes before its children and every statistic of the tree is one
//! forward or one backward sweep. Nodes are never removed, renamed or moved.

use hashbrown::HashTable;

use crate::error::Result;
use crate::id::{self, FragmentId, NONE, NameId, NodeId, RolloutId, RunId};
use crate::storage::held;
use crate::tree::calls::Calls;
use crate::tree::digest;
use crate::tree::key::{Key, Kind, Said};
use crate::tree::runs::Runs;
use crate::wire::op::Call;

/// The columns. What only model turns have is in `calls`.
#[derive(Clone, Debug)]
pub(crate) struct Nodes {
    parents: Vec<NodeId>,
    kinds: Vec<Kind>,
    agents: Vec<NameId>,
    fragments: Vec<u32>,
    runs: Vec<u32>,
    // Whether the tokens came with the message, and are its key.
    keyed: Vec<bool>,
    rows: Vec<u32>,
    first_child: Vec<u32>,
    last_child: Vec<u32>,
    next_sibling: Vec<u32>,
    depths: Vec<u32>,
    turns: Vec<u32>,
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
            kinds: Vec::new(),
            agents: Vec::new(),
            fragments: Vec::new(),
            runs: Vec::new(),
            keyed: Vec::new(),
            rows: Vec::new(),
            first_child: Vec::new(),
            last_child: Vec::new(),
            next_sibling: Vec::new(),
            depths: Vec::new(),
            turns: Vec::new(),
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
        self.kinds.clear();
        self.agents.clear();
        self.keyed.clear();
        self.digests.clear();
        self.index.clear();
        self.calls.reset();
        let links = [&mut self.first_child, &mut self.last_child, &mut self.next_sibling];
        let numbers = [&mut self.fragments, &mut self.runs, &mut self.rows, &mut self.depths, &mut self.turns];
        links.into_iter().chain(numbers).for_each(Vec::clear);
        self.sum = 0;
        self.push_root();
    }

    fn push_root(&mut self) {
        let root = Key::plain(NodeId::ROOT, Kind::Root, NameId::EMPTY);
        self.push(root, (None, None, NONE), (0, 0), digest::root());
    }

    fn push(
        &mut self,
        key: Key,
        (fragment, run, row): (Option<FragmentId>, Option<RunId>, u32),
        (depth, turns): (u32, u32),
        digest: u128,
    ) {
        self.parents.push(key.parent);
        self.kinds.push(key.kind);
        self.agents.push(key.agent);
        self.fragments.push(id::pack(fragment.map(FragmentId::get)));
        self.runs.push(id::pack(run.map(RunId::get)));
        self.keyed.push(run.is_some());
        self.rows.push(row);
        self.first_child.push(NONE);
        self.last_child.push(NONE);
        self.next_sibling.push(NONE);
        self.depths.push(depth);
        self.turns.push(turns);
        self.digests.push(digest);
        self.sum = self.sum.wrapping_add(digest);
    }

    /// The node with a key, if there is one.
    pub(crate) fn find(&self, key: &Key, runs: &Runs) -> Option<NodeId> {
        let same = |&id: &u32| self.key(NodeId::new(id), runs) == *key;
        self.index.find(key.hash(), same).copied().map(NodeId::new)
    }

    /// Append a node that [`Nodes::find`] does not know, as the last child of its parent. A model turn comes with its call.
    pub(crate) fn insert(
        &mut self,
        key: Key,
        (fragment, run): (FragmentId, Option<RunId>),
        call: Option<(RolloutId, &Call<'_>)>,
        (digest, runs): (u128, &Runs),
    ) -> Result<NodeId> {
        let id = id::next(self.parents.len(), "node")?;
        let row = call.map_or(Ok(NONE), |(by, call)| self.calls.insert(by, call))?;
        let parent = key.parent.index();
        // Neither can overflow: both are smaller than the number of nodes, which is an id.
        let place = (self.depths[parent] + 1, self.turns[parent] + u32::from(key.kind == Kind::Turn));
        self.push(key, (Some(fragment), run, row), place, digest);
        self.index(id, runs);
        let last = self.last_child[parent];
        if last == NONE {
            self.first_child[parent] = id;
        } else {
            self.next_sibling[last as usize] = id;
        }
        self.last_child[parent] = id;
        Ok(NodeId::new(id))
    }

    fn index(&mut self, id: u32, runs: &Runs) {
        // Taken out for a moment, so that the keys of the others can be read from the columns.
        let mut index = std::mem::take(&mut self.index);
        let hash = |id: u32| self.key(NodeId::new(id), runs).hash();
        index.insert_unique(hash(id), id, |&other| hash(other));
        self.index = index;
    }

    /// Take in what another rollout's call of a turn said.
    pub(crate) fn fill(&mut self, id: NodeId, by: RolloutId, call: &Call<'_>) -> Result<()> {
        self.row(id).map_or(Ok(()), |row| self.calls.fill(row, by, call))
    }

    /// Give tokens to a node that came without.
    pub(crate) fn tokenise(&mut self, id: NodeId, run: RunId, hash: u128) {
        self.runs[id.index()] = run.get();
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
    pub(crate) fn key(&self, id: NodeId, runs: &Runs) -> Key {
        let at = id.index();
        let (namespace, context) = match self.row(id) {
            Some(row) => (self.calls.namespace(row), self.calls.context(row)),
            None => (NameId::EMPTY, None),
        };
        let said = match (self.fragment(id), self.keyed[at]) {
            (Some(fragment), keyed) => Said::new(fragment, self.run(id).filter(|_| keyed), runs),
            (None, _) => Said::Nothing,
        };
        Key { parent: self.parents[at], kind: self.kinds[at], agent: self.agents[at], namespace, context, said }
    }

    /// Per node the one before it.
    pub(crate) fn parents(&self) -> &[NodeId] {
        &self.parents
    }

    pub(crate) fn parent(&self, id: NodeId) -> NodeId {
        self.parents[id.index()]
    }

    pub(crate) fn kind(&self, id: NodeId) -> Kind {
        self.kinds[id.index()]
    }

    pub(crate) fn agent(&self, id: NodeId) -> NameId {
        self.agents[id.index()]
    }

    /// The message; the root has none.
    pub(crate) fn fragment(&self, id: NodeId) -> Option<FragmentId> {
        id::unpack(self.fragments[id.index()]).map(FragmentId::new)
    }

    /// The tokens, if they are known.
    pub(crate) fn run(&self, id: NodeId) -> Option<RunId> {
        id::unpack(self.runs[id.index()]).map(RunId::new)
    }

    /// Whether the tokens came with the message.
    pub(crate) fn keyed(&self, id: NodeId) -> bool {
        self.keyed[id.index()]
    }

    /// The row of a model turn in [`Nodes::calls`].
    pub(crate) fn row(&self, id: NodeId) -> Option<u32> {
        id::unpack(self.rows[id.index()])
    }

    /// What only model turns have.
    pub(crate) const fn calls(&self) -> &Calls {
        &self.calls
    }

    pub(crate) fn depth(&self, id: NodeId) -> u32 {
        self.depths[id.index()]
    }

    /// Model turns from the root to a node, itself included.
    pub(crate) fn turns(&self, id: NodeId) -> u32 {
        self.turns[id.index()]
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
        let first = id::unpack(self.first_child[id.index()]);
        std::iter::successors(first, move |&id| id::unpack(self.next_sibling[id as usize])).map(NodeId::new)
    }

    /// The last child, if there is one.
    pub(crate) fn last_child(&self, id: NodeId) -> Option<NodeId> {
        id::unpack(self.last_child[id.index()]).map(NodeId::new)
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
        let links = [&self.first_child, &self.last_child, &self.next_sibling];
        let numbers = [&self.fragments, &self.runs, &self.rows, &self.depths, &self.turns];
        let words: usize = links.into_iter().chain(numbers).map(held).sum();
        let others = held(&self.parents) + held(&self.kinds) + held(&self.agents) + held(&self.keyed);
        words + others + held(&self.digests) + self.calls.memory() + self.index.allocation_size()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::*;
    use crate::storage::tokens::TokenBuffer;
    use crate::tree::Tree;
    use crate::tree::runs::Run;

    #[test]
    fn a_wrong_count_of_turns_and_a_wrong_depth_are_found() {
        let mut tree = Tree::new();
        tree.append(NodeId::ROOT, Kind::Prompt, b"{}", None, NameId::EMPTY).unwrap();
        tree.nodes.turns[1] = 1;
        let text = tree.check().unwrap_err().to_string();
        assert!(text.ends_with("node 1: has the wrong count of turns"), "{text}");
        tree.nodes.turns[1] = 0;
        assert_eq!(tree.check(), Ok(()));
        tree.nodes.turns[0] = 1;
        assert!(tree.check().unwrap_err().to_string().ends_with("node 0: is the root and has turns"));
        tree.nodes.turns[0] = 0;
        tree.nodes.depths[1] = 2;
        assert!(tree.check().unwrap_err().to_string().ends_with("node 1: is not one deeper than its parent"));
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
        let text = finding(|tree| tree.nodes.runs[1] = 0);
        assert!(text.ends_with("node 1: has tokens that do not exist"), "{text}");
        let text = finding(|tree| tree.nodes.keyed[1] = true);
        assert!(text.ends_with("node 1: is known by tokens that it does not have"), "{text}");
        let text = finding(|tree| {
            let run = tree.runs.insert(&Run::owned(TokenBuffer::default())).unwrap();
            let key = Key::plain(NodeId::ROOT, Kind::Message, NameId::EMPTY).saying(Said::Tokens(run));
            let digest = digest::node(&tree.content(&key));
            tree.nodes.insert(key, (FragmentId::new(0), Some(run)), None, (digest, &tree.runs)).unwrap();
        });
        assert!(text.ends_with("node 3: is known by tokens that it does not have"), "{text}");
        let text = finding(|tree| tree.nodes.rows[2] = 1);
        assert!(text.ends_with("node 2: has a call that does not exist"), "{text}");
        let text = finding(|tree| {
            let run = Run::owned(TokenBuffer::given(vec![1]));
            tree.nodes.runs[0] = tree.runs.insert(&run).unwrap().get();
        });
        assert!(text.ends_with("node 0: is not an empty root"), "{text}");
        let text = finding(|tree| tree.nodes.rows[1] = 0);
        assert!(text.ends_with("node 1: has a call and is no model turn, or is one and has none"), "{text}");
        let text = finding(|tree| {
            let run = Run::owned(TokenBuffer::given(vec![1]));
            tree.nodes.runs[2] = tree.runs.insert(&run).unwrap().get();
        });
        assert!(text.ends_with("node 2: is a model turn and was given its tokens later"), "{text}");
    }
}
