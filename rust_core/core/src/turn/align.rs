//! How far a prompt's ids go along with those of a path.

use crate::error::Result;
use crate::id::NodeId;
use crate::tree::Tree;
use crate::turn::ids::Known;

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
        let Known { ids, pending } = self.known_ids(node)?;
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
