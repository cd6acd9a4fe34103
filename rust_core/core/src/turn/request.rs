//! Request bodies: head, messages and tail, joined from bytes that were encoded once.

use crate::error::{Error, Result};
use crate::id::{ContextId, FragmentId, NodeId};
use crate::tree::Tree;
use crate::tree::pieces::{self, Part};
use crate::wire::rules::known;

/// What is between the head and the tail of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The messages from the root to a node.
    Path(NodeId),
    /// The messages of a recorded context.
    Context(ContextId),
}

impl Tree {
    /// Bytes of a request body.
    ///
    /// # Errors
    /// If the node or the context does not exist.
    pub fn body_len(&self, source: Source, head: &[u8], tail: &[u8]) -> Result<usize> {
        Ok(size(&self.said(source)?, head, tail))
    }

    /// Write `head`, the messages separated by commas with their pieces joined, and `tail` into a buffer of exactly the right size.
    ///
    /// # Errors
    /// If the node or the context does not exist, or [`Error::Buffer`] if the size is not [`Tree::body_len`].
    pub fn body_into(&self, source: Source, head: &[u8], tail: &[u8], out: &mut [u8]) -> Result<()> {
        let said = self.said(source)?;
        let (need, have) = (size(&said, head, tail), out.len());
        if need != have {
            return Err(Error::Buffer { need, have });
        }
        let mut at = 0;
        join(&said, head, tail, |part| {
            out[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        });
        Ok(())
    }

    /// The body as a vector, made in one allocation and written once.
    ///
    /// # Errors
    /// If the node or the context does not exist.
    pub fn body(&self, source: Source, head: &[u8], tail: &[u8]) -> Result<Vec<u8>> {
        let said = self.said(source)?;
        let mut out = Vec::with_capacity(size(&said, head, tail));
        join(&said, head, tail, |part| out.extend_from_slice(part));
        Ok(out)
    }

    /// What to append to the messages from the root to `after` so that they reach to `node`: each message behind a comma,
    /// but for the first of all. A body that grows by it is never joined again.
    ///
    /// # Errors
    /// If a node does not exist, or `after` is not on the path to `node`.
    pub fn continuation(&self, after: NodeId, node: NodeId) -> Result<Vec<u8>> {
        self.known_node(after)?;
        self.known_node(node)?;
        let mut said = Vec::new();
        for id in self.nodes.to_root(node) {
            if id == after {
                said.reverse();
                return Ok(join_behind(&said, after == NodeId::ROOT));
            }
            said.extend(self.nodes.fragment(id).map(|fragment| self.fragments.get(fragment)));
        }
        let value = format!("node {} is not on the path to node {}", after.get(), node.get());
        Err(Error::Value { value, want: "a node at or above it" })
    }

    /// The messages, or their pieces, in order.
    fn said(&self, source: Source) -> Result<Vec<&[u8]>> {
        match source {
            Source::Path(node) => {
                self.known_node(node)?;
                let mut said = Vec::with_capacity(self.nodes.depth(node) as usize);
                let fragments = self.nodes.upward(node).filter_map(|id| self.nodes.fragment(id));
                said.extend(fragments.map(|fragment| self.fragments.get(fragment)));
                said.reverse();
                Ok(said)
            }
            Source::Context(context) => {
                known("context", context.get(), self.contexts.count())?;
                let Some(fragments) = self.contexts.get(context) else {
                    let value = format!("context {} is a drift of token ids", context.get());
                    return Err(Error::Value { value, want: "one of messages" });
                };
                Ok(fragments.iter().map(|&fragment| self.fragments.get(FragmentId::new(fragment))).collect())
            }
        }
    }
}

/// Messages each behind a comma; the first of all messages has none.
fn join_behind(messages: &[&[u8]], first: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(messages.iter().map(|message| message.len() + 1).sum());
    for (place, message) in messages.iter().enumerate() {
        if place > 0 || !first {
            out.push(b',');
        }
        out.extend_from_slice(message);
    }
    out
}

fn size(fragments: &[&[u8]], head: &[u8], tail: &[u8]) -> usize {
    let mut size = 0;
    join(fragments, head, tail, |part| size += part.len());
    size
}

/// The parts of a body, one after the other.
fn join(fragments: &[&[u8]], head: &[u8], tail: &[u8], mut put: impl FnMut(&[u8])) {
    put(head);
    for (place, fragment) in fragments.iter().enumerate() {
        let (part, text) = pieces::part(fragment);
        if place > 0 && part != Part::Continuation {
            put(b",");
        }
        put(text);
    }
    put(tail);
}
