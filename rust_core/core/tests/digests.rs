//! The digest says what was said, whenever and in whatever order it was said.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used)]

mod common;

use std::fmt::Write;

use common::script::message;
use proptest::prelude::*;
use trunkline_core::reply::{ReplyOptions, read};
use trunkline_core::{AppendedChoice, Kind, NameId, NodeId, RequestInfo, RolloutId, Termination, TokenBuffer, Tree};

/// A rollout to be grown: where it forks from an earlier one, what it says, how it ends.
#[derive(Clone, Debug)]
struct Plan {
    fork: Option<(usize, usize)>,
    steps: Vec<(u8, bool, bool)>,
    answer: Option<u8>,
    reward: f64,
}

fn plans() -> impl Strategy<Value = Vec<Plan>> {
    let steps = prop::collection::vec((0u8..3, any::<bool>(), any::<bool>()), 0..5);
    let fork = prop::option::of((0usize..8, 0usize..5));
    let reward = prop_oneof![Just(0.0), Just(1.0), Just(f64::NAN)];
    let plan = (fork, steps, prop::option::of(0u8..3), reward).prop_map(|(fork, steps, answer, reward)| Plan {
        fork,
        steps,
        answer,
        reward,
    });
    prop::collection::vec(plan, 1..7)
}

/// A tree being grown from plans, in whatever order it is asked to.
struct Grower<'p> {
    tree: Tree,
    plans: &'p [Plan],
    prompt: NodeId,
    rollouts: Vec<Option<RolloutId>>,
    nodes: Vec<Vec<NodeId>>,
    late: Vec<(NodeId, TokenBuffer)>,
    noise: u64,
}

impl<'p> Grower<'p> {
    fn new(plans: &'p [Plan], noise: u64) -> Self {
        let mut tree = Tree::new();
        if noise % 2 == 1 {
            tree.name("a name that shifts all later ids").unwrap();
            tree.fragment(&message(200)).unwrap();
        }
        let prompt = tree.append(NodeId::ROOT, Kind::Prompt, &message(100), None, NameId::EMPTY).unwrap();
        let (rollouts, nodes) = (vec![None; plans.len()], vec![Vec::new(); plans.len()]);
        Self { tree, plans, prompt, rollouts, nodes, late: Vec::new(), noise }
    }

    /// Open a rollout if it is not open, after growing the one it forks from far enough.
    fn open(&mut self, at: usize) -> RolloutId {
        if let Some(rollout) = self.rollouts[at] {
            return rollout;
        }
        let point = match self.plans[at].fork {
            Some((from, step)) if from < at => {
                let step = step.min(self.plans[from].steps.len());
                while self.nodes[from].len() < step {
                    self.step(from);
                }
                if step == 0 { self.prompt } else { self.nodes[from][step - 1] }
            }
            _ => self.prompt,
        };
        let rollout = self.tree.open(point, &[0, u32::try_from(at).unwrap()], u32::try_from(at % 2).unwrap()).unwrap();
        self.rollouts[at] = Some(rollout);
        rollout
    }

    fn step(&mut self, at: usize) {
        let rollout = self.open(at);
        let Some(&(number, turn, tokens)) = self.plans[at].steps.get(self.nodes[at].len()) else { return };
        let agent = self.tree.name(["searcher", "solver"][at % 2]).unwrap();
        let said = TokenBuffer::given(vec![number.into(), 5]);
        let node = if turn {
            // Times, retries and failures differ from one growing to the next.
            let mut call = common::call(50, 7);
            (call.agent, call.micros, call.retries) = (agent, self.noise, u32::try_from(self.noise % 5).unwrap());
            // Log-probabilities depend on the batch that a server puts a request into.
            let noisy = f32::from(u8::try_from(self.noise).unwrap());
            let sampled = TokenBuffer::sampled(said.ids, vec![-noisy; 2], 3).unwrap();
            self.tree.turn(rollout, &message(number), tokens.then_some(sampled.as_slice()), call).unwrap()
        } else {
            let failed = self.noise % 2 == 1;
            let node = self.tree.observe(rollout, &message(number), None, agent, self.noise, failed).unwrap();
            if tokens && self.noise.is_multiple_of(2) {
                self.tree.tokenise(node, said.as_slice()).unwrap();
            } else if tokens {
                self.late.push((node, said));
            }
            node
        };
        self.nodes[at].push(node);
    }

    fn finish(mut self, order: &[usize]) -> Tree {
        let (all, backward) = (self.plans.len(), self.noise % 2 == 1);
        for &at in order {
            self.step(at % all);
        }
        for at in (0..all).map(|at| if backward { all - 1 - at } else { at }) {
            let plan = &self.plans[at];
            let rollout = self.open(at);
            while self.nodes[at].len() < plan.steps.len() {
                self.step(at);
            }
            let answer = plan.answer.map(|number| number.to_string());
            self.tree.close(rollout, Termination::Answer, answer.as_deref(), None).unwrap();
            self.tree.score(rollout, plan.reward).unwrap();
        }
        for (node, said) in &self.late {
            self.tree.tokenise(*node, said.as_slice()).unwrap();
        }
        self.tree.check().unwrap();
        self.tree
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn order_of_arrival_does_not_matter(
        plans in plans(),
        first in prop::collection::vec(0usize..8, 0..40),
        second in prop::collection::vec(0usize..8, 0..40),
    ) {
        let one = Grower::new(&plans, 2).finish(&first);
        let two = Grower::new(&plans, 7).finish(&second);
        prop_assert_eq!(one.digest(), two.digest());
        prop_assert_eq!(one.tokens(), two.tokens());
        prop_assert_eq!(one.nodes(), two.nodes());
    }

    #[test]
    fn what_is_said_matters(plans in plans(), which in any::<prop::sample::Index>(), what in 0..4u8) {
        let mut other = plans.clone();
        let plan = &mut other[which.index(plans.len())];
        match what {
            0 => plan.answer = Some(77),
            1 => plan.reward = if plan.reward.is_nan() { 0.0 } else { f64::NAN },
            2 => plan.steps.push((9, false, true)),
            _ => plan.steps.push((9, true, false)),
        }
        let digest = Grower::new(&plans, 0).finish(&[]).digest();
        prop_assert_ne!(digest, Grower::new(&other, 0).finish(&[]).digest());
    }
}

/// What the server says of a call: each figure, or not.
#[derive(Clone, Debug)]
struct Reply {
    said: u8,
    prompt: Option<u8>,
    generated: Option<u8>,
    reasoning: Option<u8>,
    /// Whether there are token ids, and log-probabilities: none, one each, or one each and what was as likely.
    exact: bool,
    logprobs: Option<(u8, bool)>,
}

fn replies() -> impl Strategy<Value = Vec<Reply>> {
    let figure = || prop::option::of(1u8..5);
    let all = (0u8..2, figure(), figure(), figure(), any::<bool>(), prop::option::of((1u8..5, any::<bool>())));
    let reply = all.prop_map(|(said, prompt, generated, reasoning, exact, logprobs)| Reply {
        said,
        prompt,
        generated,
        reasoning,
        exact,
        logprobs,
    });
    prop::collection::vec(reply, 0..4)
}

impl Reply {
    fn body(&self) -> String {
        let Self { said, prompt, generated, reasoning, exact, logprobs } = self;
        let or_null = |figure: &Option<u8>| figure.map_or("null".to_owned(), |figure| figure.to_string());
        let ids = if *exact { format!(r#","token_ids":[{said}]"#) } else { String::new() };
        let thought = reasoning.map_or(String::new(), |number| format!(r#","reasoning":"hm {number}""#));
        let listed = |(number, list)| {
            let likely = format!(r#"{{"token":"{said}","logprob":-0.{number}}},{{"token":"x","logprob":-{number}}}"#);
            let top = if list { format!("[{likely}]") } else { "[]".to_owned() };
            format!(r#","logprobs":{{"content":[{{"token":"{said}","logprob":-0.{number},"top_logprobs":{top}}}]}}"#)
        };
        let listed = logprobs.map_or(String::new(), listed);
        let (prompt, generated) = (or_null(prompt), or_null(generated));
        format!(
            r#"{{"choices":[{{"index":0,"message":{{"content":"{said}"{thought}}}{ids}{listed}}}],
            "usage":{{"prompt_tokens":{prompt},"completion_tokens":{generated}}}}}"#
        )
    }
}

/// Append what each rollout is answered, the rollouts in an order of arrival, and take a delta after each.
fn arrive(answers: &[Vec<Reply>], order: &[usize]) -> (Tree, Vec<Vec<u8>>) {
    let mut tree = Tree::new();
    let prompt = tree.append(NodeId::ROOT, Kind::Prompt, &message(0), None, NameId::EMPTY).unwrap();
    for draw in 0..u32::try_from(answers.len()).unwrap() {
        tree.open(prompt, &[0, draw], draw).unwrap();
    }
    let (mut next, mut deltas) = (vec![0; answers.len()], vec![tree.delta().unwrap().unwrap()]);
    let rest = (0..answers.len()).flat_map(|at| std::iter::repeat_n(at, answers[at].len()));
    for at in order.iter().map(|at| at % answers.len()).chain(rest) {
        let Some(reply) = answers[at].get(next[at]) else { continue };
        let reply = read(reply.body().as_bytes(), &ReplyOptions::default()).unwrap();
        let rollout = RolloutId::new(u32::try_from(at).unwrap());
        let turns = tree.append_reply(&[rollout], &reply, RequestInfo::default()).unwrap();
        assert!(matches!(turns[..], [AppendedChoice::Turn(..)]), "{turns:?}");
        next[at] += 1;
        deltas.extend(tree.delta().unwrap());
    }
    assert_eq!(tree.check(), Ok(()));
    (tree, deltas)
}

/// Every figure of every turn on the path of every rollout, without ids.
fn figures(tree: &Tree) -> String {
    let mut out = format!("{:032x} {:?}", tree.digest(), tree.tokens());
    for id in 0..tree.rollouts() {
        let rollout = tree.rollout(id.into()).unwrap();
        write!(out, "\n{:?}", rollout.usage).unwrap();
        for node in tree.path(rollout.leaf).unwrap() {
            let (view, aside) = (tree.node(node).unwrap(), tree.aside(node).unwrap());
            let (tokens, passes) = (tree.tokens_of(node).unwrap(), view.passes);
            let said = (view.finish, view.prompt, view.generated, view.uncertainty);
            write!(out, "\n  {said:?} {aside:?} {tokens:?} {passes}").unwrap();
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_figure_depends_on_the_order_of_arrival(
        answers in prop::collection::vec(replies(), 2..5),
        orders in prop::collection::vec(prop::collection::vec(0usize..12, 0..20), 2..4),
    ) {
        let expected = figures(&arrive(&answers, &[]).0);
        for order in &orders {
            let (tree, deltas) = arrive(&answers, order);
            prop_assert_eq!(figures(&tree), &*expected);
            let mut copy = Tree::new();
            for delta in &deltas {
                prop_assert_eq!(copy.apply(delta), Ok(true));
            }
            prop_assert_eq!(common::portrait(&copy), common::portrait(&tree));
        }
    }
}

#[test]
fn prompts_kinds_agents_and_contexts_matter() {
    let grow = |message_number: u8, kind: Kind, agent: &str, context: bool| {
        let mut tree = Tree::new();
        let agent = tree.name(agent).unwrap();
        tree.append(NodeId::ROOT, kind, &message(message_number), None, agent).unwrap();
        if context {
            let fragment = tree.fragment(&message(1)).unwrap().get();
            let rollout = tree.open(NodeId::ROOT, &[], 0).unwrap();
            let mut call = common::call(1, 1);
            call.context = Some(tree.context(&[fragment]).unwrap());
            tree.turn(rollout, &message(1), None, call).unwrap();
        } else {
            let rollout = tree.open(NodeId::ROOT, &[], 0).unwrap();
            tree.turn(rollout, &message(1), None, common::call(1, 1)).unwrap();
        }
        tree.digest()
    };
    let base = grow(5, Kind::Prompt, "", false);
    assert_eq!(base, grow(5, Kind::Prompt, "", false));
    let others = [
        grow(6, Kind::Prompt, "", false),
        grow(5, Kind::Message, "", false),
        grow(5, Kind::Prompt, "planner", false),
        grow(5, Kind::Prompt, "", true),
    ];
    assert!(others.iter().all(|&other| other != base));
}

#[test]
fn ids_matter_where_there_are_any_and_log_probabilities_never() {
    let grow = |number: u8, ids: Option<u32>, logprob: f32, late: bool| {
        let mut tree = Tree::new();
        let prompt = tree.append(NodeId::ROOT, Kind::Prompt, &message(0), None, NameId::EMPTY).unwrap();
        if late {
            tree.tokenise(prompt, TokenBuffer::given(vec![1]).as_slice()).unwrap();
        }
        let rollout = tree.open(prompt, &[], 0).unwrap();
        let tokens = ids.map(|id| TokenBuffer::sampled(vec![id], vec![logprob], 3).unwrap());
        let tokens = tokens.as_ref().map(TokenBuffer::as_slice);
        tree.turn(rollout, &message(number), tokens, common::call(1, 1)).unwrap();
        tree.digest()
    };
    let base = grow(1, Some(5), -0.5, false);
    assert_eq!(base, grow(2, Some(5), -0.7, false), "equal ids are one turn, whatever their bytes");
    let others = [grow(1, Some(6), -0.5, false), grow(1, None, 0.0, false), grow(1, Some(5), -0.5, true)];
    assert!(others.iter().all(|&other| other != base));
}

#[test]
fn every_nan_is_the_same_nan() {
    let grow = |reward: f64| {
        let mut tree = Tree::new();
        let rollout = tree.open(NodeId::ROOT, &[], 0).unwrap();
        tree.close(rollout, Termination::Answer, None, None).unwrap();
        tree.score(rollout, reward).unwrap();
        tree.digest()
    };
    assert_eq!(grow(f64::NAN), grow(-f64::from_bits(f64::NAN.to_bits() | 5)));
}

/// Written down once: a digest that changes without its version number would orphan every run file.
#[test]
fn the_format_is_fixed() {
    let mut tree = Tree::new();
    let empty = tree.digest();
    let prompt =
        tree.append(NodeId::ROOT, Kind::Prompt, br#"{"role":"user","content":"1+1"}"#, None, NameId::EMPTY).unwrap();
    let rollout = tree.open(prompt, &[0, 0], 0).unwrap();
    tree.turn(rollout, br#"{"role":"assistant","content":"2"}"#, None, common::call(9, 1)).unwrap();
    tree.close(rollout, Termination::Answer, Some("2"), None).unwrap();
    tree.score(rollout, 1.0).unwrap();
    assert_eq!(format!("{empty:032x}"), "16b656e6a7e8c123240ff24d5659648a");
    assert_eq!(format!("{:032x}", tree.digest()), "010c791055d678afce95eacbc4950244");
}
