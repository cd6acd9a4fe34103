//! A tree as one would write it on a slow afternoon: lists, maps and recursion, and nothing kept incrementally.

use std::collections::HashMap;

use trunkline_core::{Kind, Totals};

use super::script::{Cmd, message, name, pick};

/// What makes two nodes one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub parent: usize,
    pub kind: u8,
    pub agent: String,
    pub namespace: String,
    pub message: Vec<u8>,
    pub context: Option<Vec<u8>>,
}

#[derive(Clone, Debug)]
pub struct Node {
    pub key: Key,
    pub prompt: i64,
    pub generated: i64,
    pub aside: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Rollout {
    pub point: usize,
    pub leaf: usize,
    pub path: Vec<u32>,
    pub subgroup: u32,
    pub ended: Option<u8>,
    pub answer: Option<String>,
    pub reward: f64,
    /// calls, prompt, cached, generated, unreported, tools, tool errors, tool micros
    pub usage: [u64; 8],
}

#[derive(Debug)]
pub struct Model {
    pub nodes: Vec<Node>,
    pub index: HashMap<Key, usize>,
    pub rollouts: Vec<Rollout>,
    pub contexts: Vec<Vec<u8>>,
}

impl Model {
    pub fn new() -> Self {
        let key = Key {
            parent: 0,
            kind: Kind::Root as u8,
            agent: String::new(),
            namespace: String::new(),
            message: Vec::new(),
            context: None,
        };
        let root = Node { key, prompt: -1, generated: -1, aside: None };
        Self { nodes: vec![root], index: HashMap::new(), rollouts: Vec::new(), contexts: Vec::new() }
    }

    fn merge(&mut self, key: Key, prompt: i64, generated: i64, aside: Option<String>) -> usize {
        if let Some(&id) = self.index.get(&key) {
            let node = &mut self.nodes[id];
            node.prompt = if node.prompt < 0 { prompt } else { node.prompt };
            node.generated = if node.generated < 0 { generated } else { node.generated };
            node.aside = node.aside.take().or(aside);
            return id;
        }
        self.index.insert(key.clone(), self.nodes.len());
        self.nodes.push(Node { key, prompt, generated, aside });
        self.nodes.len() - 1
    }

    fn growing(&self, id: u32) -> Result<usize, ()> {
        let at = pick(id, u32::try_from(self.rollouts.len()).unwrap()) as usize;
        self.rollouts.get(at).filter(|rollout| rollout.ended.is_none()).map(|_| at).ok_or(())
    }

    /// Carry out one operation, or refuse it; the node it reached, if it reaches one.
    pub fn run(&mut self, cmd: &Cmd) -> Result<Option<usize>, ()> {
        let nodes = u32::try_from(self.nodes.len()).unwrap();
        match cmd.clone() {
            Cmd::Append { parent, message: number, agent, prompt } => {
                let key = Key {
                    parent: pick(parent, nodes) as usize,
                    kind: if prompt { Kind::Prompt } else { Kind::Message } as u8,
                    agent: name(agent),
                    namespace: String::new(),
                    message: message(number),
                    context: None,
                };
                Ok(Some(self.merge(key, -1, -1, None)))
            }
            Cmd::Open { point, path, subgroup } => {
                if self.rollouts.iter().any(|rollout| rollout.path == path) {
                    return Err(());
                }
                let point = pick(point, nodes) as usize;
                let (ended, answer, reward, usage) = (None, None, f64::NAN, [0; 8]);
                self.rollouts.push(Rollout { point, leaf: point, path, subgroup, ended, answer, reward, usage });
                Ok(None)
            }
            Cmd::Turn { rollout, message: number, agent, figures: (prompt, cached, generated), aside, context } => {
                let at = self.growing(rollout)?;
                let count = u32::try_from(self.contexts.len()).unwrap();
                let context = context.filter(|_| count > 0).map(|id| self.contexts[pick(id, count) as usize].clone());
                let key = Key {
                    parent: self.rollouts[at].leaf,
                    kind: Kind::Turn as u8,
                    agent: name(agent),
                    namespace: name(agent),
                    message: message(number),
                    context,
                };
                let leaf = self.merge(key, prompt, generated, aside.map(name));
                let rollout = &mut self.rollouts[at];
                rollout.leaf = leaf;
                rollout.usage[0] += 1;
                if prompt >= 0 && generated >= 0 {
                    rollout.usage[1] += u64::try_from(prompt).unwrap();
                    rollout.usage[2] += u64::try_from(cached.clamp(0, prompt)).unwrap();
                    rollout.usage[3] += u64::try_from(generated).unwrap();
                } else {
                    rollout.usage[4] += 1;
                }
                Ok(Some(leaf))
            }
            Cmd::Observe { rollout, message: number, micros, failed } => {
                let at = self.growing(rollout)?;
                let key = Key {
                    parent: self.rollouts[at].leaf,
                    kind: Kind::Observation as u8,
                    agent: String::new(),
                    namespace: String::new(),
                    message: message(number),
                    context: None,
                };
                let leaf = self.merge(key, -1, -1, None);
                let rollout = &mut self.rollouts[at];
                rollout.leaf = leaf;
                rollout.usage[5] += 1;
                rollout.usage[6] += u64::from(failed);
                rollout.usage[7] += micros;
                Ok(Some(leaf))
            }
            Cmd::Context { messages } => {
                if !self.contexts.contains(&messages) {
                    self.contexts.push(messages);
                }
                Ok(None)
            }
            Cmd::Close { rollout, code, answer } => {
                let at = self.growing(rollout)?;
                self.rollouts[at].ended = Some(code);
                self.rollouts[at].answer = answer.map(name);
                Ok(None)
            }
            Cmd::Score { rollout, reward } => {
                let at = pick(rollout, u32::try_from(self.rollouts.len()).unwrap()) as usize;
                let rollout = self.rollouts.get_mut(at).filter(|rollout| rollout.ended.is_some()).ok_or(())?;
                if reward.is_infinite() {
                    return Err(());
                }
                rollout.reward = reward;
                Ok(None)
            }
        }
    }

    /// Nodes from the root's child to a node.
    pub fn path(&self, id: usize) -> Vec<usize> {
        if id == 0 {
            return Vec::new();
        }
        let mut path = self.path(self.nodes[id].key.parent);
        path.push(id);
        path
    }

    /// Model turns on the path to a node.
    pub fn turns(&self, id: usize) -> usize {
        self.path(id).into_iter().filter(|&at| self.nodes[at].key.kind == Kind::Turn as u8).count()
    }

    /// Per turn of a path that has figures: the node it was asked at, new prompt tokens, generated tokens.
    fn charges(&self, id: usize) -> Vec<(usize, u64, u64)> {
        let mut seen = 0;
        let mut charges = Vec::new();
        for at in self.path(id) {
            let node = &self.nodes[at];
            if node.key.kind == Kind::Turn as u8 && node.prompt >= 0 && node.generated >= 0 {
                let new = (node.prompt - seen).max(0);
                charges.push((at, u64::try_from(new).unwrap(), u64::try_from(node.generated).unwrap()));
                seen = node.prompt + node.generated;
            }
        }
        charges
    }

    /// Token counts, path by path.
    pub fn tokens(&self) -> Totals {
        let mut totals = Totals::default();
        let mut asked: HashMap<usize, u64> = HashMap::new();
        let mut said: HashMap<usize, u64> = HashMap::new();
        for rollout in &self.rollouts {
            let charges = self.charges(rollout.leaf);
            let length = charges.iter().map(|(_, new, generated)| new + generated).sum();
            totals.flat += length;
            totals.flat_generated += charges.iter().map(|(_, _, generated)| generated).sum::<u64>();
            totals.longest = totals.longest.max(length);
            for (at, new, generated) in charges {
                let slot = asked.entry(self.nodes[at].key.parent).or_default();
                *slot = (*slot).max(new);
                said.insert(at, generated);
            }
        }
        totals.tree_generated = said.values().sum();
        totals.tree = totals.tree_generated + asked.values().sum::<u64>();
        let turns = self.nodes.iter().filter(|node| node.key.kind == Kind::Turn as u8);
        let unreported = turns.filter(|node| node.prompt < 0 || node.generated < 0).count();
        totals.unreported = u64::try_from(unreported).unwrap();
        totals
    }

    /// Rollouts through a node, scored ones among them, and their rewards' sum.
    pub fn value(&self, id: usize) -> (u32, u32, f64) {
        let through = self.rollouts.iter().filter(|rollout| id == 0 || self.path(rollout.leaf).contains(&id));
        let rewards: Vec<f64> = through.map(|rollout| rollout.reward).collect();
        let scored: Vec<f64> = rewards.iter().copied().filter(|reward| !reward.is_nan()).collect();
        let count = |list: &[f64]| u32::try_from(list.len()).unwrap();
        (count(&rewards), count(&scored), scored.iter().sum())
    }
}
