//! The prefix index, on token paths as tree rollouts make them: trunks that several tries share, turns and observations of
//! hundreds of tokens. Every set of paths is larger than a second-level cache.

use std::hint::black_box;
use std::iter::successors;
use std::ops::Range;

use trunkline_core::{Prefix, PrefixId, Random, SAMPLED, SpaceId, TokenBuffer, TokenSlice};

use crate::case::Case;

/// Token ids as a vocabulary of today has them.
const VOCABULARY: u64 = 150_000;

/// What trees are made of.
#[derive(Clone, Copy)]
struct Shape {
    tasks: usize,
    prompt: usize,
    /// Tries of a task: chains from the prompt, and forks of each at a random turn.
    chains: usize,
    forks: usize,
    turns: usize,
    /// Shortest and longest turn with its observation.
    turn: (usize, usize),
}

/// 24 tasks of 16 tries, 6 turns of 200 to 900 tokens each.
const TREES: Shape = Shape { tasks: 24, prompt: 600, chains: 4, forks: 3, turns: 6, turn: (200, 900) };

/// The same tries without forks and without a common prompt: nothing is shared.
const CHAINS: Shape = Shape { tasks: 320, prompt: 600, chains: 1, forks: 0, turns: 6, turn: (200, 900) };

/// Wide trees of turns of 2 to 6 tokens.
const SHORT: Shape = Shape { tasks: 64, prompt: 8, chains: 64, forks: 7, turns: 8, turn: (2, 6) };

/// A try, turn after turn; the first is the prompt.
type Try = Vec<TokenBuffer>;

impl Shape {
    fn tries(self) -> Vec<Try> {
        let mut random = Random::new(1);
        let mut tries: Vec<Try> = Vec::new();
        for _ in 0..self.tasks {
            let prompt = run(&mut random, self.prompt, 0);
            for _ in 0..self.chains {
                let chain = self.grow(&mut random, vec![prompt.clone()]);
                for _ in 0..self.forks {
                    let shared = 1 + random.index(self.turns);
                    tries.push(self.grow(&mut random, chain[..shared].to_vec()));
                }
                tries.push(chain);
            }
        }
        tries
    }

    fn grow(self, random: &mut Random, mut turns: Try) -> Try {
        let (least, most) = self.turn;
        while turns.len() <= self.turns {
            let len = least + random.index(most - least);
            turns.push(run(random, len, SAMPLED));
        }
        turns
    }
}

fn run(random: &mut Random, len: usize, flags: u8) -> TokenBuffer {
    let ids = (0..len).map(|_| u32::try_from(random.below(VOCABULARY)).unwrap_or_default()).collect();
    TokenBuffer { ids, logprobs: vec![-0.5; len], versions: vec![1; len], flags: vec![flags; len] }
}

fn extend(all: &mut TokenBuffer, run: &TokenSlice<'_>) {
    all.ids.extend_from_slice(run.ids);
    all.logprobs.extend_from_slice(run.logprobs);
    all.versions.extend_from_slice(run.versions);
    all.flags.extend_from_slice(run.flags);
}

/// Whole paths, one try each.
fn paths(tries: &[Try]) -> Vec<TokenBuffer> {
    let join = |turns: &Try| {
        let mut path = TokenBuffer::default();
        for turn in turns {
            extend(&mut path, &turn.as_slice());
        }
        path
    };
    tries.iter().map(join).collect()
}

/// An index with one space, and the space.
fn index() -> (Prefix, SpaceId) {
    let mut prefix = Prefix::default();
    let space = prefix.space("model").unwrap_or(SpaceId::new(0));
    (prefix, space)
}

/// Insert whole paths into an index that was reset; the floor copies the four columns of every path into one buffer.
fn inserted(shape: Shape) -> Case {
    let paths = paths(&shape.tries());
    let items = paths.iter().map(|path| path.ids.len()).sum();
    let copied = paths.clone();
    let (mut prefix, _) = index();
    let kernel = move || {
        prefix.reset();
        let space = prefix.space("model").unwrap_or(SpaceId::new(0));
        for path in &paths {
            let _ = black_box(prefix.insert(space, &path.as_slice()));
        }
    };
    let mut all = TokenBuffer::default();
    let baseline = move || {
        clear(&mut all);
        for path in &copied {
            extend(&mut all, &path.as_slice());
        }
        black_box(&all);
    };
    Case { item: "token", items, floor: "memcpy", kernel: Box::new(kernel), baseline: Box::new(baseline) }
}

fn clear(all: &mut TokenBuffer) {
    all.ids.clear();
    all.logprobs.clear();
    all.versions.clear();
    all.flags.clear();
}

/// Whole paths of trees: of every 100 tokens inserted 59 are new, and 41 are found.
pub fn insert() -> Case {
    inserted(TREES)
}

/// Whole paths that share nothing: every token is new.
pub fn fresh() -> Case {
    inserted(CHAINS)
}

/// Whole paths through many short edges, 36 tokens over 4.5 nodes a path: of every 100 tokens inserted 48 are new.
pub fn short() -> Case {
    inserted(SHORT)
}

/// Append turn after turn of the same tries to nodes that are known, every token new; the floor copies the four columns of
/// every turn into one buffer.
pub fn append() -> Case {
    let tries = CHAINS.tries();
    let items = tries.iter().flatten().map(|turn| turn.ids.len()).sum();
    let copied = tries.clone();
    let (mut prefix, _) = index();
    let mut ends = vec![PrefixId::new(0); tries.len()];
    let kernel = move || {
        prefix.reset();
        let space = prefix.space("model").unwrap_or(SpaceId::new(0));
        for end in &mut ends {
            *end = prefix.insert(space, &TokenSlice::default()).unwrap_or(PrefixId::new(0));
        }
        for turn in 0..=CHAINS.turns {
            for (end, turns) in ends.iter_mut().zip(&tries) {
                *end = prefix.append(*end, &turns[turn].as_slice()).unwrap_or(*end);
            }
        }
        black_box(&ends);
    };
    let mut all = TokenBuffer::default();
    let baseline = move || {
        clear(&mut all);
        for turn in 0..=CHAINS.turns {
            for turns in &copied {
                extend(&mut all, &turns[turn].as_slice());
            }
        }
        black_box(&all);
    };
    Case { item: "token", items, floor: "memcpy", kernel: Box::new(kernel), baseline: Box::new(baseline) }
}

/// Find whole paths of trees, each with a turn more than is there; tokens found are counted. The floor compares the same
/// ids with the same stored runs, whose places it was told.
pub fn longest() -> Case {
    let paths = paths(&TREES.tries());
    let items = paths.iter().map(|path| path.ids.len()).sum();
    let (mut prefix, space) = index();
    let ends: Vec<_> = paths.iter().filter_map(|path| prefix.insert(space, &path.as_slice()).ok()).collect();
    let queries: Vec<Vec<u32>> = paths.into_iter().map(|path| [path.ids, vec![0; 400]].concat()).collect();
    let runs: Vec<_> = ends.iter().map(|&end| line(&prefix, end)).collect();
    let (stored, told) = (prefix.clone(), queries.clone());
    let kernel = move || {
        for query in &queries {
            let _ = black_box(prefix.longest(space, query));
        }
    };
    let baseline = move || {
        for (query, runs) in told.iter().zip(&runs) {
            for (node, place) in runs {
                black_box(stored.span(*node).is_ok_and(|run| run.ids == &query[place.clone()]));
            }
        }
    };
    Case { item: "token", items, floor: "one compare", kernel: Box::new(kernel), baseline: Box::new(baseline) }
}

/// The nodes of a path, and which of its tokens each holds.
fn line(prefix: &Prefix, end: PrefixId) -> Vec<(PrefixId, Range<usize>)> {
    let node = |id| prefix.node(id).ok().filter(|node| node.parent != id);
    let nodes = successors(Some(end), |&id| node(id).map(|node| node.parent));
    let mut line: Vec<_> = nodes.filter_map(|id| Some((id, node(id)?))).collect();
    line.reverse();
    line.into_iter().map(|(id, node)| (id, node.depth - node.len..node.depth)).collect()
}
