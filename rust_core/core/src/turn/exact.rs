//! Replies that bring token ids, on a tree: the prompt's are settled before the turns are appended.

use crate::error::Result;
use crate::id::NodeId;
use crate::reply::{Choice, Reply};
use crate::tree::Tree;
use crate::turn::append::{Asked, Taken};
use crate::turn::settle::Parting;

impl Tree {
    /// Like [`Tree::take`], for a reply to the conversation at `node` whose every token must be known.
    ///
    /// With a `parting` the prompt was made by the server, and its ids are settled. Without, it was sent as ids, and the
    /// server may not say that it was given others. A choice without ids or log-probabilities makes no turn, and without
    /// ids of the prompt none does.
    ///
    /// # Errors
    /// Like [`Tree::take`] and [`Tree::settle`].
    pub fn take_exact(
        &mut self,
        rollouts: &[crate::RolloutId],
        reply: &Reply,
        asked: Asked<'_>,
        node: NodeId,
        parting: Option<Parting>,
    ) -> Result<Vec<Taken>> {
        let mut asked = Asked { exact: true, ..asked };
        let refused = match (reply.prompt_ids.as_ref().filter(|ids| !ids.is_empty()), parting) {
            (None, Some(_)) => Some(UNPROMPTED.to_owned()),
            (Some(prompt), Some(parting)) if reply.choices.iter().any(|choice| fault(choice).is_none()) => {
                asked.context = self.settle(node, prompt, parting)?;
                None
            }
            (Some(prompt), None) => self.same_prompt(node, asked, prompt).err().map(|error| error.to_string()),
            _ => None,
        };
        match refused {
            Some(fault) => Ok(vec![Taken::Fault(fault); rollouts.len().min(reply.choices.len())]),
            None => self.take(rollouts, reply, asked),
        }
    }
}

/// What a choice lacks whose every token must be known.
pub(crate) fn fault(choice: &Choice) -> Option<String> {
    let ids = choice.tokens.as_ref().map_or(0, |tokens| tokens.ids.len());
    if ids == 0 {
        return Some(format!("the server gave no token ids of what it generated; {ASK}"));
    }
    let listed = choice.listed.as_ref().map_or(0, |listed| listed.logprobs.len());
    let text = || format!("the server gave {ids} token ids and {listed} log-probabilities of them; {ASK}");
    (!choice.is_aligned()).then(text)
}

const ASK: &str = "`trunkline probe` says what it can do";
const UNPROMPTED: &str = "the server gave no token ids of its prompt; `trunkline probe` says what it can do";
