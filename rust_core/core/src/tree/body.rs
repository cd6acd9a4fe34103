//! Request bodies: head, messages and tail, joined from bytes that were encoded once.

use crate::error::{Error, Result};
use crate::id::{ContextId, FragmentId, NodeId};
use crate::tree::Tree;
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
    /// Bytes that [`Tree::body_into`] writes.
    ///
    /// # Errors
    /// If the node or the context does not exist.
    pub fn body_len(&self, source: Source, head: &[u8], tail: &[u8]) -> Result<usize> {
        let (mut messages, mut bytes) = (0usize, 0usize);
        self.backward(source, |message| {
            messages += 1;
            bytes += message.len();
        })?;
        Ok(head.len() + bytes + messages.saturating_sub(1) + tail.len())
    }

    /// Write `head`, the messages separated by commas, and `tail` into a buffer of exactly the right size.
    ///
    /// # Errors
    /// If the node or the context does not exist, or [`Error::Buffer`] if the size is not [`Tree::body_len`].
    pub fn body_into(&self, source: Source, head: &[u8], tail: &[u8], out: &mut [u8]) -> Result<()> {
        let (need, have) = (self.body_len(source, head, tail)?, out.len());
        if need != have {
            return Err(Error::Buffer { need, have });
        }
        out[..head.len()].copy_from_slice(head);
        // A path is walked from its end, so the body is filled from its end: no list of nodes is made.
        let mut at = have - tail.len();
        out[at..].copy_from_slice(tail);
        self.backward(source, |message| {
            if at + tail.len() != have {
                at -= 1;
                out[at] = b',';
            }
            at -= message.len();
            out[at..at + message.len()].copy_from_slice(message);
        })
    }

    /// The body as a vector, made in one allocation.
    ///
    /// # Errors
    /// If the node or the context does not exist.
    pub fn body(&self, source: Source, head: &[u8], tail: &[u8]) -> Result<Vec<u8>> {
        let mut out = vec![0; self.body_len(source, head, tail)?];
        self.body_into(source, head, tail, &mut out)?;
        Ok(out)
    }

    /// Visit the messages, last first.
    fn backward<'t>(&'t self, source: Source, mut visit: impl FnMut(&'t [u8])) -> Result<()> {
        match source {
            Source::Path(node) => {
                self.known_node(node)?;
                let fragments = self.nodes.upward(node).filter_map(|id| self.nodes.fragment(id));
                fragments.for_each(|fragment| visit(self.fragments.get(fragment)));
            }
            Source::Context(context) => {
                known("context", context.get(), self.contexts.count())?;
                let fragments = self.contexts.get(context).iter().rev();
                fragments.for_each(|&fragment| visit(self.fragments.get(FragmentId::new(fragment))));
            }
        }
        Ok(())
    }
}
