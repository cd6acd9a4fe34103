//! The nodes of a tree, as columns.
//!
//! Ids are given in order of arrival, so a parent always comes before its children and every statistic of the tree is one
//! forward or one backward sweep. Nodes are never removed, renamed or moved.

use hashbrown::HashTable;

use crate::error::{Error, Result};
use crate::hash;
use crate::id::{self, ContextId, FragmentId, NONE, NameId, NodeId, Tokens};
use crate::memory::slab::Span;
use crate::tree::digest;

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

/// What makes two nodes one: nodes with equal keys merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// The node before.
    pub(crate) parent: NodeId,
    /// What it is.
    pub(crate) kind: Kind,
    /// Who said it.
    pub(crate) agent: NameId,
    /// Model, sampling parameters and weight version.
    pub(crate) namespace: NameId,
    /// The message; the root has none.
    pub(crate) fragment: Option<FragmentId>,
    /// What was sent, where it is not the path.
    pub(crate) context: Option<ContextId>,
}

impl Key {
    /// The key as plain numbers, equal for equal keys only.
    pub(crate) fn words(&self) -> [u32; 6] {
        let fragment = self.fragment.map_or(NONE, FragmentId::get);
        let context = self.context.map_or(NONE, ContextId::get);
        [self.parent.get(), self.kind as u32, self.agent.get(), self.namespace.get(), fragment, context]
    }

    fn hash(&self) -> u64 {
        hash::mix(self.words())
    }
}

/// What a model turn says beside its key; the first to say something is believed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extra {
    pub(crate) finish: NameId,
    pub(crate) prompt: Tokens,
    pub(crate) generated: Tokens,
    pub(crate) aside: Option<Span>,
}

impl Extra {
    /// What a node that is no model turn says: nothing.
    pub(crate) const NOTHING: Self =
        Self { finish: NameId::EMPTY, prompt: Tokens::UNREPORTED, generated: Tokens::UNREPORTED, aside: None };
}

/// The columns.
#[derive(Clone, Debug)]
pub(crate) struct Nodes {
    keys: Vec<Key>,
    first_child: Vec<u32>,
    last_child: Vec<u32>,
    next_sibling: Vec<u32>,
    depth: Vec<u32>,
    turns: Vec<u32>,
    finish: Vec<NameId>,
    prompt: Vec<Tokens>,
    generated: Vec<Tokens>,
    aside: Vec<Option<Span>>,
    digest: Vec<u128>,
    sum: u128,
    index: HashTable<u32>,
}

impl Nodes {
    /// Only the root.
    pub(crate) fn new() -> Self {
        let mut nodes = Self {
            keys: Vec::new(),
            first_child: Vec::new(),
            last_child: Vec::new(),
            next_sibling: Vec::new(),
            depth: Vec::new(),
            turns: Vec::new(),
            finish: Vec::new(),
            prompt: Vec::new(),
            generated: Vec::new(),
            aside: Vec::new(),
            digest: Vec::new(),
            sum: 0,
            index: HashTable::new(),
        };
        nodes.reset();
        nodes
    }

    /// Forget everything but the root and keep the memory.
    pub(crate) fn reset(&mut self) {
        self.keys.clear();
        self.depth.clear();
        self.turns.clear();
        self.finish.clear();
        self.prompt.clear();
        self.generated.clear();
        self.aside.clear();
        self.digest.clear();
        self.index.clear();
        for links in [&mut self.first_child, &mut self.last_child, &mut self.next_sibling] {
            links.clear();
        }
        let root = Key {
            parent: NodeId::ROOT,
            kind: Kind::Root,
            agent: NameId::EMPTY,
            namespace: NameId::EMPTY,
            fragment: None,
            context: None,
        };
        self.sum = 0;
        self.push(0, root, (0, 0), Extra::NOTHING, digest::root());
    }

    fn push(&mut self, id: u32, key: Key, (depth, turns): (u32, u32), extra: Extra, digest: u128) {
        self.keys.push(key);
        self.first_child.push(NONE);
        self.last_child.push(NONE);
        self.next_sibling.push(NONE);
        self.depth.push(depth);
        self.turns.push(turns);
        self.finish.push(extra.finish);
        self.prompt.push(extra.prompt);
        self.generated.push(extra.generated);
        self.aside.push(extra.aside);
        self.digest.push(digest);
        self.sum = self.sum.wrapping_add(digest);
        let keys = &self.keys;
        self.index.insert_unique(key.hash(), id, |&other| keys[other as usize].hash());
    }

    /// The node with a key, if there is one.
    pub(crate) fn find(&self, key: &Key) -> Option<NodeId> {
        let same = |&id: &u32| self.keys[id as usize] == *key;
        self.index.find(key.hash(), same).copied().map(NodeId::new)
    }

    /// Append a node that [`Nodes::find`] does not know, as the last child of its parent.
    pub(crate) fn insert(&mut self, key: Key, extra: Extra, digest: u128) -> Result<NodeId> {
        let id = id::next(self.keys.len(), "node")?;
        let parent = key.parent.index();
        // Neither can overflow: both are smaller than the number of nodes, which is an id.
        let place = (self.depth[parent] + 1, self.turns[parent] + u32::from(key.kind == Kind::Turn));
        self.push(id, key, place, extra, digest);
        let last = self.last_child[parent];
        if last == NONE {
            self.first_child[parent] = id;
        } else {
            self.next_sibling[last as usize] = id;
        }
        self.last_child[parent] = id;
        Ok(NodeId::new(id))
    }

    /// Fill in what the first maker of a node did not say.
    pub(crate) fn fill(&mut self, id: NodeId, extra: &Extra) {
        let at = id.index();
        self.prompt[at] = self.prompt[at].or(extra.prompt);
        self.generated[at] = self.generated[at].or(extra.generated);
        self.aside[at] = self.aside[at].or(extra.aside);
    }

    pub(crate) fn count(&self) -> u32 {
        id::count(self.keys.len())
    }

    /// Every node, parents first.
    pub(crate) fn ids(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        (0..self.count()).map(NodeId::new)
    }

    pub(crate) fn key(&self, id: NodeId) -> &Key {
        &self.keys[id.index()]
    }

    pub(crate) fn depth(&self, id: NodeId) -> u32 {
        self.depth[id.index()]
    }

    /// Model turns from the root to a node, itself included.
    pub(crate) fn turns(&self, id: NodeId) -> u32 {
        self.turns[id.index()]
    }

    pub(crate) fn finish(&self, id: NodeId) -> NameId {
        self.finish[id.index()]
    }

    pub(crate) fn prompt(&self, id: NodeId) -> Tokens {
        self.prompt[id.index()]
    }

    pub(crate) fn generated(&self, id: NodeId) -> Tokens {
        self.generated[id.index()]
    }

    pub(crate) fn aside(&self, id: NodeId) -> Option<Span> {
        self.aside[id.index()]
    }

    pub(crate) fn digest(&self, id: NodeId) -> u128 {
        self.digest[id.index()]
    }

    /// The sum of all nodes' digests.
    pub(crate) const fn sum(&self) -> u128 {
        self.sum
    }

    /// Children in the order they were made.
    pub(crate) fn children(&self, id: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let link = |id: u32| (id != NONE).then_some(id);
        let first = link(self.first_child[id.index()]);
        std::iter::successors(first, move |&id| link(self.next_sibling[id as usize])).map(NodeId::new)
    }

    /// The last child, if there is one.
    pub(crate) fn last_child(&self, id: NodeId) -> Option<NodeId> {
        let last = self.last_child[id.index()];
        (last != NONE).then(|| NodeId::new(last))
    }

    /// From a node up to the root's child; nothing for the root.
    pub(crate) fn upward(&self, id: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let below_root = |id: NodeId| (id != NodeId::ROOT).then_some(id);
        std::iter::successors(below_root(id), move |&id| below_root(self.key(id).parent))
    }

    /// Entries of the merge index.
    pub(crate) fn indexed(&self) -> usize {
        self.index.len()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::*;
    use crate::tree::Tree;

    #[test]
    fn a_wrong_count_of_turns_and_a_wrong_depth_are_found() {
        let mut tree = Tree::new();
        tree.append(NodeId::ROOT, Kind::Prompt, b"{}", NameId::EMPTY).unwrap();
        tree.nodes.turns[1] = 1;
        let text = tree.check().unwrap_err().to_string();
        assert!(text.ends_with("node 1: has the wrong count of turns"), "{text}");
        tree.nodes.turns[1] = 0;
        assert_eq!(tree.check(), Ok(()));
        tree.nodes.turns[0] = 1;
        assert!(tree.check().unwrap_err().to_string().ends_with("node 0: is the root and has turns"));
        tree.nodes.turns[0] = 0;
        tree.nodes.depth[1] = 2;
        assert!(tree.check().unwrap_err().to_string().ends_with("node 1: is not one deeper than its parent"));
    }
}
