//! Selection.

use std::hint::black_box;

use trunkline_core::select::{Formula, LogprobColumns, Scoring, Search, surprising, uniform};
use trunkline_core::{Forest, Random, SAMPLED};

use crate::case::Case;

const NODES: u32 = 1 << 16;
const PICKS: usize = 8;

/// A tree that grew at random, with the visits of a search.
struct Grown {
    parents: Vec<u32>,
    visits: Vec<u32>,
    values: Vec<f64>,
}

impl Grown {
    fn new() -> Self {
        let mut random = Random::new(1);
        let parents: Vec<u32> = (0..NODES).map(|node| parent(&mut random, node)).collect();
        let mut visits = vec![1u32; parents.len()];
        for (node, &parent) in parents.iter().enumerate().skip(1).rev() {
            visits[parent as usize] += visits[node];
        }
        let values = parents.iter().map(|_| random.unit()).collect();
        Self { parents, visits, values }
    }

    /// A search in which rollouts end at every leaf.
    fn search(&self) -> Option<Search> {
        let leaves = (0u32..).zip(&self.visits).filter_map(|(node, &visits)| (visits == 1).then_some(node));
        let forest = Forest::new(self.parents.clone(), leaves.collect()).ok()?;
        let scoring = Scoring { formula: Formula::Uct, c: 0.5, offset: 1.0, loss: 0.0 };
        Search::new(forest, self.visits.clone(), self.values.clone(), vec![0; self.parents.len()], scoring).ok()
    }

    /// The least that whoever compares children with their parents has to do.
    fn gather(self) -> Box<dyn FnMut()> {
        Box::new(move || {
            let above = black_box(&self.parents).iter().map(|&parent| u64::from(self.visits[parent as usize]));
            black_box(above.sum::<u64>());
        })
    }
}

fn parent(random: &mut Random, node: u32) -> u32 {
    u32::try_from(random.below(u64::from(node))).unwrap_or(0)
}

/// Eight picks down a tree of 65,536 nodes in which the leaves have room.
pub fn uct() -> Case {
    let grown = Grown::new();
    let mut search = grown.search();
    let room: Vec<u32> = grown.visits.iter().map(|&visits| u32::from(visits == 1)).collect();
    let kernel = move || {
        if let Some(search) = &mut search {
            let _ = black_box(search.descend(0, black_box(&room), PICKS));
        }
    };
    Case {
        item: "node",
        items: NODES as usize,
        floor: "gather of parents",
        kernel: Box::new(kernel),
        baseline: grown.gather(),
    }
}

/// The scores of 65,536 nodes.
pub fn scores() -> Case {
    let grown = Grown::new();
    let search = grown.search();
    let kernel = move || {
        black_box(black_box(&search).as_ref().map(Search::scores));
    };
    Case {
        item: "node",
        items: NODES as usize,
        floor: "gather of parents",
        kernel: Box::new(kernel),
        baseline: grown.gather(),
    }
}

/// Eight of 65,536 points without replacement.
pub fn draw() -> Case {
    let points: Vec<u32> = (0..NODES).collect();
    let copied = points.clone();
    let mut random = Random::new(1);
    let kernel = move || {
        let _ = black_box(uniform(black_box(&points), PICKS, false, &mut random));
    };
    let baseline = move || {
        black_box(black_box(&copied).clone());
    };
    Case {
        item: "point",
        items: NODES as usize,
        floor: "copy of the points",
        kernel: Box::new(kernel),
        baseline: Box::new(baseline),
    }
}

/// The eight most surprising of 65,536 tokens in 64 turns.
pub fn surprisal() -> Case {
    const TURNS: u32 = 64;
    let mut random = Random::new(1);
    let len = NODES / TURNS;
    let logprobs: Vec<f32> = (0..NODES).map(|_| logprob(&mut random)).collect();
    let same = logprobs.clone();
    let offsets: Vec<u64> = (0..=TURNS).map(|turn| u64::from(turn * len)).collect();
    let flags = vec![SAMPLED; logprobs.len()];
    // A chain.
    let forest = Forest::new((0..TURNS).map(|turn| turn.saturating_sub(1)).collect(), vec![TURNS - 1]).ok();
    let kernel = move || {
        let runs = LogprobColumns { offsets: &offsets, logprobs: &logprobs, flags: &flags, cuts: None };
        if let Some(forest) = &forest {
            let _ = black_box(surprising(forest, black_box(&runs), PICKS, u32::MAX, false));
        }
    };
    let baseline = move || {
        black_box(black_box(&same).iter().filter(|&&logprob| logprob < -99.0).count());
    };
    Case {
        item: "token",
        items: NODES as usize,
        floor: "a compare of each",
        kernel: Box::new(kernel),
        baseline: Box::new(baseline),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "half the bits do")]
fn logprob(random: &mut Random) -> f32 {
    (1.0 - random.unit()).ln() as f32
}
