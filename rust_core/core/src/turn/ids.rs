//! What a model is given at a node, as token ids: those of the path, or what took their place where a prompt drifted.

use crate::error::{Error, Result};
use crate::id::{ContextId, NodeId, RunId};
use crate::tree::Tree;
use crate::tree::key::Kind;
use crate::turn::decimal;
use crate::turn::drift::{Drift, Policy};
use crate::wire::rules::known;

/// Ids that are stored together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'t> {
    /// The ids.
    pub(crate) ids: &'t [u32],
    /// Their run, if they are the whole of a model turn.
    pub(crate) turn: Option<RunId>,
}

/// Ids in the pieces in which they are stored.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pieces<'t> {
    pieces: Vec<Piece<'t>>,
    len: usize,
}

impl<'t> Pieces<'t> {
    /// How many ids.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The pieces, in order.
    pub(crate) fn pieces(&self) -> &[Piece<'t>] {
        &self.pieces
    }

    /// Their ids, in order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &'t [u32]> + '_ {
        self.pieces.iter().map(|piece| piece.ids)
    }

    fn push(&mut self, ids: &'t [u32], turn: Option<RunId>) {
        self.pieces.push(Piece { ids, turn });
        self.len += ids.len();
    }

    /// Drop all but the first `keep`.
    fn truncate(&mut self, keep: usize) {
        while self.len > keep {
            let Some(last) = self.pieces.pop() else { return };
            self.len -= last.ids.len();
            if self.len < keep {
                self.push(&last.ids[..keep - self.len], None);
            }
        }
    }
}

/// What a path says, as far as its ids are known.
pub(crate) struct Known<'t> {
    /// The ids.
    pub(crate) ids: Pieces<'t>,
    /// Nodes after the last one whose ids are known.
    pub(crate) pending: Vec<NodeId>,
}

impl Tree {
    /// What a model is given at a node, up to the first node without ids.
    pub(crate) fn known_ids(&self, node: NodeId) -> Result<Known<'_>> {
        let path = self.path(node)?;
        let mut ids = Pieces { pieces: Vec::with_capacity(path.len()), len: 0 };
        for (place, &node) in path.iter().enumerate() {
            let Some(run) = self.nodes.run(node) else {
                return Ok(Known { ids, pending: path[place..].to_vec() });
            };
            if let Some(drift) = self.drifted(node) {
                self.part(&mut ids, drift);
            }
            let turn = (self.nodes.kind(node) == Kind::Turn).then_some(run);
            ids.push(self.runs.get(run).ids, turn);
        }
        Ok(Known { ids, pending: Vec::new() })
    }

    /// Put what a model was given in the place of what the path says.
    fn part<'t>(&'t self, ids: &mut Pieces<'t>, drift: Drift) {
        if let Some(run) = drift.run.filter(|_| drift.policy != Policy::Bridge) {
            ids.truncate(drift.keep as usize);
            ids.push(self.runs.get(run).ids, None);
        }
    }

    /// What a model is given at a node, all of it; with a drift as context, what that makes of it.
    pub(crate) fn prompt(&self, node: NodeId, context: Option<ContextId>) -> Result<Pieces<'_>> {
        let Known { mut ids, pending } = self.known_ids(node)?;
        if let Some(first) = pending.first() {
            let value = format!("node {} has no token ids", first.get());
            return Err(Error::Value { value, want: "given some before its path is a prompt of ids" });
        }
        if let Some(context) = context {
            known("context", context.get(), self.contexts.count())?;
            let Some(drift) = self.contexts.drift(context) else {
                let value = format!("context {} is of messages", context.get());
                return Err(Error::Value { value, want: "a drift to be a prompt of ids" });
            };
            self.part(&mut ids, drift);
        }
        Ok(ids)
    }

    /// The last ids that a model is given at a node, as many as there are up to `most`.
    ///
    /// # Errors
    /// If the node does not exist, or a node on its path has no ids.
    pub fn last_ids(&self, node: NodeId, most: usize) -> Result<Vec<u32>> {
        let ids = self.prompt(node, None)?;
        let mut skip = ids.len().saturating_sub(most);
        let mut out = Vec::with_capacity(ids.len() - skip);
        for piece in ids.iter() {
            let start = skip.min(piece.len());
            out.extend_from_slice(&piece[start..]);
            skip -= start;
        }
        Ok(out)
    }

    /// Bytes of a request body that has the ids between a head and a tail.
    ///
    /// # Errors
    /// If the node or the context does not exist, the context is one of messages, or a node on the path has no ids.
    pub fn ids_len(&self, node: NodeId, context: Option<ContextId>, head: &[u8], tail: &[u8]) -> Result<usize> {
        Ok(size(&self.prompt(node, context)?, head, tail))
    }

    /// Write `head`, the ids that a model is given at a node as decimal numbers separated by commas, and `tail` into a
    /// buffer of exactly the right size.
    ///
    /// # Errors
    /// Like [`Tree::ids_len`], or [`Error::Buffer`] if the size is not what that says.
    pub fn ids_into(
        &self,
        node: NodeId,
        context: Option<ContextId>,
        head: &[u8],
        tail: &[u8],
        out: &mut [u8],
    ) -> Result<()> {
        let ids = self.prompt(node, context)?;
        let have = out.len();
        fill(&ids, head, tail, out).ok_or_else(|| Error::Buffer { need: size(&ids, head, tail), have })
    }
}

/// Write all of it, if the buffer has the right size. A number may be written with zeros behind it, which what follows
/// covers.
fn fill(ids: &Pieces<'_>, head: &[u8], tail: &[u8], out: &mut [u8]) -> Option<()> {
    out.get_mut(..head.len())?.copy_from_slice(head);
    let mut at = head.len();
    let mut first = true;
    for piece in ids.iter() {
        for &id in piece {
            if !std::mem::take(&mut first) {
                *out.get_mut(at)? = b',';
                at += 1;
            }
            at = decimal::write(out, at, id)?;
        }
    }
    if at + tail.len() != out.len() {
        return None;
    }
    out.get_mut(at..)?.copy_from_slice(tail);
    Some(())
}

fn size(ids: &Pieces<'_>, head: &[u8], tail: &[u8]) -> usize {
    let digits: usize = ids.iter().map(decimal::widths).sum();
    head.len() + digits + ids.len().saturating_sub(1) + tail.len()
}
