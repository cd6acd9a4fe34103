//! The model: every path by recursion, one token at a time.

use std::collections::HashSet;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use trunkline_core::pack::{Export, ForestTokens, TokenValues, Unknown};
use trunkline_core::{Forest, SAMPLED, SYNTHETIC, TRUNCATED, TokenBuffer};

/// A forest with tokens and all that can be asked of it.
#[derive(Clone, Debug)]
pub struct Case {
    pub forest: Forest,
    pub offsets: Vec<u64>,
    pub tokens: TokenBuffer,
    pub rollouts: Option<Vec<u32>>,
    pub masked: Option<Vec<u8>>,
    pub leave_out: bool,
    pub splits: Option<Vec<u32>>,
    pub values: (u8, Vec<f64>),
}

type Token = (u32, f32, i32, u8);

fn token() -> impl Strategy<Value = Token> {
    let logprob = prop_oneof![8 => -9f32..0.0, 2 => Just(0.0), 1 => Just(f32::NAN), 1 => Just(f32::NEG_INFINITY)];
    let flags = select(vec![0, 0, SAMPLED, SAMPLED, SAMPLED | TRUNCATED, SYNTHETIC, SAMPLED | SYNTHETIC]);
    (any::<u32>(), logprob, -1..5, flags)
}

/// Any forest of up to 13 nodes and 9 rollouts, and any way to export it.
pub fn case() -> impl Strategy<Value = Case> {
    let nodes = vec((any::<Index>(), prop::bool::weighted(0.2), vec(token(), 0..4)), 1..14);
    nodes.prop_flat_map(|nodes| {
        let parents: Vec<u32> = (0..nodes.len())
            .map(|node| if nodes[node].1 || node == 0 { node } else { nodes[node].0.index(node) } as u32)
            .collect();
        let count = nodes.len();
        let rollouts = vec((0..count as u32, any::<Index>(), 0..2u8, -3.0..3.0f64), 0..10);
        let figures = vec(-3.0..3.0f64, count);
        (Just((nodes, parents)), rollouts, figures, 0..4u8, any::<bool>(), any::<[bool; 2]>()).prop_flat_map(build)
    })
}

type Drawn = ((Vec<(Index, bool, Vec<Token>)>, Vec<u32>), Vec<(u32, Index, u8, f64)>, Vec<f64>, u8, bool, [bool; 2]);

fn build((shape, rollouts, figures, landing, leave_out, [mask, split]): Drawn) -> impl Strategy<Value = Case> {
    let (mut nodes, parents) = shape;
    // A tree without tokens is refused: its root gets one.
    let roots = Forest::new(parents.clone(), Vec::new()).unwrap().roots();
    for root in 0..nodes.len() {
        if roots.iter().zip(&nodes).all(|(&of, node)| of as usize != root || node.2.is_empty()) {
            nodes[root].2.push((7, -0.5, 1, SAMPLED));
        }
    }
    let mut tokens = TokenBuffer::default();
    let mut offsets = vec![0];
    for (_, _, run) in &nodes {
        for &(id, logprob, version, flags) in run {
            tokens.ids.push(id);
            tokens.logprobs.push(logprob);
            tokens.versions.push(version);
            tokens.flags.push(flags);
        }
        offsets.push(tokens.ids.len() as u64);
    }
    let forest = Forest::new(parents, rollouts.iter().map(|rollout| rollout.0).collect()).unwrap();
    let on_path = |(leaf, at, ..): &(u32, Index, u8, f64)| *at.get(&path(&forest, *leaf));
    let all: Vec<u32> = (0..rollouts.len() as u32).collect();
    let values = match landing {
        1 => rollouts.iter().map(|rollout| rollout.3).collect(),
        2 => figures,
        _ => tokens.ids.iter().map(|&id| f64::from(id % 1000) / 100.0).collect(),
    };
    let case = Case {
        offsets,
        tokens,
        rollouts: None,
        masked: mask.then(|| rollouts.iter().map(|rollout| rollout.2).collect()),
        leave_out,
        splits: split.then(|| rollouts.iter().map(on_path).collect()),
        values: (landing, values),
        forest,
    };
    let count = all.len();
    option::of(subsequence(all, 0..=count).prop_shuffle()).prop_map(move |rollouts| Case { rollouts, ..case.clone() })
}

/// Nodes from the root to a node.
pub fn path(forest: &Forest, node: u32) -> Vec<u32> {
    let parent = forest.parents()[node as usize];
    let mut nodes = if parent == node { Vec::new() } else { path(forest, parent) };
    nodes.push(node);
    nodes
}

/// A rollout as the model packs it.
#[derive(Clone, Debug)]
pub struct Expected {
    pub rollout: usize,
    pub root: u32,
    /// Tokens of the runs, in order of the path.
    pub path: Vec<usize>,
    pub prompt: usize,
    /// For each of them whether it is trained, whether an unknown log-probability alone keeps it from being, its value.
    pub trained: Vec<bool>,
    pub unknown: Vec<bool>,
    pub values: Vec<f64>,
}

impl Case {
    pub fn export(&self) -> Export<'_> {
        let values = match self.values.0 {
            0 => TokenValues::Nothing,
            1 => TokenValues::Rollout(&self.values.1),
            2 => TokenValues::Node(&self.values.1),
            _ => TokenValues::Token(&self.values.1),
        };
        let (rollouts, masked, splits) = (self.rollouts.as_deref(), self.masked.as_deref(), self.splits.as_deref());
        Export { rollouts, masked, leave_out: self.leave_out, splits, values, kept: None, unknown: Unknown::Mask }
    }

    pub fn runs(&self) -> ForestTokens<'_> {
        ForestTokens::new(&self.forest, &self.offsets, self.tokens.as_slice()).unwrap()
    }

    pub fn expected(&self) -> Vec<Expected> {
        let all: Vec<u32> = (0..self.forest.leaves().len() as u32).collect();
        let chosen = self.rollouts.clone().unwrap_or(all);
        let masked = |rollout: usize| self.masked.as_ref().is_some_and(|masked| masked[rollout] == 1);
        let kept =
            chosen.iter().map(|&rollout| rollout as usize).filter(|&rollout| !(self.leave_out && masked(rollout)));
        kept.map(|rollout| self.one(rollout, masked(rollout))).collect()
    }

    fn one(&self, rollout: usize, masked: bool) -> Expected {
        let nodes = path(&self.forest, self.forest.leaves()[rollout]);
        let run = |node: u32| self.offsets[node as usize] as usize..self.offsets[node as usize + 1] as usize;
        let tokens: Vec<(usize, u32)> = nodes.iter().flat_map(|&node| run(node).map(move |at| (at, node))).collect();
        let sampled = |at: usize| [SAMPLED, SAMPLED | TRUNCATED].contains(&self.tokens.flags[at]);
        let prompt = match &self.splits {
            Some(splits) => tokens.iter().filter(|(_, node)| *node <= splits[rollout]).count(),
            None => tokens.iter().position(|(at, _)| sampled(*at)).unwrap_or(tokens.len()),
        };
        let wanted = |(place, &(at, _)): (usize, &(usize, u32))| !masked && place >= prompt && sampled(at);
        let wanted: Vec<bool> = tokens.iter().enumerate().map(wanted).collect();
        let known = |&(at, _): &(usize, u32)| self.tokens.logprobs[at].is_finite();
        let trained: Vec<bool> = tokens.iter().zip(&wanted).map(|(token, wanted)| *wanted && known(token)).collect();
        let unknown = wanted.iter().zip(&trained).map(|(wanted, trained)| *wanted && !trained).collect();
        let value = |(&(at, node), &trained): (&(usize, u32), &bool)| match self.values.0 {
            1 if trained => self.values.1[rollout],
            2 if trained => self.values.1[node as usize],
            3 if trained => self.values.1[at],
            _ => 0.0,
        };
        let values = tokens.iter().zip(&trained).map(value).collect();
        let path = tokens.iter().map(|token| token.0).collect();
        Expected { rollout, root: nodes[0], path, prompt, trained, unknown, values }
    }

    /// Tokens, each once, that an unknown log-probability keeps from being trained.
    pub fn unknown(expected: &[Expected]) -> usize {
        let of_row =
            |row: &Expected| row.path.iter().zip(&row.unknown).filter(|at| *at.1).map(|at| *at.0).collect::<Vec<_>>();
        expected.iter().flat_map(of_row).collect::<HashSet<_>>().len()
    }

    pub fn logprob(&self, at: usize) -> f32 {
        let sampled = [SAMPLED, SAMPLED | TRUNCATED].contains(&self.tokens.flags[at]);
        if sampled && self.tokens.logprobs[at].is_finite() { self.tokens.logprobs[at] } else { 0.0 }
    }

    /// Whether these are the tokens of the runs, NaN for NaN.
    pub fn same(&self, tokens: &TokenBuffer, path: &[usize]) -> bool {
        let bits = |column: &[f32]| column.iter().map(|logprob| logprob.to_bits()).collect::<Vec<_>>();
        let pick = |at: &usize| self.tokens.logprobs[*at];
        tokens.ids == path.iter().map(|&at| self.tokens.ids[at]).collect::<Vec<_>>()
            && bits(&tokens.logprobs) == bits(&path.iter().map(pick).collect::<Vec<_>>())
            && tokens.versions == path.iter().map(|&at| self.tokens.versions[at]).collect::<Vec<_>>()
            && tokens.flags == path.iter().map(|&at| self.tokens.flags[at]).collect::<Vec<_>>()
    }
}
