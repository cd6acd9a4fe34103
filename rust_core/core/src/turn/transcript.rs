//! What the members of a team said in one rollout, as pieces of messages, and the prompts that are made of it.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::id::FragmentId;
use crate::reply::escape;
use crate::tree::Tree;
use crate::tree::fragments::GOES_ON;

/// What was said, and the frame of each member's prompt. A frame is the pieces around the places where the transcript stands.
#[derive(Clone, Debug, Default)]
pub struct Transcript {
    said: Vec<(u32, u32)>,
    frames: BTreeMap<u32, Frame>,
}

/// The prompt of one member without what was said.
#[derive(Clone, Debug, Default)]
struct Frame {
    // What was said stands between any two of them.
    parts: Vec<Vec<u32>>,
    sees: Option<Vec<u32>>,
}

impl Transcript {
    /// Keep a piece that a member said.
    pub fn add(&mut self, member: u32, piece: FragmentId) {
        self.said.push((member, piece.get()));
    }

    /// Forget what was said.
    pub fn clear(&mut self) {
        self.said.clear();
    }

    /// Set the frame of a member's prompt.
    pub fn frame(&mut self, member: u32, parts: Vec<Vec<u32>>, sees: Option<Vec<u32>>) {
        self.frames.insert(member, Frame { parts, sees });
    }

    /// The fragments of a member's prompt.
    ///
    /// # Errors
    /// If it has no frame.
    pub fn prompt(&self, member: u32) -> Result<Vec<u32>> {
        let Frame { parts, sees } = self.frames.get(&member).ok_or_else(|| no_frame(member))?;
        let room = parts.iter().map(|part| part.len() + self.said.len()).sum();
        let mut list = Vec::with_capacity(room);
        for (place, part) in parts.iter().enumerate() {
            if place > 0 {
                let seen = self.said.iter().filter(|(who, _)| sees.as_ref().is_none_or(|sees| sees.contains(who)));
                list.extend(seen.map(|(_, piece)| piece));
            }
            list.extend_from_slice(part);
        }
        Ok(list)
    }
}

fn no_frame(member: u32) -> Error {
    Error::reference(format!("member {member} has no frame"), "members that have one")
}

impl Tree {
    /// Intern a piece of a message's text: what stands before and after a text as JSON has it, and the text as it is.
    ///
    /// # Errors
    /// If it is no piece, or no id is left.
    pub fn piece(&mut self, before: &[u8], text: &str, after: &[u8]) -> Result<FragmentId> {
        let mut piece = Vec::with_capacity(before.len() + text.len() + after.len() + text.len() / 16 + 8);
        piece.push(GOES_ON);
        piece.extend_from_slice(before);
        escape(&mut piece, text);
        piece.extend_from_slice(after);
        self.fragment(&piece)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::Transcript;
    use crate::tree::Tree;

    #[test]
    fn a_prompt_is_a_frame_around_what_its_member_sees() {
        let mut transcript = Transcript::default();
        transcript.frame(0, vec![vec![1, 2], vec![3]], None);
        transcript.frame(1, vec![vec![4], vec![5], vec![]], Some(vec![0]));
        transcript.frame(2, vec![vec![6]], None);
        assert_eq!(transcript.prompt(0).unwrap(), [1, 2, 3]);
        for (member, piece) in [(0, 10), (1, 11), (0, 12)] {
            transcript.add(member, piece.into());
        }
        assert_eq!(transcript.prompt(0).unwrap(), [1, 2, 10, 11, 12, 3]);
        assert_eq!(transcript.prompt(1).unwrap(), [4, 10, 12, 5, 10, 12]);
        assert_eq!(transcript.prompt(2).unwrap(), [6]);
        transcript.frame(1, vec![vec![7], vec![]], Some(vec![]));
        assert_eq!(transcript.prompt(1).unwrap(), [7]);
        transcript.clear();
        assert_eq!(transcript.prompt(0).unwrap(), [1, 2, 3]);
        assert!(transcript.prompt(3).unwrap_err().to_string().contains("member 3 has no frame"));
    }

    #[test]
    fn a_piece_is_escaped_between_its_ends() {
        let mut tree = Tree::new();
        let piece = tree.piece(b"\\n", "a \"b\"\n", b"!").unwrap();
        assert_eq!(tree.fragment(b"\x01\\na \\\"b\\\"\\n!").unwrap(), piece);
        assert!(tree.piece(b"\n", "a", b"").is_err());
    }
}
