//! A tree as one would write it on a slow afternoon: lists, maps and recursion, and nothing kept incrementally.

use std::collections::HashMap;

use trunkline_core::{Kind, SAMPLED, Termination, TokenBuffer, Totals, Uncertainty};

use super::script::{Cmd, message, name, pick, tokens, uncertainty};

/// What a node says: token ids where they came with it, else bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Said {
    Bytes(Vec<u8>),
    Ids(Vec<u32>),
}

/// What makes two nodes one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub parent: usize,
    pub kind: u8,
    pub agent: String,
    pub namespace: String,
    pub said: Said,
    pub context: Option<Vec<u8>>,
}

#[derive(Clone, Debug)]
pub struct Node {
    pub key: Key,
    pub message: Vec<u8>,
    pub tokens: Option<TokenBuffer>,
    pub uncertainty: Uncertainty,
    pub prompt: i64,
    pub generated: i64,
    pub aside: Option<String>,
    pub report: Option<String>,
    /// What every call of a turn said, by its rollout.
    calls: Vec<(usize, Figures)>,
}

/// What counts of a call if no rollout opened before said it.
#[derive(Clone, Debug)]
struct Figures {
    prompt: i64,
    generated: i64,
    aside: Option<String>,
    uncertainty: Uncertainty,
    tokens: Option<TokenBuffer>,
}

impl Node {
    /// Read the figures of a turn from all of its calls, those of the rollout opened first before the others.
    fn believe(&mut self) {
        self.calls.sort_by_key(|(by, _)| *by);
        let said = || self.calls.iter().map(|(_, figures)| figures);
        let known = |tokens: &&TokenBuffer| {
            !tokens.flags.iter().zip(&tokens.logprobs).any(|(flags, logprob)| flags & SAMPLED != 0 && logprob.is_nan())
        };
        let all = || said().filter_map(|figures| figures.tokens.as_ref());
        self.tokens = all().find(known).or_else(|| all().next()).cloned();
        self.prompt = said().map(|figures| figures.prompt).find(|&figure| figure >= 0).unwrap_or(-1);
        self.generated = said().map(|figures| figures.generated).find(|&figure| figure >= 0).unwrap_or(-1);
        self.aside = said().find_map(|figures| figures.aside.clone());
        let sure = said().map(|figures| figures.uncertainty).find(|uncertainty| !uncertainty.is_unknown());
        self.uncertainty = sure.unwrap_or(Uncertainty::UNKNOWN);
    }
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
    pub note: Option<String>,
    /// calls, prompt, cached, generated, unreported, tools, tool errors, tool micros
    pub usage: [u64; 8],
}

/// Where a node is and what is said beside its message.
struct Place {
    parent: usize,
    kind: u8,
    agent: String,
    namespace: String,
    context: Option<Vec<u8>>,
    prompt: i64,
    generated: i64,
    aside: Option<String>,
    uncertainty: Uncertainty,
    by: usize,
}

impl Default for Place {
    fn default() -> Self {
        let (agent, namespace) = (String::new(), String::new());
        let (context, aside, uncertainty) = (None, None, Uncertainty::UNKNOWN);
        let (prompt, generated, by) = (-1, -1, usize::MAX);
        Self { parent: 0, kind: 0, agent, namespace, context, prompt, generated, aside, uncertainty, by }
    }
}

#[derive(Debug)]
pub struct Model {
    pub nodes: Vec<Node>,
    pub index: HashMap<Key, usize>,
    pub rollouts: Vec<Rollout>,
    pub contexts: Vec<Vec<u8>>,
    pub marks: Vec<String>,
}

impl Model {
    pub fn new() -> Self {
        let (nodes, rollouts, contexts, marks) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut model = Self { nodes, index: HashMap::new(), rollouts, contexts, marks };
        model.merge(Place { kind: Kind::Root as u8, ..Place::default() }, Vec::new(), None);
        model.index.clear();
        model
    }

    fn merge(&mut self, place: Place, message: Vec<u8>, tokens: Option<u8>) -> usize {
        let tokens = tokens.map(self::tokens).filter(|tokens| !tokens.ids.is_empty());
        let said = tokens.as_ref().map_or(Said::Bytes(message.clone()), |tokens| Said::Ids(tokens.ids.clone()));
        let Place { parent, kind, agent, namespace, context, prompt, generated, aside, uncertainty, by } = place;
        let key = Key { parent, kind, agent, namespace, said, context };
        let call = (by, Figures { prompt, generated, aside: aside.clone(), uncertainty, tokens: tokens.clone() });
        if let Some(&id) = self.index.get(&key) {
            if kind == Kind::Turn as u8 {
                self.nodes[id].calls.push(call);
                self.nodes[id].believe();
            }
            return id;
        }
        self.index.insert(key.clone(), self.nodes.len());
        let (report, calls) = (None, vec![call]);
        self.nodes.push(Node { key, message, tokens, uncertainty, prompt, generated, aside, report, calls });
        self.nodes.len() - 1
    }

    fn growing(&self, id: u32) -> Result<usize, ()> {
        let at = pick(id, u32::try_from(self.rollouts.len()).unwrap()) as usize;
        self.rollouts.get(at).filter(|rollout| rollout.ended.is_none()).map(|_| at).ok_or(())
    }

    /// Carry out one operation, or refuse it; the node it reached, if it reaches one.
    #[allow(clippy::too_many_lines)]
    pub fn run(&mut self, cmd: &Cmd) -> Result<Option<usize>, ()> {
        let nodes = u32::try_from(self.nodes.len()).unwrap();
        match cmd.clone() {
            Cmd::Append { parent, message: number, tokens, agent, prompt } => {
                let kind = if prompt { Kind::Prompt } else { Kind::Message } as u8;
                let place =
                    Place { parent: pick(parent, nodes) as usize, kind, agent: name(agent), ..Place::default() };
                Ok(Some(self.merge(place, message(number), tokens)))
            }
            Cmd::Open { point, path, subgroup } => {
                if self.rollouts.iter().any(|rollout| rollout.path == path) {
                    return Err(());
                }
                let point = pick(point, nodes) as usize;
                let (ended, answer, reward, note, usage) = (None, None, f64::NAN, None, [0; 8]);
                let leaf = point;
                self.rollouts.push(Rollout { point, leaf, path, subgroup, ended, answer, reward, note, usage });
                Ok(None)
            }
            Cmd::Turn { rollout, message: number, tokens, agent, said } => {
                let at = self.growing(rollout)?;
                let count = u32::try_from(self.contexts.len()).unwrap();
                let context = said.context.filter(|_| count > 0);
                let (prompt, cached, generated) = said.figures;
                let place = Place {
                    parent: self.rollouts[at].leaf,
                    kind: Kind::Turn as u8,
                    agent: name(agent),
                    namespace: name(agent),
                    context: context.map(|id| self.contexts[pick(id, count) as usize].clone()),
                    prompt,
                    generated,
                    aside: said.aside.map(name),
                    uncertainty: uncertainty(said.entropy),
                    by: at,
                };
                let leaf = self.merge(place, message(number), tokens);
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
            Cmd::Observe { rollout, message: number, tokens, micros, failed } => {
                let at = self.growing(rollout)?;
                let kind = Kind::Observation as u8;
                let place = Place { parent: self.rollouts[at].leaf, kind, ..Place::default() };
                let leaf = self.merge(place, message(number), tokens);
                let rollout = &mut self.rollouts[at];
                rollout.leaf = leaf;
                rollout.usage[5] += 1;
                rollout.usage[6] += u64::from(failed);
                rollout.usage[7] += micros;
                Ok(Some(leaf))
            }
            Cmd::Tell { rollout, message: number, tokens } => {
                let at = self.growing(rollout)?;
                let kind = Kind::Message as u8;
                let place = Place { parent: self.rollouts[at].leaf, kind, ..Place::default() };
                let leaf = self.merge(place, message(number), tokens);
                self.rollouts[at].leaf = leaf;
                Ok(Some(leaf))
            }
            Cmd::Tokenise { node, tokens: run } => {
                let node = &mut self.nodes[pick(node, nodes) as usize];
                let late = [Kind::Prompt as u8, Kind::Observation as u8, Kind::Message as u8].contains(&node.key.kind);
                if !late {
                    return Err(());
                }
                let known = node.tokens.get_or_insert_with(|| tokens(run));
                if known.ids == tokens(run).ids { Ok(None) } else { Err(()) }
            }
            Cmd::Context { messages } => {
                if !self.contexts.contains(&messages) {
                    self.contexts.push(messages);
                }
                Ok(None)
            }
            Cmd::Close { rollout, code, answer } => {
                if code == Termination::Retried.code() {
                    let at = pick(rollout, u32::try_from(self.rollouts.len()).unwrap()) as usize;
                    let ended = self.rollouts.get_mut(at).and_then(|rollout| rollout.ended.as_mut()).ok_or(())?;
                    if *ended == code || answer.is_some() {
                        return Err(());
                    }
                    *ended = code;
                    return Ok(None);
                }
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
            Cmd::Report { node, text } => {
                let at = pick(node, nodes) as usize;
                if at == 0 {
                    return Err(());
                }
                self.nodes[at].report = Some(name(text)).filter(|text| !text.is_empty());
                Ok(None)
            }
            Cmd::Mark { text } => {
                self.marks.push(name(text));
                Ok(None)
            }
            Cmd::Note { rollout, text } => {
                let at = pick(rollout, u32::try_from(self.rollouts.len()).unwrap()) as usize;
                let rollout = self.rollouts.get_mut(at).ok_or(())?;
                rollout.note = Some(name(text)).filter(|text| !text.is_empty());
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

    /// The state at a node: path, turn, next draw and subgroup.
    pub fn state(&self, id: usize) -> Option<(Vec<u32>, u32, u32, Option<u32>)> {
        if !self.is_state(id) {
            return None;
        }
        let turn = u32::try_from(self.turns(id)).unwrap();
        let first = self.first_through(id).filter(|_| turn > 0);
        let path = first.map_or(Vec::new(), |first| first.path.clone());
        let after = |rollout: &Rollout| match rollout.path.strip_prefix(&*path)? {
            &[at, draw] if at == turn => Some(draw + 1),
            _ => None,
        };
        let draw = self.rollouts.iter().filter_map(after).max().unwrap_or(u32::from(turn > 0));
        Some((path, turn, draw.max(u32::from(turn > 0)), first.map(|first| first.subgroup)))
    }

    fn is_state(&self, id: usize) -> bool {
        let has = |kind: Kind| self.nodes.iter().any(|node| node.key.parent == id && node.key.kind == kind as u8);
        let kind = self.nodes[id].key.kind;
        if id == 0 {
            return false;
        }
        if self.turns(id) == 0 && kind != Kind::Observation as u8 {
            return !has(Kind::Prompt);
        }
        let cut = [Termination::Censored.code(), Termination::Cancelled.code()];
        let stands = |rollout: &Rollout| rollout.leaf == id && rollout.ended.is_none_or(|ended| cut.contains(&ended));
        has(Kind::Turn)
            || self.rollouts.iter().any(stands)
            || kind == Kind::Message as u8 && self.is_state(self.nodes[id].key.parent)
    }

    fn first_through(&self, id: usize) -> Option<&Rollout> {
        let first = self.rollouts.iter().find(|rollout| id == 0 || self.path(rollout.leaf).contains(&id));
        let put_in = first.is_none() && self.nodes[id].key.kind == Kind::Message as u8;
        if put_in { self.first_through(self.nodes[id].key.parent) } else { first }
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

    /// Token counts: of ids if every path has them up to its last turn and was sent as it is, else of figures; without any
    /// turn, if every path has them.
    pub fn tokens(&self) -> Totals {
        let mut passed: Vec<usize> = self.rollouts.iter().flat_map(|rollout| self.path(rollout.leaf)).collect();
        let counts = |at: &usize| {
            let tokens = self.nodes[*at].tokens.as_ref().filter(|_| self.nodes[*at].key.context.is_none())?;
            let sampled = tokens.flags.iter().filter(|flags| *flags & SAMPLED != 0).count();
            Some((u64::try_from(tokens.ids.len()).unwrap(), u64::try_from(sampled).unwrap()))
        };
        let is_turn = |at: &usize| self.nodes[*at].key.kind == Kind::Turn as u8;
        let given = |leaf: usize| {
            let path = self.path(leaf);
            let turns = path.iter().rposition(is_turn).map_or(0, |last| last + 1);
            path[..turns].to_vec()
        };
        let mut needed = passed.clone();
        if passed.iter().any(is_turn) {
            needed = self.rollouts.iter().flat_map(|rollout| given(rollout.leaf)).collect();
        }
        if needed.iter().any(|at| counts(at).is_none()) {
            return self.reported();
        }
        let sum = |nodes: &[usize]| nodes.iter().filter_map(counts).fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
        let (flat, flat_generated) = sum(&passed);
        passed.sort_unstable();
        passed.dedup();
        let (tree, tree_generated) = sum(&passed);
        let longest = self.rollouts.iter().map(|rollout| sum(&self.path(rollout.leaf)).0).max().unwrap_or(0);
        Totals { flat, tree, flat_generated, tree_generated, longest, unreported: 0, exact: true }
    }

    /// Token counts of the servers' figures, path by path.
    fn reported(&self) -> Totals {
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
