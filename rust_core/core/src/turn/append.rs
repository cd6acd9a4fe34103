//! A reply on a tree: its choices become turns of the rollouts that asked.

use crate::error::{Error, Result};
use crate::id::{ContextId, NameId, NodeId, RolloutId};
use crate::reply::{ParsedChoice, ParsedReply, Uncertainty, tool_result};
use crate::storage::tokens::TokenBuffer;
use crate::tree::Tree;
use crate::turn::prompt_ids;
use crate::wire::op::Call;
use crate::wire::rules::known;

/// Tool calls a turn may make; no model means more.
pub const MOST_CALLS: usize = 1000;

/// Bytes of the longest message that a turn may leave, 16 MiB with its reasoning: it is sent again with every later request.
pub const LONGEST: usize = 16 << 20;

/// Token ids that a turn may have; no model generates more at once.
pub const MOST_TOKENS: usize = 1 << 20;

pub(crate) const ENDED: &str = "the rollout had ended before its reply came";

/// The beginning of an earlier turn that the model was given to go on from, where a rollout forks inside a turn.
#[derive(Clone, Copy, Debug)]
pub struct KeptPrefix<'a> {
    /// The turn.
    pub turn: NodeId,
    /// How many of its tokens.
    pub tokens: usize,
    /// What they say.
    pub text: &'a str,
}

/// What the turns of one reply have in common.
#[derive(Clone, Copy, Debug)]
pub struct RequestInfo<'a> {
    /// Who spoke.
    pub agent: NameId,
    /// Model, sampling parameters and weight version.
    pub namespace: NameId,
    /// What was really sent, where it is not the path.
    pub context: Option<ContextId>,
    /// Model turns on the path before this one.
    pub turn: u32,
    /// Attempts beyond the first.
    pub retries: u32,
    /// Wall time of the call in microseconds.
    pub micros: u64,
    /// Whether a choice needs token ids and log-probabilities.
    pub exact: bool,
    /// The beginning of a turn that every choice continues.
    pub kept: Option<KeptPrefix<'a>>,
}

/// Nobody, at once.
impl Default for RequestInfo<'_> {
    fn default() -> Self {
        Self {
            agent: NameId::EMPTY,
            namespace: NameId::EMPTY,
            context: None,
            turn: 0,
            retries: 0,
            micros: 0,
            exact: false,
            kept: None,
        }
    }
}

/// What became of one choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppendedChoice {
    /// The node of its turn, and how many bytes its message has.
    Turn(NodeId, usize),
    /// Why it cannot be a turn, though others of its reply can.
    Fault(String),
}

impl Tree {
    /// Append the choices of a reply as turns: choice i to rollout i. Choices or rollouts that are left over are left alone.
    ///
    /// The usage of a reply is that of all its choices. Their prompt was computed once, so it counts as cached for all but
    /// the first that is a turn; so do retries. Generated tokens are those that are listed; where that is not known of every
    /// choice, the sum is shared out by the length of the messages. Where usage is of the first choice alone, those of the
    /// others are estimated.
    ///
    /// Where the model continued the beginning of a turn, its choices are whole turns with that beginning, which was
    /// generated before and is not counted as generated here. Their uncertainty as a whole is not known.
    ///
    /// # Errors
    /// If a rollout, a name or a context does not exist, or what was kept. Turns before that one stay.
    pub fn append_reply(
        &mut self,
        rollouts: &[RolloutId],
        reply: &ParsedReply,
        request: RequestInfo<'_>,
    ) -> Result<Vec<AppendedChoice>> {
        let pairs = rollouts.len().min(reply.choices.len());
        let messages = reply.choices[..pairs].iter().map(|choice| message(choice, request)).collect::<Vec<_>>();
        let lengths = messages.iter().map(|message| message.as_ref().map_or(0, Vec::len)).collect::<Vec<_>>();
        let generated = generated(reply, &lengths);
        let beginning = request.kept.map(|kept| self.beginning(kept)).transpose()?;
        let mut appended = Vec::with_capacity(pairs);
        let mut first = true;
        for (place, message) in messages.into_iter().enumerate() {
            // Whoever asked may have been stopped while the reply was on its way; its siblings still want theirs.
            known("rollout", rollouts[place].get(), self.rollouts.count())?;
            let ended = self.rollouts.termination(rollouts[place]).is_some();
            let message = match message.and_then(|message| if ended { Err(ENDED.to_owned()) } else { Ok(message) }) {
                Ok(message) => message,
                Err(fault) => {
                    appended.push(AppendedChoice::Fault(fault));
                    continue;
                }
            };
            let choice = &reply.choices[place];
            let call = Call {
                agent: request.agent,
                namespace: request.namespace,
                finish: self.name(&choice.finish)?,
                prompt: reply.counts.prompt.into(),
                cached: if first { reply.counts.cached } else { reply.counts.prompt }.into(),
                generated: generated[place].into(),
                retries: if first { request.retries } else { 0 },
                micros: request.micros,
                aside: choice.message.reasoning.as_deref().filter(|thought| !thought.is_empty()),
                context: request.context,
                uncertainty: if beginning.is_some() { Uncertainty::UNKNOWN } else { choice.uncertainty() },
            };
            let sampled = choice.tokens.as_ref().map(TokenBuffer::as_slice);
            let whole = beginning.as_ref().map(|kept| kept.followed_by(sampled.as_ref()));
            let tokens = whole.as_ref().map(TokenBuffer::as_slice).or(sampled);
            let node = self.turn(rollouts[place], &message, tokens, call)?;
            appended.push(AppendedChoice::Turn(node, message.len()));
            first = false;
        }
        Ok(appended)
    }

    /// The tokens that a fork inside a turn keeps.
    pub(crate) fn beginning(&self, kept: KeptPrefix<'_>) -> Result<TokenBuffer> {
        let tokens = self.tokens_of(kept.turn)?.map_or_else(TokenBuffer::default, |all| all.first(kept.tokens).into());
        if tokens.ids.len() == kept.tokens {
            return Ok(tokens);
        }
        let value = format!("node {} has no {} tokens", kept.turn.get(), kept.tokens);
        Err(Error::reference(value, "a turn with the tokens that are kept of it"))
    }
}

/// What came of one tool call.
#[derive(Clone, Copy, Debug)]
pub struct ToolResult<'a> {
    /// What the model is told.
    pub text: &'a str,
    /// How long it took.
    pub micros: u64,
    /// Whether the tool failed.
    pub failed: bool,
}

impl Tree {
    /// Append the results of a turn's tool calls at the rollout's leaf, in call order, as messages that name the calls by
    /// their ids. `turn` counts the model turns before that one. Returns the last node, and the bytes of all messages.
    ///
    /// # Errors
    /// As for [`Tree::observe`], or if a call has no id. Results before that one stay.
    pub fn observe_results(
        &mut self,
        rollout: RolloutId,
        agent: NameId,
        turn: u32,
        results: &[ToolResult<'_>],
    ) -> Result<(NodeId, usize)> {
        known("rollout", rollout.get(), self.rollouts.count())?;
        let mut leaf = self.rollouts.leaf(rollout);
        let mut size = 0;
        for (index, result) in results.iter().enumerate() {
            let message = tool_result(turn, index, result.text)?;
            size += message.len();
            leaf = self.observe(rollout, &message, None, agent, result.micros, result.failed)?;
        }
        Ok((leaf, size))
    }
}

impl ParsedChoice {
    /// Bytes of the message that a turn of it would leave, whose every token must be known if `exact`.
    ///
    /// # Errors
    /// Why it cannot be a turn, though others of its reply can.
    pub fn size(&self, turn: u32, exact: bool) -> std::result::Result<usize, String> {
        message(self, RequestInfo { turn, exact, ..RequestInfo::default() }).map(|message| message.len())
    }
}

/// The message of a choice for the history, or why it cannot have one.
fn message(choice: &ParsedChoice, request: RequestInfo<'_>) -> std::result::Result<Vec<u8>, String> {
    if let Some(fault) = Some(choice).filter(|_| request.exact).and_then(prompt_ids::fault) {
        return Err(fault);
    }
    let calls = choice.message.tool_calls.len();
    if calls > MOST_CALLS {
        return Err(format!("the reply asks for {calls} tool calls; a turn may make {MOST_CALLS}"));
    }
    let message = match request.kept {
        Some(kept) => choice.message.after(kept.text).canonical(request.turn),
        None => choice.message.canonical(request.turn),
    };
    let message = message.map_err(|error| error.to_string())?;
    let size = message.len() + choice.message.reasoning.as_ref().map_or(0, String::len);
    if size > LONGEST {
        return Err(format!("the reply has {size} bytes; at most {LONGEST} are kept"));
    }
    let tokens = choice.tokens.as_ref().map_or(0, |tokens| tokens.ids.len());
    if tokens > MOST_TOKENS {
        return Err(format!("the reply has {tokens} token ids; at most {MOST_TOKENS} are kept"));
    }
    Ok(message)
}

/// Generated tokens of each choice.
fn generated(reply: &ParsedReply, lengths: &[usize]) -> Vec<Option<u32>> {
    if let ([_], [_]) = (&*reply.choices, lengths) {
        return vec![reply.counts.generated];
    }
    if let Some(each) = &reply.each {
        return each.iter().copied().map(Some).collect();
    }
    let counts = reply.choices.iter().map(ParsedChoice::listed_tokens).collect::<Vec<_>>();
    if counts.iter().all(Option::is_some) {
        return counts;
    }
    // Choices that no rollout takes have their share as well.
    let left_over = reply.choices[lengths.len()..].iter().map(|choice| choice.message.text().len().max(1));
    let weights = lengths.iter().copied().chain(left_over).collect::<Vec<_>>();
    match reply.counts.generated {
        Some(sum) => shares(sum, &weights).into_iter().map(Some).collect(),
        None => vec![None; weights.len()],
    }
}

/// A whole number shared out by weight, so that the shares sum up to it: each is the difference of two rounded sums.
fn shares(sum: u32, weights: &[usize]) -> Vec<u32> {
    let total = weights.iter().map(|&weight| weight as u128).sum::<u128>().max(1);
    let mut before = 0_u128;
    let mut given = 0;
    let share = |&weight: &usize| {
        before += weight as u128;
        let until = u32::try_from(u128::from(sum) * before / total).unwrap_or(sum);
        let share = until - given;
        given = until;
        share
    };
    weights.iter().map(share).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should stop")]
mod tests {
    use super::*;
    use crate::Kind;
    use crate::reply::{ReplyOptions, read};

    const REQUEST: RequestInfo<'_> = RequestInfo {
        agent: NameId::EMPTY,
        namespace: NameId::EMPTY,
        context: None,
        turn: 0,
        retries: 2,
        micros: 9,
        exact: false,
        kept: None,
    };

    fn reply(choices: &str, usage: &str) -> ParsedReply {
        let body = format!(r#"{{"choices":[{choices}],"usage":{usage}}}"#);
        read(body.as_bytes(), &ReplyOptions::default()).unwrap()
    }

    fn planted(rollouts: u32) -> (Tree, Vec<RolloutId>) {
        let mut tree = Tree::new();
        let point = tree.append(0.into(), Kind::Prompt, b"{}", None, NameId::EMPTY).unwrap();
        let opened = (0..rollouts).map(|draw| tree.open(point, &[0, draw], draw).unwrap()).collect();
        (tree, opened)
    }

    #[test]
    fn siblings_share_the_prompt_and_the_generated_tokens_of_one_request() {
        let (mut tree, rollouts) = planted(3);
        let choices = r#"{"index":0,"message":{"content":"a"}},{"index":1,"message":{"content":"bb"}},
            {"index":2,"message":{"content":"a","reasoning":"hm"}}"#;
        let usage = r#"{"prompt_tokens":40,"completion_tokens":10,"prompt_tokens_details":{"cached_tokens":7}}"#;
        let appended = tree.append_reply(&rollouts, &reply(choices, usage), REQUEST).unwrap();
        let [AppendedChoice::Turn(first, 34), AppendedChoice::Turn(second, 35), AppendedChoice::Turn(third, 34)] =
            appended[..]
        else {
            panic!("{appended:?}");
        };
        assert!(first == third && first != second, "equal turns are one node");
        let usage = rollouts.iter().map(|&rollout| tree.rollout(rollout).unwrap().usage).collect::<Vec<_>>();
        let figures = |i: usize| (usage[i].prompt, usage[i].cached, usage[i].generated, usage[i].retries);
        assert_eq!([figures(0), figures(1), figures(2)], [(40, 7, 3, 2), (40, 40, 3, 0), (40, 40, 4, 0)]);
        assert_eq!(tree.rollout(rollouts[1]).unwrap().leaf, second);
    }

    #[test]
    fn listed_tokens_are_counted_where_every_choice_has_them() {
        let (mut tree, rollouts) = planted(2);
        let choices = r#"{"index":0,"message":{"content":"a"},"token_ids":[1,2,3]},
            {"index":1,"message":{"content":"b"},"token_ids":[4]}"#;
        tree.append_reply(&rollouts, &reply(choices, r#"{"prompt_tokens":5,"completion_tokens":90}"#), REQUEST)
            .unwrap();
        let generated = rollouts.iter().map(|&rollout| tree.rollout(rollout).unwrap().usage.generated);
        assert_eq!(generated.collect::<Vec<_>>(), [3, 1]);
    }

    #[test]
    fn a_choice_nobody_can_use_is_a_fault_and_its_sibling_a_turn() {
        let (mut tree, rollouts) = planted(2);
        let call = r#"{"function":{"name":"f","arguments":"{}"}}"#;
        let many = vec![call; MOST_CALLS + 1].join(",");
        let choices =
            format!(r#"{{"index":0,"message":{{"tool_calls":[{many}]}}}},{{"index":1,"message":{{"content":"b"}}}}"#);
        let appended = tree.append_reply(&rollouts, &reply(&choices, "null"), REQUEST).unwrap();
        assert_eq!(
            appended[0],
            AppendedChoice::Fault("the reply asks for 1001 tool calls; a turn may make 1000".to_owned())
        );
        assert!(matches!(appended[1], AppendedChoice::Turn(..)));
        assert_eq!(tree.rollout(rollouts[0]).unwrap().leaf, NodeId::new(1));
    }

    #[test]
    fn a_reply_beyond_its_bounds_is_a_fault_and_its_sibling_a_turn() {
        let half = "x".repeat(LONGEST / 2);
        let ids = vec!["1"; MOST_TOKENS + 1].join(",");
        let thought = format!(r#""message":{{"content":"{half}","reasoning":"{half}"}}"#);
        let listed = format!(r#""message":{{"content":"b"}},"token_ids":[{ids}]"#);
        for (large, words) in
            [(thought, "bytes; at most"), (listed, "the reply has 1048577 token ids; at most 1048576")]
        {
            let (mut tree, rollouts) = planted(2);
            let choices = format!(r#"{{"index":0,{large}}},{{"index":1,"message":{{"content":"b"}}}}"#);
            let appended = tree.append_reply(&rollouts, &reply(&choices, "null"), REQUEST).unwrap();
            let [AppendedChoice::Fault(fault), AppendedChoice::Turn(..)] = &appended[..] else {
                panic!("{appended:?}");
            };
            assert!(fault.contains(words), "{fault}");
        }
    }

    #[test]
    fn token_ids_that_were_not_asked_for_are_dropped_whatever_they_are() {
        let body = r#"{"choices":[{"message":{"content":"a"},"token_ids":[1,"odd"],"prompt_token_ids":[{}],
            "logprobs":{"tokens":["token_id:7"],"token_logprobs":[-1],"token_ids":[7]}}],"prompt_token_ids":7}"#;
        let found = read(body.as_bytes(), &ReplyOptions { ids: false, ..ReplyOptions::default() }).unwrap();
        assert_eq!(found.choices[0].listed.as_ref().unwrap().logprobs, [-1.0]);
        assert!(found.choices[0].tokens.is_none() && found.prompt_ids.is_none());
        assert!(read(body.as_bytes(), &ReplyOptions::default()).is_err());
        let body = r#"{"text":"a","output_ids":["odd"],"meta_info":{"output_token_logprobs":[[-1,7,"a"]]}}"#;
        let form = crate::reply::Form::Generate;
        let found = read(body.as_bytes(), &ReplyOptions { form, ids: false, ..ReplyOptions::default() }).unwrap();
        assert!(found.choices[0].tokens.is_none() && found.choices[0].listed.is_some());
    }

    #[test]
    fn a_rollout_that_ended_meanwhile_does_not_cost_its_sibling_the_turn() {
        let (mut tree, rollouts) = planted(2);
        tree.close(rollouts[0], crate::Termination::Cancelled, None, None).unwrap();
        let two = r#"{"index":0,"message":{"content":"a"}},{"index":1,"message":{"content":"b"}}"#;
        let appended = tree
            .append_reply(&rollouts, &reply(two, r#"{"prompt_tokens":40,"completion_tokens":4}"#), REQUEST)
            .unwrap();
        assert_eq!(appended[0], AppendedChoice::Fault(ENDED.to_owned()));
        assert!(matches!(appended[1], AppendedChoice::Turn(..)));
        let usage = tree.rollout(rollouts[1]).unwrap().usage;
        assert_eq!((usage.prompt, usage.cached, usage.retries), (40, 0, 2), "somebody had the prompt computed");
    }

    #[test]
    fn what_is_left_over_is_left_alone() {
        let (mut tree, rollouts) = planted(2);
        let two = r#"{"index":0,"message":{"content":"aa"}},{"index":1,"message":{"content":"aa"}}"#;
        let usage = r#"{"prompt_tokens":5,"completion_tokens":80}"#;
        assert_eq!(tree.append_reply(&rollouts[..1], &reply(two, usage), REQUEST).unwrap().len(), 1);
        assert!(tree.rollout(rollouts[0]).unwrap().usage.generated > 40, "only what it took part in");
        let one = r#"{"message":{"content":"x"}}"#;
        assert_eq!(tree.append_reply(&rollouts[1..], &reply(one, usage), REQUEST).unwrap().len(), 1);
        assert_eq!(tree.rollout(rollouts[1]).unwrap().usage.generated, 80);
    }

    #[test]
    fn what_goes_on_from_inside_a_turn_becomes_a_whole_one() {
        let (mut tree, rollouts) = planted(3);
        let exact = |choices: &str| reply(choices, r#"{"prompt_tokens":5,"completion_tokens":9}"#);
        let logprobs = |values: &str| format!(r#""logprobs":{{"tokens":["",""],"token_logprobs":{values}}}"#);
        let first = format!(r#"{{"message":{{"content":"abcd"}},"token_ids":[7,8],{}}}"#, logprobs("[-0.5,-1.5]"));
        let appended =
            tree.append_reply(&rollouts[..1], &exact(&first), RequestInfo { exact: true, ..REQUEST }).unwrap();
        let [AppendedChoice::Turn(turn, _)] = appended[..] else { panic!("{appended:?}") };
        let request = RequestInfo { exact: true, kept: Some(KeptPrefix { turn, tokens: 1, text: "ab" }), ..REQUEST };
        let rest = |index, text, ids, logs| {
            format!(r#"{{"index":{index},"message":{{"content":"{text}"}},"token_ids":{ids},{}}}"#, logprobs(logs))
        };
        let two = format!("{},{}", rest(0, "xy", "[9,10]", "[-0.25,-3]"), rest(1, "cd", "[8]", "[-1.5]"));
        let two = two.replacen(r#"["",""],"token_logprobs":[-1.5]"#, r#"[""],"token_logprobs":[-1.5]"#, 1);
        let appended = tree.append_reply(&rollouts[1..], &exact(&two), request).unwrap();
        let [AppendedChoice::Turn(branch, _), AppendedChoice::Turn(same, _)] = appended[..] else {
            panic!("{appended:?}")
        };
        assert_eq!(same, turn, "the same tokens are the same turn");
        let tokens = tree.tokens_of(branch).unwrap().unwrap();
        assert_eq!((tokens.ids, tokens.logprobs), (&[7, 9, 10][..], &[-0.5, -0.25, -3.0][..]));
        assert_eq!(tree.message(branch).unwrap(), br#"{"role":"assistant","content":"abxy"}"#);
        assert!(tree.node(branch).unwrap().uncertainty.is_unknown());
        let generated = rollouts.iter().map(|&rollout| tree.rollout(rollout).unwrap().usage.generated);
        assert_eq!(generated.collect::<Vec<_>>(), [9, 2, 1], "what was kept is nobody's cost");
        let point = tree.rollout(rollouts[0]).unwrap().point;
        let prompt = |tree: &Tree, ids: &[u32]| tree.same_prompt(point, request, ids).is_ok();
        tree.give(point, &[1, 2]).unwrap();
        assert_eq!(
            [&[1, 2, 7][..], &[1, 2], &[1, 2, 8], &[1, 2, 7, 7]].map(|ids| prompt(&tree, ids)),
            [true, false, false, false]
        );
        let beyond = RequestInfo { kept: Some(KeptPrefix { turn, tokens: 3, text: "" }), ..request };
        assert!(
            tree.append_reply(&rollouts[2..], &exact(&first), beyond)
                .unwrap_err()
                .to_string()
                .contains("has no 3 tokens")
        );
    }

    #[test]
    fn shares_sum_up_and_follow_the_weights() {
        assert_eq!(shares(10, &[1, 1, 1]), [3, 3, 4]);
        assert_eq!(shares(0, &[1, 2]), [0, 0]);
        assert_eq!(shares(u32::MAX, &[usize::MAX, usize::MAX, 0]), [u32::MAX / 2, u32::MAX / 2 + 1, 0]);
        assert_eq!(shares(7, &[0, 0]), [0, 0]);
        assert_eq!(shares(7, &[]), [0; 0]);
    }
}
