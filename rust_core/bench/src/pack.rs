//! Packing.

use std::hint::black_box;

use trunkline_core::pack::{Export, Fit, ForestTokens, Oversize, Padded, Ragged, TokenValues, TreePacked, Weighting};
use trunkline_core::{Forest, Random, SAMPLED, TokenBuffer};

use crate::case::Case;

const TREES: u32 = 64;
const ROLLOUTS: u32 = 16;
/// How often a path branches in two: before each step but the first.
const LEVELS: u32 = 4;

/// 64 trees of 16 rollouts: a prompt of 120 tokens, then five steps of a turn and what it observed, 20 to 59 tokens each;
/// about 500,000 tokens as flat rows.
struct Batch {
    forest: Forest,
    offsets: Vec<u64>,
    tokens: TokenBuffer,
    values: Vec<f64>,
}

impl Batch {
    fn new() -> Self {
        let (mut parents, mut leaves) = (Vec::new(), Vec::new());
        let (mut offsets, mut tokens) = (vec![0], TokenBuffer::default());
        let mut random = Random::new(7);
        let mut node = |parent: Option<u32>, len: u32, flags: u8| {
            let this = u32::try_from(parents.len()).unwrap_or_default();
            parents.push(parent.unwrap_or(this));
            for _ in 0..len {
                tokens.ids.push(u32::try_from(random.below(150_000)).unwrap_or_default());
                tokens.logprobs.push(if flags == SAMPLED { -0.25 } else { 0.0 });
                tokens.versions.push(if flags == SAMPLED { 3 } else { -1 });
                tokens.flags.push(flags);
            }
            offsets.push(tokens.ids.len() as u64);
            this
        };
        for tree in 0..TREES {
            let mut ends = vec![node(None, 120, 0)];
            for level in 0..=LEVELS {
                let starts = std::mem::take(&mut ends);
                for start in starts {
                    for _ in 0..if level == 0 { 1 } else { 2 } {
                        let mut end = start;
                        for step in 0..2 {
                            let flags = if step % 2 == 0 { SAMPLED } else { 0 };
                            end = node(Some(end), 20 + (tree * 7 + level * 11 + step * 5) % 40, flags);
                        }
                        ends.push(end);
                    }
                }
            }
            leaves.extend(ends);
        }
        let values = (0..TREES * ROLLOUTS).map(|rollout| f64::from(rollout % 5) - 2.0).collect();
        Self { forest: Forest::new(parents, leaves).unwrap_or_default(), offsets, tokens, values }
    }

    /// A kernel beside a copy of everything it makes.
    fn case<T: Clone + Default + 'static>(
        self,
        pack: impl Fn(&ForestTokens<'_>, &Export<'_>) -> trunkline_core::Result<T> + 'static,
        tokens: impl Fn(&T) -> usize,
    ) -> Case {
        let work = move || {
            let export = Export { values: TokenValues::Rollout(&self.values), ..Export::default() };
            let runs = ForestTokens::new(&self.forest, &self.offsets, self.tokens.as_slice());
            runs.and_then(|runs| pack(&runs, &export)).unwrap_or_default()
        };
        let packed = work();
        Case {
            item: "packed token",
            items: tokens(&packed),
            floor: "a copy of the finished columns into fresh memory",
            kernel: Box::new(move || {
                black_box(work());
            }),
            baseline: Box::new(move || {
                black_box(black_box(&packed).clone());
            }),
        }
    }
}

/// Rectangles as wide as the longest prompt and response.
pub fn padded() -> Case {
    let pack = |runs: &ForestTokens<'_>, export: &Export<'_>| Padded::new(runs, export, &Fit::default(), 0);
    Batch::new().case(pack, |packed| packed.input_ids.len())
}

/// Rows end to end.
pub fn ragged() -> Case {
    let pack = |runs: &ForestTokens<'_>, export: &Export<'_>| Ragged::new(runs, export, &Fit::default());
    Batch::new().case(pack, |packed| packed.ids.len())
}

/// Trees in rows of at most 32,768 tokens.
pub fn tree() -> Case {
    let pack = |runs: &ForestTokens<'_>, export: &Export<'_>| {
        TreePacked::new(runs, export, Weighting::Share, Some(1 << 15), Oversize::Error)
    };
    Batch::new().case(pack, |packed| packed.ids.len())
}
