//! A turn of a program: it is appended together with the program's record of it.

use std::fmt::Write as _;

use crate::error::{Error, Result};
use crate::id::{ContextId, NameId, NodeId, RolloutId};
use crate::reply::{ParsedReply, escape};
use crate::tree::Tree;
use crate::turn::append::{AppendedChoice, ENDED, RequestInfo};
use crate::turn::prompt_ids::DriftOptions;

/// What a program's record says of a turn, besides its node. The turn's agent is its key.
#[derive(Clone, Copy, Debug)]
pub struct TurnRecord<'a> {
    /// Turns of the same agent that the program had asked for before.
    pub nth: u32,
    /// Turns of any that it had asked for before.
    pub asked: u32,
    /// Where its path ended when it asked.
    pub leaf: NodeId,
    /// What it asked to be sent, where that was not its path.
    pub context: Option<ContextId>,
    /// How it asked: model and sampling.
    pub namespace: NameId,
    /// What it noted of the reply, as JSON.
    pub note: Option<&'a str>,
    /// Whether nothing else was under way.
    pub alone: bool,
    /// The ids of the prompt, and what to do where they drift from the path, where its every token is known.
    pub prompt: Option<(&'a [u32], DriftOptions)>,
}

/// A turn that was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendedTurn {
    /// Its node.
    pub node: NodeId,
    /// Bytes of its message.
    pub size: usize,
    /// Model turns up to it, itself included.
    pub turns: u32,
    /// Whether no other turn said the same there before.
    pub first: bool,
    /// Prompt tokens as first reported.
    pub prompt: Option<u32>,
    /// Completion tokens as first reported.
    pub generated: Option<u32>,
}

impl Tree {
    /// Append the first choice of a reply as a rollout's next turn, and the record of it as a mark. How many turns there were
    /// before, and so the ids of its tool calls, is what the tree says.
    ///
    /// # Errors
    /// As for [`Tree::append_reply`], or if the choice cannot be a turn. Then there is no record either.
    pub fn append_turn(
        &mut self,
        rollout: RolloutId,
        reply: &ParsedReply,
        request: RequestInfo<'_>,
        record: &TurnRecord<'_>,
    ) -> Result<AppendedTurn> {
        let leaf = self.rollout(rollout)?.leaf;
        let (turn, nodes) = (self.node(leaf)?.turns, self.nodes());
        let mut request = RequestInfo { turn, exact: record.prompt.is_some(), ..request };
        if let Some((prompt, drift)) = record.prompt {
            if self.rollouts.termination(rollout).is_some() {
                return Err(Error::conflict(ENDED, "a rollout that grows"));
            }
            request.context = match request.context {
                Some(messages) => Some(self.settle_messages(leaf, prompt, messages)?),
                None => self.settle(leaf, prompt, drift)?,
            };
        }
        let (node, size) = match self.append_reply(&[rollout], reply, request)?.pop() {
            Some(AppendedChoice::Turn(node, size)) => (node, size),
            Some(AppendedChoice::Fault(value)) => {
                return Err(Error::conflict(value, "a reply that can be a turn"));
            }
            None => return Err(Error::conflict("no choice", "a reply with a choice")),
        };
        let record = self.record_of(rollout, request.agent, node, record);
        self.mark(&record)?;
        let view = self.node(node)?;
        let (prompt, generated) = (view.prompt.get(), view.generated.get());
        Ok(AppendedTurn { node, size, turns: turn + 1, first: node.get() >= nodes, prompt, generated })
    }

    /// The record of a turn, as those have it that read marks.
    fn record_of(&self, rollout: RolloutId, agent: NameId, node: NodeId, record: &TurnRecord<'_>) -> String {
        let mut key = Vec::new();
        escape(&mut key, self.names.get(agent));
        let key = String::from_utf8_lossy(&key);
        let mut out = String::with_capacity(128);
        // Writing into a string cannot fail.
        let _ = write!(
            out,
            r#"{{"record":[{},{},"ask","{key}",[{}],[[{},{},"#,
            rollout.get(),
            record.nth,
            node.get(),
            record.asked,
            record.leaf.get(),
        );
        let _ = match record.context {
            Some(context) => write!(out, "{}", context.get()),
            None => write!(out, "null"),
        };
        let _ = write!(out, ",{}],null", record.namespace.get());
        if let Some(note) = record.note {
            out.push(',');
            out.push_str(note);
        }
        out.push_str(if record.alone { r#"],"alone"]}"# } else { r#"],""]}"# });
        out
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::{AppendedTurn, TurnRecord};
    use crate::reply::{ReplyOptions, read};
    use crate::{Kind, NameId, RequestInfo, Termination, Tree};

    #[test]
    fn a_turn_is_appended_with_its_record_or_not_at_all() {
        let mut tree = Tree::new();
        let point = tree.append(0.into(), Kind::Prompt, b"{}", None, NameId::EMPTY).unwrap();
        let rollouts = [0, 1].map(|draw| tree.open(point, &[0, draw], 0).unwrap());
        let reply = br#"{"choices":[{"message":{"content":"a"}}],"usage":{"prompt_tokens":7,"completion_tokens":2}}"#;
        let reply = read(reply, &ReplyOptions::default()).unwrap();
        let request = RequestInfo { agent: tree.name("so\"l").unwrap(), ..RequestInfo::default() };
        let context = tree.context(&[0]).unwrap();
        let record = TurnRecord {
            nth: 3,
            asked: 4,
            leaf: point,
            context: None,
            namespace: NameId::EMPTY,
            note: Some("[true,0.5]"),
            alone: true,
            prompt: None,
        };
        let appended = tree.append_turn(rollouts[0], &reply, request, &record).unwrap();
        let expected =
            AppendedTurn { node: 2.into(), size: 34, turns: 1, first: true, prompt: Some(7), generated: Some(2) };
        assert_eq!(appended, expected);
        let record = TurnRecord { context: Some(context), note: None, alone: false, ..record };
        let again = tree.append_turn(rollouts[1], &reply, request, &record).unwrap();
        assert_eq!(again, AppendedTurn { first: false, ..expected });
        let marks = [
            r#"{"record":[0,3,"ask","so\"l",[2],[[4,1,null,0],null,[true,0.5]],"alone"]}"#,
            r#"{"record":[1,3,"ask","so\"l",[2],[[4,1,0,0],null],""]}"#,
        ];
        assert_eq!(tree.marks(0).collect::<Vec<_>>(), marks);
        tree.close(rollouts[0], Termination::Cancelled, None, None).unwrap();
        assert!(tree.append_turn(rollouts[0], &reply, request, &record).unwrap_err().to_string().contains("had ended"));
        let none = read(br#"{"choices":[]}"#, &ReplyOptions::default()).unwrap();
        assert!(tree.append_turn(rollouts[1], &none, request, &record).is_err());
        assert_eq!(tree.marks(0).count(), 2);
    }
}
