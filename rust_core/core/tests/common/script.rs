//! Operations by small numbers: ids are taken modulo what exists, so that most of a random script makes sense.

use proptest::prelude::*;
use trunkline_core::{
    Call, ContextId, Kind, NameId, NodeId, Result, RolloutId, SAMPLED, Termination, TokenBuffer, TokenCount, Tree,
    Uncertainty,
};

/// One operation.
#[derive(Clone, Debug)]
pub enum Cmd {
    Append { parent: u32, message: u8, tokens: Option<u8>, agent: u8, prompt: bool },
    Open { point: u32, path: Vec<u32>, subgroup: u32 },
    Turn { rollout: u32, message: u8, tokens: Option<u8>, agent: u8, said: Said },
    Observe { rollout: u32, message: u8, tokens: Option<u8>, micros: u64, failed: bool },
    Tell { rollout: u32, message: u8, tokens: Option<u8> },
    Tokenise { node: u32, tokens: u8 },
    Context { messages: Vec<u8> },
    Close { rollout: u32, code: u8, answer: Option<u8> },
    Score { rollout: u32, reward: f64 },
    Note { rollout: u32, text: u8 },
    Mark { text: u8 },
    Report { node: u32, text: u8 },
}

/// What a call says beside its message.
#[derive(Clone, Debug)]
pub struct Said {
    pub figures: (i64, i64, i64),
    pub aside: Option<u8>,
    pub context: Option<u32>,
    pub entropy: Option<u8>,
}

/// Tokens by number: every fifth has the same ids, with log-probabilities, known or not, and flags of its own.
pub fn tokens(number: u8) -> TokenBuffer {
    let ids: Vec<u32> = (0..u32::from(number % 5)).map(|id| id * 1000 + u32::from(number % 5)).collect();
    let logprob = if number % 3 == 1 { f32::NAN } else { -f32::from(number) };
    let mut tokens = TokenBuffer::sampled(ids, vec![logprob; usize::from(number % 5)], 7).unwrap();
    if let Some(flags) = tokens.flags.first_mut().filter(|_| number.is_multiple_of(2)) {
        *flags &= !SAMPLED;
    }
    tokens
}

pub fn uncertainty(number: Option<u8>) -> Uncertainty {
    let figure = number.map_or(f32::NAN, f32::from);
    Uncertainty {
        entropy: [figure, f32::NAN, figure],
        perplexity: [figure.exp(), f32::NAN, figure.exp()],
        opening: figure,
    }
}

pub fn message(number: u8) -> Vec<u8> {
    format!("{{\"content\":\"{}\"}}", "é".repeat(usize::from(number))).into_bytes()
}

pub fn name(number: u8) -> String {
    if number == 0 { String::new() } else { format!("agent {number}") }
}

fn figure() -> impl Strategy<Value = i64> {
    prop_oneof![1 => Just(-1), 6 => 0i64..200]
}

fn cmd() -> impl Strategy<Value = Cmd> {
    let id = 0u32..1000;
    let tokens = || prop::option::of(0u8..12);
    let said = (
        (figure(), figure(), figure()),
        prop::option::of(0u8..3),
        prop::option::weighted(0.2, id.clone()),
        prop::option::of(0u8..5),
    );
    let said = said.prop_map(|(figures, aside, context, entropy)| Said { figures, aside, context, entropy });
    let reward = prop_oneof![4 => -2.0..2.0, 1 => Just(f64::NAN), 1 => Just(f64::INFINITY)];
    prop_oneof![
        2 => (id.clone(), 0u8..3, tokens(), 0u8..3, any::<bool>())
            .prop_map(|(parent, message, tokens, agent, prompt)| Cmd::Append { parent, message, tokens, agent, prompt }),
        3 => (id.clone(), prop::collection::vec(0u32..4, 0..4), 0u32..3)
            .prop_map(|(point, path, subgroup)| Cmd::Open { point, path, subgroup }),
        8 => (id.clone(), 0u8..4, tokens(), 0u8..3, said)
            .prop_map(|(rollout, message, tokens, agent, said)| Cmd::Turn { rollout, message, tokens, agent, said }),
        4 => (id.clone(), 0u8..4, tokens(), 0u64..50, any::<bool>())
            .prop_map(|(rollout, message, tokens, micros, failed)| Cmd::Observe { rollout, message, tokens, micros, failed }),
        2 => (id.clone(), 0u8..4, tokens())
            .prop_map(|(rollout, message, tokens)| Cmd::Tell { rollout, message, tokens }),
        3 => (id.clone(), 0u8..12).prop_map(|(node, tokens)| Cmd::Tokenise { node, tokens }),
        1 => prop::collection::vec(0u8..4, 0..4).prop_map(|messages| Cmd::Context { messages }),
        2 => (id.clone(), 0u8..15, prop::option::of(0u8..3))
            .prop_map(|(rollout, code, answer)| Cmd::Close { rollout, code, answer }),
        2 => (id.clone(), reward).prop_map(|(rollout, reward)| Cmd::Score { rollout, reward }),
        1 => (id.clone(), 0u8..3).prop_map(|(rollout, text)| Cmd::Note { rollout, text }),
        2 => (id, 0u8..3).prop_map(|(node, text)| Cmd::Report { node, text }),
        1 => (0u8..3).prop_map(|text| Cmd::Mark { text }),
    ]
}

/// A script of up to `len` operations.
pub fn script(len: usize) -> impl Strategy<Value = Vec<Cmd>> {
    prop::collection::vec(cmd(), 0..len)
}

/// A number below `count`, or 0 where there is none: an id that does not exist.
pub fn pick(id: u32, count: u32) -> u32 {
    if count == 0 { 0 } else { id % count }
}

/// Carry out one operation; the node it reached, if it reaches one.
pub fn run(tree: &mut Tree, contexts: &mut u32, cmd: &Cmd) -> Result<Option<NodeId>> {
    let (nodes, rollouts) = (tree.nodes(), tree.rollouts());
    let rollout = |id: u32| RolloutId::new(pick(id, rollouts));
    match cmd {
        Cmd::Append { parent, message: number, tokens: run, agent, prompt } => {
            let agent = tree.name(&name(*agent))?;
            let kind = if *prompt { Kind::Prompt } else { Kind::Message };
            let run = run.map(tokens);
            let parent = NodeId::new(pick(*parent, nodes));
            tree.append(parent, kind, &message(*number), run.as_ref().map(TokenBuffer::as_slice), agent).map(Some)
        }
        Cmd::Open { point, path, subgroup } => {
            tree.open(NodeId::new(pick(*point, nodes)), path, *subgroup).map(|_| None)
        }
        Cmd::Turn { rollout: id, message: number, tokens: run, agent, said } => {
            let agent = tree.name(&name(*agent))?;
            let (aside, (prompt, cached, generated)) = (said.aside.map(name), said.figures);
            let call = Call {
                agent,
                namespace: agent,
                finish: NameId::EMPTY,
                prompt: TokenCount::new(prompt, "prompt")?,
                cached: TokenCount::new(cached, "cached")?,
                generated: TokenCount::new(generated, "generated")?,
                retries: 1,
                micros: 7,
                aside: aside.as_deref(),
                context: said.context.filter(|_| *contexts > 0).map(|id| ContextId::new(pick(id, *contexts))),
                uncertainty: uncertainty(said.entropy),
            };
            let run = run.map(tokens);
            tree.turn(rollout(*id), &message(*number), run.as_ref().map(TokenBuffer::as_slice), call).map(Some)
        }
        Cmd::Observe { rollout: id, message: number, tokens: run, micros, failed } => {
            let run = run.map(tokens);
            let run = run.as_ref().map(TokenBuffer::as_slice);
            tree.observe(rollout(*id), &message(*number), run, NameId::EMPTY, *micros, *failed).map(Some)
        }
        Cmd::Tell { rollout: id, message: number, tokens: run } => {
            let run = run.map(tokens);
            let run = run.as_ref().map(TokenBuffer::as_slice);
            tree.tell(rollout(*id), &message(*number), run, NameId::EMPTY).map(Some)
        }
        Cmd::Tokenise { node, tokens: run } => {
            tree.tokenise(NodeId::new(pick(*node, nodes)), tokens(*run).as_slice()).map(|()| None)
        }
        Cmd::Context { messages } => {
            let mut list = Vec::new();
            for number in messages {
                list.push(tree.fragment(&message(*number))?.get());
            }
            let id = tree.context(&list)?.get();
            *contexts = (*contexts).max(id + 1);
            Ok(None)
        }
        Cmd::Close { rollout: id, code, answer } => {
            let answer = answer.map(name);
            let termination = Termination::from_code(*code).unwrap();
            tree.close(rollout(*id), termination, answer.as_deref(), None).map(|()| None)
        }
        Cmd::Score { rollout: id, reward } => tree.score(rollout(*id), *reward).map(|()| None),
        Cmd::Mark { text } => tree.mark(&name(*text)).map(|()| None),
        Cmd::Report { node, text } => tree.report(NodeId::new(pick(*node, nodes)), &name(*text)).map(|()| None),
        Cmd::Note { rollout: id, text } => tree.note(rollout(*id), &name(*text)).map(|()| None),
    }
}

/// Carry out a whole script, refused operations included.
pub fn play(cmds: &[Cmd]) -> Tree {
    let (mut tree, mut contexts) = (Tree::new(), 0);
    for cmd in cmds {
        let _refused = run(&mut tree, &mut contexts, cmd);
    }
    tree
}
