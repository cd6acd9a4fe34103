//! Replies that bring token ids, on a tree: the prompt's are settled before the turns are appended.

use crate::error::Result;
use crate::id::NodeId;
use crate::reply::Reply;
use crate::take::{Asked, Taken};
use crate::tree::Tree;
use crate::tree::settle::Parting;

impl Tree {
    /// Like [`Tree::take`], for a reply to the conversation at `node` whose every token must be known.
    ///
    /// With a `parting` the prompt was made by the server, and its ids are settled. Without, it was sent as ids, and the
    /// server may not say that it was given others. A reply that lacks ids makes no turns.
    ///
    /// # Errors
    /// Like [`Tree::take`] and [`Tree::settle`].
    pub fn take_exact(
        &mut self,
        rollouts: &[crate::RolloutId],
        reply: &Reply,
        mut asked: Asked,
        node: NodeId,
        parting: Option<Parting>,
    ) -> Result<Vec<Taken>> {
        let fault = |text: &str| {
            let pairs = rollouts.len().min(reply.choices.len());
            Ok(vec![Taken::Fault(text.to_owned()); pairs])
        };
        if reply.choices.iter().any(|choice| choice.tokens.as_ref().is_none_or(|tokens| tokens.ids.is_empty())) {
            return fault(UNSAMPLED);
        }
        match (&reply.prompt_ids, parting) {
            (None, Some(_)) => return fault(UNPROMPTED),
            (Some(prompt), Some(parting)) => asked.context = self.settle(node, prompt, parting)?,
            (Some(prompt), None) => {
                if let Err(error) = self.same_prompt(node, asked.context, prompt) {
                    return fault(&error.to_string());
                }
            }
            (None, None) => (),
        }
        self.take(rollouts, reply, asked)
    }
}

const UNSAMPLED: &str = "the server gave no token ids of what it generated; `trunkline probe` says what it can do";
const UNPROMPTED: &str = "the server gave no token ids of its prompt; `trunkline probe` says what it can do";
