//! Request bodies: head, messages or token ids, and tail. Messages are joined from bytes that were encoded once.

use crate::error::{Error, Result};
use crate::id::{ContextId, FragmentId, NodeId};
use crate::tree::Tree;
use crate::tree::fragments::{self, FragmentKind};
use crate::turn::drift::PathIds;
use crate::wire::rules::known;

/// What is between the head and the tail of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// The messages from the root to a node.
    Path(NodeId),
    /// The messages of a recorded context.
    Context(ContextId),
    /// The messages from the root to a node and those of a draft behind them.
    Draft(u32),
}

impl Tree {
    /// Bytes of a request body.
    ///
    /// # Errors
    /// If the node or the context does not exist.
    pub fn body_len(&self, source: Source, head: &[u8], tail: &[u8]) -> Result<usize> {
        let Source::Path(node) = source else { return Ok(size(&self.said(source)?, head, tail)) };
        self.known_node(node)?;
        let commas = self.nodes.depth(node).saturating_sub(1) as usize;
        Ok(head.len() + usize::try_from(self.nodes.bytes(node)).unwrap_or(usize::MAX) + commas + tail.len())
    }

    /// Write `head`, the messages separated by commas with their pieces joined, and `tail` into a buffer of exactly the right size.
    ///
    /// # Errors
    /// If the node or the context does not exist, or [`Error::Buffer`] if the size is not [`Tree::body_len`].
    pub fn body_into(&self, source: Source, head: &[u8], tail: &[u8], out: &mut [u8]) -> Result<()> {
        let said = self.said(source)?;
        let (need, have) = (self.body_len(source, head, tail)?, out.len());
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
        let mut out = Vec::new();
        self.body_onto(source, head, tail, &mut out)?;
        Ok(out)
    }

    /// Write a body behind what `out` has.
    ///
    /// # Errors
    /// If the node or the context does not exist.
    pub fn body_onto(&self, source: Source, head: &[u8], tail: &[u8], out: &mut Vec<u8>) -> Result<()> {
        out.reserve_exact(self.body_len(source, head, tail)?);
        join(&self.said(source)?, head, tail, |part| out.extend_from_slice(part));
        Ok(())
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
            Source::Draft(draft) => {
                let Some((node, behind)) = self.drafts.get(draft as usize) else {
                    return Err(Error::reference(format!("draft {draft}"), "one that is not forgotten"));
                };
                let mut said = self.said(Source::Path(*node))?;
                said.extend(behind.iter().map(|&fragment| self.fragments.get(fragment)));
                Ok(said)
            }
            Source::Context(context) => {
                known("context", context.get(), self.contexts.count())?;
                let Some(fragments) = self.contexts.get(context) else {
                    let value = format!("context {} is a drift of token ids", context.get());
                    return Err(Error::reference(value, "one of messages"));
                };
                Ok(fragments.iter().map(|&fragment| self.fragments.get(FragmentId::new(fragment))).collect())
            }
        }
    }
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
        let (part, text) = fragments::part(fragment);
        if place > 0 && part != FragmentKind::Continuation {
            put(b",");
        }
        put(text);
    }
    put(tail);
}

impl Tree {
    /// Bytes of a request body that has the ids between a head and a tail.
    ///
    /// # Errors
    /// If the node or the context does not exist, the context is one of messages, or a node on the path has no ids.
    pub fn ids_len(&self, node: NodeId, context: Option<ContextId>, head: &[u8], tail: &[u8]) -> Result<usize> {
        Ok(size_of_ids(&self.prompt(node, context)?, head, tail))
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
        write_ids(&ids, head, tail, out).ok_or_else(|| Error::Buffer { need: size_of_ids(&ids, head, tail), have })
    }
}

/// Write all of it, if the buffer has the right size. A number may be written with zeros behind it, which what follows
/// covers.
fn write_ids(ids: &PathIds<'_>, head: &[u8], tail: &[u8], out: &mut [u8]) -> Option<()> {
    out.get_mut(..head.len())?.copy_from_slice(head);
    let mut at = head.len();
    let mut first = true;
    for piece in ids.iter() {
        for &id in piece {
            if !std::mem::take(&mut first) {
                *out.get_mut(at)? = b',';
                at += 1;
            }
            at = write(out, at, id)?;
        }
    }
    if at + tail.len() != out.len() {
        return None;
    }
    out.get_mut(at..)?.copy_from_slice(tail);
    Some(())
}

fn size_of_ids(ids: &PathIds<'_>, head: &[u8], tail: &[u8]) -> usize {
    let digits: usize = ids.iter().map(widths).sum();
    head.len() + digits + ids.len().saturating_sub(1) + tail.len()
}

/// How many digits all numbers have together.
pub(crate) fn widths(values: &[u32]) -> usize {
    // Comparisons without a branch, which the compiler does several at a time; signed ones, which every machine can.
    let longer = |values: &[u32], power: u32| -> usize {
        let power = power.cast_signed();
        values.iter().map(|value| u32::from(value.cast_signed() >= power)).sum::<u32>() as usize
    };
    let block = |values: &[u32]| {
        let most = values.iter().copied().max().unwrap_or_default();
        if most.cast_signed() < 0 {
            let digits = |value: &u32| value.checked_ilog10().unwrap_or_default() as usize + 1;
            return values.iter().map(digits).sum();
        }
        let powers = (1..10).map(|power| 10u32.pow(power)).take_while(|&power| power <= most);
        values.len() + powers.map(|power| longer(values, power)).sum::<usize>()
    };
    values.chunks(1 << 12).map(block).sum()
}

/// Write a number at a place and return where it ends, if there is room for it.
pub(crate) fn write(out: &mut [u8], at: usize, value: u32) -> Option<usize> {
    if value < 100_000_000
        && let Some(room) = out.get_mut(at..at + 8)
    {
        let digits = digits(value);
        // Leading zeros are the low bytes; of 0 itself one stays. What is written beyond the number is written over later.
        let zeros = (digits.trailing_zeros() / 8).min(7);
        room.copy_from_slice(&((digits | ASCII) >> (8 * zeros)).to_le_bytes());
        return Some(at + 8 - zeros as usize);
    }
    let end = at + value.checked_ilog10().unwrap_or_default() as usize + 1;
    let mut rest = value;
    for slot in out.get_mut(at..end)?.iter_mut().rev() {
        *slot = b'0' + (rest % 10).to_le_bytes()[0];
        rest /= 10;
    }
    Some(end)
}

/// Write a number behind what `out` has.
pub(crate) fn decimal(out: &mut Vec<u8>, value: i64) {
    let Ok(value) = u32::try_from(value) else { return out.extend_from_slice(value.to_string().as_bytes()) };
    let at = out.len();
    out.resize(at + 10, 0);
    let end = write(out, at, value).unwrap_or(at);
    out.truncate(end);
}

const ASCII: u64 = 0x3030_3030_3030_3030;

/// The eight digits of a number below 100,000,000, one a byte, the first in the lowest: each step divides all parts of
/// the number at once, by multiplying with a reciprocal that is exact for parts so small.
const fn digits(value: u32) -> u64 {
    let value = value as u64;
    let fours = (value / 10_000) | ((value % 10_000) << 32);
    let hundreds = ((fours * 10_486) >> 20) & 0x7f_0000_007f;
    let pairs = hundreds | ((fours - 100 * hundreds) << 16);
    let tens = ((pairs * 103) >> 10) & 0x000f_000f_000f_000f;
    tens | ((pairs - 10 * tens) << 8)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use proptest::prelude::*;

    use super::{widths, write};

    fn text(value: u32) -> String {
        // With much room after it, and with none.
        let (mut long, mut short) = ([b'x'; 24], vec![b'x'; widths(&[value]) + 1]);
        let (end, close) = (write(&mut long, 3, value).unwrap(), write(&mut short, 1, value).unwrap());
        assert_eq!(write(&mut short, 2, value), None);
        assert_eq!((long[3..end].to_vec(), end - 3), (short[1..].to_vec(), close - 1));
        assert_eq!((&long[..3], short[0]), (&b"xxx"[..], b'x'));
        String::from_utf8_lossy(&short[1..]).into_owned()
    }

    #[test]
    fn numbers_of_every_width_are_written() {
        for power in 0..10 {
            let value = 10u32.pow(power);
            for value in [value - 1, value, value + 1, value.saturating_mul(9), u32::MAX] {
                assert_eq!(text(value), value.to_string());
            }
        }
    }

    proptest! {
        #[test]
        fn numbers_are_those_of_the_standard_library(values in prop::collection::vec(any::<u32>(), 0..50)) {
            let expected: Vec<String> = values.iter().map(u32::to_string).collect();
            prop_assert_eq!(values.iter().map(|&value| text(value)).collect::<Vec<_>>(), expected.clone());
            prop_assert_eq!(widths(&values), expected.concat().len());
        }
    }
}
