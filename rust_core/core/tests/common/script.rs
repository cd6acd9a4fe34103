//! Operations by small numbers: ids are taken modulo what exists, so that most of a random script makes sense.

use proptest::prelude::*;
use trunkline_core::{Call, ContextId, Kind, NameId, NodeId, Result, RolloutId, Termination, Tokens, Tree};

/// One operation.
#[derive(Clone, Debug)]
pub enum Cmd {
    Append { parent: u32, message: u8, agent: u8, prompt: bool },
    Open { point: u32, path: Vec<u32>, subgroup: u32 },
    Turn { rollout: u32, message: u8, agent: u8, figures: (i64, i64, i64), aside: Option<u8>, context: Option<u32> },
    Observe { rollout: u32, message: u8, micros: u64, failed: bool },
    Context { messages: Vec<u8> },
    Close { rollout: u32, code: u8, answer: Option<u8> },
    Score { rollout: u32, reward: f64 },
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
    let turn = (id.clone(), 0u8..4, 0u8..3, (figure(), figure(), figure()), prop::option::of(0u8..3));
    let reward = prop_oneof![4 => -2.0..2.0, 1 => Just(f64::NAN), 1 => Just(f64::INFINITY)];
    prop_oneof![
        2 => (id.clone(), 0u8..3, 0u8..3, any::<bool>())
            .prop_map(|(parent, message, agent, prompt)| Cmd::Append { parent, message, agent, prompt }),
        3 => (id.clone(), prop::collection::vec(0u32..4, 0..4), 0u32..3)
            .prop_map(|(point, path, subgroup)| Cmd::Open { point, path, subgroup }),
        8 => (turn, prop::option::weighted(0.2, id.clone())).prop_map(
            |((rollout, message, agent, figures, aside), context)| Cmd::Turn {
                rollout, message, agent, figures, aside, context
            }
        ),
        4 => (id.clone(), 0u8..4, 0u64..50, any::<bool>())
            .prop_map(|(rollout, message, micros, failed)| Cmd::Observe { rollout, message, micros, failed }),
        1 => prop::collection::vec(0u8..4, 0..4).prop_map(|messages| Cmd::Context { messages }),
        2 => (id.clone(), 0u8..14, prop::option::of(0u8..3))
            .prop_map(|(rollout, code, answer)| Cmd::Close { rollout, code, answer }),
        2 => (id, reward).prop_map(|(rollout, reward)| Cmd::Score { rollout, reward }),
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
        Cmd::Append { parent, message: number, agent, prompt } => {
            let agent = tree.name(&name(*agent))?;
            let kind = if *prompt { Kind::Prompt } else { Kind::Message };
            tree.append(NodeId::new(pick(*parent, nodes)), kind, &message(*number), agent).map(Some)
        }
        Cmd::Open { point, path, subgroup } => {
            tree.open(NodeId::new(pick(*point, nodes)), path, *subgroup).map(|_| None)
        }
        Cmd::Turn { rollout: id, message: number, agent, figures: (prompt, cached, generated), aside, context } => {
            let agent = tree.name(&name(*agent))?;
            let said = aside.map(name);
            let call = Call {
                agent,
                namespace: agent,
                finish: NameId::EMPTY,
                prompt: Tokens::new(*prompt, "prompt")?,
                cached: Tokens::new(*cached, "cached")?,
                generated: Tokens::new(*generated, "generated")?,
                retries: 1,
                micros: 7,
                aside: said.as_deref(),
                context: context.filter(|_| *contexts > 0).map(|id| ContextId::new(pick(id, *contexts))),
            };
            tree.turn(rollout(*id), &message(*number), call).map(Some)
        }
        Cmd::Observe { rollout: id, message: number, micros, failed } => {
            tree.observe(rollout(*id), &message(*number), NameId::EMPTY, *micros, *failed).map(Some)
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
