//! The prefix index: an exact radix tree over token ids, which stores what token paths share once, in all four columns.
//!
//! * A node is a run of tokens after its parent's. Ids are given in order of arrival and keep their path for good: where
//!   a path ends or leaves inside a run, a new node above takes the head and the old id keeps the tail.
//! * What is stored first stays: equal ids with other log-probabilities are the same tokens, and are not stored again.
//! * Paths are counted: [`Prefix::insert`] and [`Prefix::fork`] add one, [`Prefix::append`] moves one on. Nothing is
//!   removed but by [`Prefix::reset`].

mod check;
mod nodes;
mod read;
mod spaces;

pub use nodes::{PrefixMatch, PrefixNode};
pub use read::PrefixColumns;
pub use spaces::Reuse;

use crate::error::{Error, Result};
use crate::id::{self, PrefixId, SpaceId};
use crate::prefix::nodes::{Children, RadixNode, sampled};
use crate::prefix::spaces::{RunTokens, Spaces};
use crate::storage::chunks::Span;
use crate::storage::tokens::{Columns, TokenSlice};

/// An exact radix tree over token ids. One serves a task or many: what must never share is kept in spaces.
#[derive(Clone, Debug, Default)]
pub struct Prefix {
    spaces: Spaces,
    nodes: Vec<RadixNode>,
    children: Children,
    columns: Columns,
    total: Reuse,
}

impl Prefix {
    /// The space of this name, made if there is none: a model with its tokenizer and tools, or a task. Paths of two
    /// spaces share nothing.
    ///
    /// # Errors
    /// [`Error::Full`] if no id is left.
    pub fn space(&mut self, name: &str) -> Result<SpaceId> {
        if let Some(space) = self.spaces.find(name) {
            return Ok(space);
        }
        let span = self.columns.push(&TokenSlice::default())?;
        let root = PrefixId::new(id::next(self.nodes.len(), "node")?);
        let space = self.spaces.insert(name, root)?;
        self.nodes.push(RadixNode { span, parent: root, space, depth: 0, generated: 0, passes: 0, ends: 0 });
        Ok(space)
    }

    /// Count one path from the root of a space, store what of it is not there yet, and return the node it ends at.
    ///
    /// # Errors
    /// [`Error::Unknown`] for the space, [`Error::Length`] if the columns differ in length, [`Error::TooLong`] or
    /// [`Error::Full`] if 32 bits do not suffice.
    pub fn insert(&mut self, space: SpaceId, tokens: &TokenSlice<'_>) -> Result<PrefixId> {
        let root = self.spaces.get(space)?.root;
        self.has_room(root)?;
        let end = self.grow(root, tokens)?;
        self.enter(root, end);
        Ok(end)
    }

    /// Move one path that ends at `node` on by some tokens, and return the node it ends at now. The number of paths stays
    /// as it is; what the path passes from `node` on counts one path more. Nothing above `node` is read.
    ///
    /// # Errors
    /// [`Error::Unknown`] for the node, [`Error::Value`] if no path ends there ([`Prefix::fork`] makes one), and as
    /// [`Prefix::insert`].
    pub fn append(&mut self, node: PrefixId, tokens: &TokenSlice<'_>) -> Result<PrefixId> {
        if self.get(node)?.ends == 0 {
            let value = format!("node {} is where no path ends", node.get());
            return Err(Error::conflict(value, "the end of a path to be moved on: fork it first"));
        }
        let end = self.grow(node, tokens)?;
        self.nodes[node.index()].ends -= 1;
        self.nodes[end.index()].ends += 1;
        self.pass(node, end);
        Ok(end)
    }

    /// Count one more path from the root to the end of `node`, as if it were inserted again: for another try that goes
    /// on from there.
    ///
    /// # Errors
    /// [`Error::Unknown`] for the node, [`Error::Full`] if there are 4,294,967,295 paths in its space.
    pub fn fork(&mut self, node: PrefixId) -> Result<()> {
        let root = self.spaces.get(self.get(node)?.space)?.root;
        self.has_room(root)?;
        self.enter(root, node);
        Ok(())
    }

    /// The longest path of a space that `ids` start with. Changes nothing.
    ///
    /// # Errors
    /// [`Error::Unknown`] for the space.
    pub fn longest(&self, space: SpaceId, ids: &[u32]) -> Result<PrefixMatch> {
        Ok(self.walk(self.spaces.get(space)?.root, ids))
    }

    /// Forget everything, spaces included, and keep the memory. All ids are void.
    pub fn reset(&mut self) {
        self.spaces.reset();
        self.nodes.clear();
        self.children.reset();
        self.columns.reset();
        self.total = Reuse::default();
    }

    /// Follow `ids` from the end of a node as far as they are there.
    fn walk(&self, from: PrefixId, ids: &[u32]) -> PrefixMatch {
        let mut found = PrefixMatch { node: from, matched: 0, offset: self.nodes[from.index()].span.len() };
        while let Some(&token) = ids.get(found.matched) {
            let Some(child) = self.children.get(found.node, token) else { break };
            let run = self.columns.ids(self.nodes[child.index()].span);
            let same = common(run, &ids[found.matched..]);
            found = PrefixMatch { node: child, matched: found.matched + same, offset: same };
            if same < run.len() {
                break;
            }
        }
        found
    }

    /// Make sure that tokens follow the end of a node, and return the node they end at. All or nothing.
    fn grow(&mut self, from: PrefixId, tokens: &TokenSlice<'_>) -> Result<PrefixId> {
        let TokenSlice { ids, logprobs, versions, flags } = *tokens;
        TokenSlice::new(ids, logprobs, versions, flags)?;
        let len = self.nodes[from.index()].depth as usize + ids.len();
        let depth = u32::try_from(len).map_err(|_| Error::TooLong { what: "path of tokens", len })?;
        // A split and a new end take two ids at most.
        id::next(self.nodes.len() + 1, "node")?;
        let PrefixMatch { node, matched, offset } = self.walk(from, ids);
        let rest = tokens.after(matched);
        let span = if rest.is_empty() { None } else { Some(self.columns.push(&rest)?) };
        let above = if offset < self.nodes[node.index()].span.len() { self.split(node, offset) } else { node };
        Ok(span.map_or(above, |span| self.link(above, span, depth)))
    }

    /// Give the first `at` tokens of a node to a new one above it.
    fn split(&mut self, node: PrefixId, at: usize) -> PrefixId {
        let head = PrefixId::new(id::count(self.nodes.len()));
        let whole = self.nodes[node.index()];
        let (front, tail) = whole.span.split(id::count(at));
        let depth = whole.depth - id::count(tail.len());
        let generated = sampled(self.columns.get(front).flags);
        self.nodes.push(RadixNode { span: front, depth, generated, ends: 0, ..whole });
        let below = &mut self.nodes[node.index()];
        (below.span, below.parent, below.generated) = (tail, head, whole.generated - generated);
        self.adopt(whole.parent, head);
        self.adopt(head, node);
        head
    }

    /// Hang stored tokens under a node that has no child like them.
    fn link(&mut self, parent: PrefixId, span: Span, depth: u32) -> PrefixId {
        let node = PrefixId::new(id::count(self.nodes.len()));
        let space = self.nodes[parent.index()].space;
        let generated = sampled(self.columns.get(span).flags);
        let new = RadixNode { span, parent, space, depth, generated, passes: 0, ends: 0 };
        self.nodes.push(new);
        self.adopt(parent, node);
        self.count(node, |reuse| reuse.store(new.run()));
        node
    }

    /// Whether the root of a space can count one path more; no other node there counts more than it does.
    fn has_room(&self, root: PrefixId) -> Result<()> {
        if self.nodes[root.index()].passes == u32::MAX { Err(Error::Full { what: "path" }) } else { Ok(()) }
    }

    /// Count a new path.
    fn enter(&mut self, root: PrefixId, end: PrefixId) {
        self.nodes[end.index()].ends += 1;
        self.nodes[root.index()].passes += 1;
        self.count(root, |reuse| reuse.paths += 1);
        self.pass(root, end);
    }

    /// Count what a path passes after the end of `from`.
    fn pass(&mut self, from: PrefixId, end: PrefixId) {
        let (mut at, mut run) = (end, RunTokens::default());
        while at != from {
            let node = &mut self.nodes[at.index()];
            node.passes += 1;
            run = run.plus(node.run());
            at = node.parent;
        }
        let depth = self.nodes[end.index()].depth.into();
        self.count(end, |reuse| reuse.pass(run, depth));
    }

    /// Change the counts of a node's space and of all spaces.
    fn count(&mut self, node: PrefixId, change: impl Fn(&mut Reuse)) {
        change(self.spaces.reuse_mut(self.nodes[node.index()].space));
        change(&mut self.total);
    }

    /// Make a node findable under its parent.
    fn adopt(&mut self, parent: PrefixId, node: PrefixId) {
        let first = self.columns.ids(self.nodes[node.index()].span)[0];
        self.children.set(parent, first, node);
    }
}

/// Tokens compared at a time: wide enough for vector instructions, short enough to find the place of a difference.
const BLOCK: usize = 16;

/// How many tokens at the start of both runs are equal.
fn common(left: &[u32], right: &[u32]) -> usize {
    let len = left.len().min(right.len());
    let (left, right) = (&left[..len], &right[..len]);
    let (blocks, others) = (left.as_chunks::<BLOCK>().0, right.as_chunks::<BLOCK>().0);
    let start = BLOCK * blocks.iter().zip(others).take_while(|(left, right)| left == right).count();
    let rest = left[start..].iter().zip(&right[start..]);
    start + rest.take_while(|(left, right)| left == right).count()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::{Prefix, common};
    use crate::error::Error;
    use crate::storage::tokens::{TokenBuffer, TokenSlice};

    #[test]
    fn what_32_bits_cannot_count_is_refused() {
        let mut prefix = Prefix::default();
        let space = prefix.space("model").unwrap();
        let tokens = TokenBuffer::given(vec![1, 2]);
        let end = prefix.insert(space, &tokens.as_slice()).unwrap();
        prefix.nodes[end.index()].depth = u32::MAX - 1;
        let long = Error::TooLong { what: "path of tokens", len: 1 << 32 };
        assert_eq!(prefix.append(end, &tokens.as_slice()), Err(long));
        prefix.nodes[0].passes = u32::MAX;
        let full = Error::Full { what: "path" };
        assert_eq!(prefix.insert(space, &TokenSlice::default()), Err(full.clone()));
        assert_eq!(prefix.fork(end), Err(full));
        assert_eq!((prefix.nodes(), prefix.total().paths), (2, 1));
    }

    #[test]
    fn runs_are_compared_up_to_their_first_difference() {
        let run: Vec<u32> = (0..100).collect();
        for len in 0..100 {
            assert_eq!(common(&run[..len], &run), len);
            assert_eq!(common(&run, &run[..len]), len);
            let mut other = run.clone();
            other[len] = u32::MAX;
            assert_eq!(common(&run, &other), len);
        }
        assert_eq!(common(&run, &run), 100);
    }
}
