//! The most surprising tokens of a tree: where to sample again; after `entropy_guided_chain` of `TreeRL` (`EPTree`).

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::error::{Result, length};
use crate::forest::{Forest, bounds};
use crate::storage::tokens::SAMPLED;

use crate::validation::{few, within};

/// The tokens of a forest's nodes.
#[derive(Clone, Copy, Debug)]
pub struct LogprobColumns<'a> {
    /// One element more than nodes: node n has the tokens `offsets[n]..offsets[n + 1]`.
    pub offsets: &'a [u64],
    /// Log-probabilities of all tokens, in nats; NaN where not known.
    pub logprobs: &'a [f32],
    /// Their flags.
    pub flags: &'a [u8],
    /// Per node how many tokens at its start may be sampled again, such as all up to a word that announces the answer; its
    /// length or more for all. Left out, all may.
    pub cuts: Option<&'a [u32]>,
}

/// Tokens looked at together.
const BLOCK: usize = 64;

/// A token of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Position {
    /// The node.
    pub node: u32,
    /// Index of the token in it.
    pub token: u32,
}

/// The `count` most surprising tokens (lowest log-probability) on the paths of a forest's rollouts, most surprising first.
/// Of two that are equal the one of the node that rollouts pass first comes first, then the earlier one.
///
/// Never picked are: the first token of a node, where forking is drawing the whole turn again; tokens at or after the node's
/// cut; those at or beyond `limit` tokens from the root; those that were not sampled or whose log-probability is not known.
/// Fewer come back where fewer are left.
///
/// With `diverse`, out of twice as many the most surprising is taken, then always the one farthest from all taken. Tokens of
/// one node are as far apart as their indices, those of different nodes farther than any in one.
///
/// # Errors
/// [`crate::Error::Length`] or [`crate::Error::Value`] if columns do not fit each other, [`crate::Error::Value`] naming a
/// positive log-probability of what might be picked, or if more than 4,096 diverse tokens are asked for.
pub fn surprising(
    forest: &Forest,
    runs: &LogprobColumns<'_>,
    count: usize,
    limit: u32,
    diverse: bool,
) -> Result<Vec<Position>> {
    let bounds = runs.check(forest)?;
    if diverse {
        few("k", count)?;
    }
    let mut leaders = Leaders::new(if diverse { 2 * count } else { count });
    let order = forest.passed();
    // Per node, tokens from the root to its end.
    let mut ends = vec![0; forest.parents().len()];
    for (rank, &node) in (0u32..).zip(&order) {
        let at = node as usize;
        let parent = forest.parents()[at] as usize;
        let before = if parent == at { 0 } else { ends[parent] };
        let (start, len) = (bounds[at], bounds[at + 1] - bounds[at]);
        ends[at] = before + len;
        let cut = runs.cuts.map_or(len, |cuts| cuts[at] as usize);
        let open = start..start + len.min(cut).min((limit as usize).saturating_sub(before));
        leaders.read(rank, node, &runs.logprobs[open.clone()], &runs.flags[open])?;
    }
    let found = leaders.into_positions(&order);
    Ok(if diverse { spread(&found, count) } else { found })
}

impl LogprobColumns<'_> {
    /// Where each node's tokens are.
    fn check(&self, forest: &Forest) -> Result<Vec<usize>> {
        let nodes = forest.parents().len();
        length("flags", self.logprobs.len(), self.flags.len())?;
        length("cuts", nodes, self.cuts.map_or(nodes, <[u32]>::len))?;
        bounds(nodes, self.offsets, self.logprobs.len())
    }
}

/// The greater, the less surprising or the later.
#[derive(Clone, Copy, PartialEq)]
struct Candidate {
    logprob: f32,
    /// Position of its node among those that rollouts pass.
    rank: u32,
    token: u32,
}

impl Eq for Candidate {}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        let place = (self.rank, self.token).cmp(&(other.rank, other.token));
        self.logprob.total_cmp(&other.logprob).then(place)
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The most surprising tokens so far.
struct Leaders {
    heap: BinaryHeap<Candidate>,
    count: usize,
    /// Only a token below this log-probability is one: of two that are equal the earlier stays.
    limit: f32,
}

impl Leaders {
    const fn new(count: usize) -> Self {
        let limit = if count == 0 { f32::NEG_INFINITY } else { f32::INFINITY };
        Self { heap: BinaryHeap::new(), count, limit }
    }

    /// Take in what may be picked of a node.
    fn read(&mut self, rank: u32, node: u32, logprobs: &[f32], flags: &[u8]) -> Result<()> {
        for first in (1..logprobs.len()).step_by(BLOCK) {
            let tokens = first..logprobs.len().min(first + BLOCK);
            // Counting does not branch, so that several are compared at a time; most blocks hold nothing.
            let block = &logprobs[tokens.clone()];
            if block.iter().filter(|&&logprob| logprob < self.limit || logprob > 0.0).count() == 0 {
                continue;
            }
            for token in tokens.filter(|&token| flags[token] & SAMPLED != 0) {
                let logprob = logprobs[token];
                let name = || format!("the log-probability of token {token} of node {node} is {logprob}");
                within(logprob <= 0.0 || logprob.is_nan(), name, "at most 0, or NaN where it is not known")?;
                if logprob < self.limit {
                    // Adding 0 makes one number of both zeros.
                    let token = u32::try_from(token).unwrap_or(u32::MAX);
                    self.push(Candidate { logprob: logprob + 0.0, rank, token });
                }
            }
        }
        Ok(())
    }

    fn push(&mut self, candidate: Candidate) {
        self.heap.push(candidate);
        if self.heap.len() > self.count {
            self.heap.pop();
        }
        if self.heap.len() == self.count {
            self.limit = self.heap.peek().map_or(self.limit, |worst| worst.logprob);
        }
    }

    fn into_positions(self, order: &[u32]) -> Vec<Position> {
        let position = |found: Candidate| Position { node: order[found.rank as usize], token: found.token };
        self.heap.into_sorted_vec().into_iter().map(position).collect()
    }
}

/// `count` of some positions: the first, then always the one farthest from those taken, the earlier in the list where two
/// are as far.
fn spread(found: &[Position], count: usize) -> Vec<Position> {
    let mut gaps = vec![u32::MAX; found.len()];
    let mut taken = Vec::with_capacity(count.min(found.len()));
    while taken.len() < count {
        let farthest = (0..found.len())
            .filter(|&at| gaps[at] > 0)
            .reduce(|best, at| if gaps[at] > gaps[best] { at } else { best });
        let Some(farthest) = farthest else { break };
        taken.push(found[farthest]);
        for (gap, &at) in gaps.iter_mut().zip(found) {
            *gap = (*gap).min(distance(at, found[farthest]));
        }
    }
    taken
}

const fn distance(one: Position, other: Position) -> u32 {
    if one.node == other.node { one.token.abs_diff(other.token) } else { u32::MAX }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::{LogprobColumns, Position, surprising};
    use crate::forest::Forest;

    const NAN: f32 = f32::NAN;
    const RUNS: LogprobColumns<'static> = LogprobColumns {
        offsets: &[0, 2, 7, 7, 11, 14],
        logprobs: &[0.0, 0.0, -9.0, -1.0, -3.0, NAN, -2.0, -9.0, -3.0, -0.5, -9.0, -9.0, 9.0, -4.0],
        flags: &[0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1],
        cuts: Some(&[9, 9, 9, 3, 9]),
    };

    /// A prompt of two tokens, a turn of five, and below that one of none, one of four that is cut after three, and, below
    /// the latter, one of three of which the second was not sampled.
    fn forest(leaves: &[u32]) -> Forest {
        Forest::new(vec![0, 0, 1, 1, 3], leaves.to_vec()).unwrap()
    }

    fn picks(count: usize, limit: u32, diverse: bool) -> Vec<(u32, u32)> {
        let found = surprising(&forest(&[2, 4]), &RUNS, count, limit, diverse).unwrap();
        found.into_iter().map(|Position { node, token }| (node, token)).collect()
    }

    #[test]
    fn the_most_surprising_come_first_and_the_masked_never() {
        assert_eq!(picks(9, u32::MAX, false), [(4, 2), (1, 2), (3, 1), (1, 4), (1, 1), (3, 2)]);
        assert_eq!(picks(2, u32::MAX, false), [(4, 2), (1, 2)]);
        assert_eq!(picks(9, 13, false), [(1, 2), (3, 1), (1, 4), (1, 1), (3, 2)]);
        assert_eq!(picks(9, 9, false), [(1, 2), (3, 1), (1, 4), (1, 1)]);
        assert_eq!(picks(9, 5, false), [(1, 2), (1, 1)]);
        assert!(picks(0, u32::MAX, false).is_empty() && picks(9, 0, false).is_empty());
    }

    #[test]
    fn only_what_rollouts_pass_counts_and_the_first_to_pass_wins_a_tie() {
        let tokens = |leaves: &[u32], logprobs: &[f32]| {
            let runs = LogprobColumns { offsets: &[0, 0, 2, 4], logprobs, flags: &[1; 4], cuts: None };
            let side_by_side = Forest::new(vec![0, 0, 0], leaves.to_vec()).unwrap();
            surprising(&side_by_side, &runs, 9, 9, false).unwrap().iter().map(|at| at.node).collect::<Vec<_>>()
        };
        assert_eq!(tokens(&[1, 2], &[-1.0; 4]), [1, 2]);
        assert_eq!(tokens(&[2, 1], &[-1.0; 4]), [2, 1]);
        assert_eq!(tokens(&[2], &[-1.0; 4]), [2]);
        assert_eq!(tokens(&[2, 1], &[0.0, -2.0, 0.0, -1.0]), [1, 2]);
    }

    #[test]
    fn diverse_picks_go_to_other_nodes_first_then_far_from_each_other() {
        assert_eq!(picks(3, u32::MAX, true), [(4, 2), (1, 2), (3, 1)]);
        assert_eq!(picks(5, u32::MAX, true), [(4, 2), (1, 2), (3, 1), (1, 4), (1, 1)]);
        let logprobs: Vec<f32> = [0.0, -9.0, -8.9, -8.8, -1.0, -1.1, -1.2].to_vec();
        let one = LogprobColumns { offsets: &[0, 7], logprobs: &logprobs, flags: &[1; 7], cuts: None };
        let chain = Forest::new(vec![0], vec![0]).unwrap();
        let tokens =
            |diverse| surprising(&chain, &one, 3, 99, diverse).unwrap().iter().map(|at| at.token).collect::<Vec<_>>();
        assert_eq!(tokens(false), [1, 2, 3]);
        assert_eq!(tokens(true), [1, 6, 3]);
    }

    #[test]
    fn columns_that_do_not_fit_are_refused() {
        let refuse = |runs: LogprobColumns<'_>| surprising(&forest(&[4]), &runs, 1, 99, false).unwrap_err().to_string();
        assert_eq!(refuse(LogprobColumns { cuts: Some(&[1]), ..RUNS }), "1 cuts where 5 are needed");
        assert_eq!(refuse(LogprobColumns { flags: &[1], ..RUNS }), "1 flags where 14 are needed");
        assert_eq!(refuse(LogprobColumns { offsets: &[0, 14], ..RUNS }), "2 offsets where 6 are needed");
        let text = refuse(LogprobColumns { offsets: &[0, 2, 1, 7, 11, 14], ..RUNS });
        assert!(text.starts_with("offset 2 of the runs is 1"), "{text}");
        let flags = [1; 14];
        let text = refuse(LogprobColumns { flags: &flags, ..RUNS });
        assert!(text.starts_with("the log-probability of token 1 of node 4 is 9"), "{text}");
        // Also where nothing below it would be picked any more.
        let mut logprobs = vec![-1.0; 200];
        logprobs[190] = 0.5;
        let long = LogprobColumns { offsets: &[0, 200], logprobs: &logprobs, flags: &[1; 200], cuts: None };
        let chain = Forest::new(vec![0], vec![0]).unwrap();
        let text = surprising(&chain, &long, 1, 999, false).unwrap_err().to_string();
        assert!(text.starts_with("the log-probability of token 190 of node 0 is 0.5"), "{text}");
        assert!(surprising(&chain, &long, 1, 190, false).is_ok());
        let text = surprising(&forest(&[4]), &RUNS, 4097, 99, true).unwrap_err().to_string();
        assert_eq!(text, "k is 4097; it must be 4096 or less");
    }
}
