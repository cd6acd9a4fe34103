//! The most surprising tokens of a tree: where to sample again; after `entropy_guided_chain` of `TreeRL` (`EPTree`).

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::error::Result;
use crate::memory::columns::SAMPLED;

use super::option::{length, need};

/// The model turns of one tree, token by token. The first three are one number a turn.
#[derive(Clone, Copy, Debug)]
pub struct Turns<'a> {
    /// Tokens of the turn.
    pub lengths: &'a [u32],
    /// Tokens on the path before it.
    pub before: &'a [u32],
    /// Tokens at its start that may be sampled again, such as all up to a word that announces the answer; its length or
    /// more for all.
    pub cuts: &'a [u32],
    /// Log-probabilities of the tokens of all turns one after the other, in nats; NaN where not known.
    pub logprobs: &'a [f32],
    /// Flags of the same tokens.
    pub flags: &'a [u8],
}

/// Tokens looked at together.
const BLOCK: usize = 64;

/// A token of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Position {
    /// Index of the turn.
    pub turn: u32,
    /// Index of the token in it.
    pub token: u32,
}

/// The `count` most surprising tokens (lowest log-probability) of all turns together, most surprising first; where two are
/// equal, the one of the earlier turn, then the earlier one.
///
/// Never picked are: the first token of a turn, where forking is drawing the turn again; tokens at or after the turn's cut;
/// those at or beyond `limit` tokens from the start of the path; those that were not sampled or whose log-probability is
/// not known. Fewer come back where fewer are left.
///
/// With `diverse`, out of twice as many the most surprising is taken, then always the one farthest from all taken. Tokens of
/// one turn are as far apart as their indices, those of different turns farther than any in one.
///
/// # Errors
/// [`crate::Error::Length`] if columns do not fit each other, [`crate::Error::Value`] naming a positive log-probability.
pub fn surprising(turns: &Turns<'_>, count: usize, limit: u32, diverse: bool) -> Result<Vec<Position>> {
    turns.check()?;
    let mut leaders = Leaders::new(if diverse { count.saturating_mul(2) } else { count });
    let mut start = 0;
    for (turn, ((&len, &cut), &before)) in (0u32..).zip(turns.lengths.iter().zip(turns.cuts).zip(turns.before)) {
        let end = len.min(cut).min(limit.saturating_sub(before)) as usize;
        for first in (1..end).step_by(BLOCK) {
            let tokens = first..end.min(first + BLOCK);
            let block = &turns.logprobs[start..][tokens.clone()];
            // Counting does not branch, so that several are compared at a time; most blocks hold nothing.
            if block.iter().filter(|&&logprob| logprob < leaders.limit || logprob > 0.0).count() == 0 {
                continue;
            }
            for (token, &logprob) in tokens.zip(block) {
                let at = Position { turn, token: u32::try_from(token).unwrap_or(u32::MAX) };
                let name = || format!("the log-probability of token {token} of turn {turn} is {logprob}");
                need(logprob <= 0.0 || logprob.is_nan(), name, "at most 0, or NaN where it is not known")?;
                if logprob < leaders.limit && turns.flags[start + token] & SAMPLED != 0 {
                    // Adding 0 makes one number of both zeros.
                    leaders.push(Candidate { logprob: logprob + 0.0, at });
                }
            }
        }
        start += len as usize;
    }
    let found = leaders.into_positions();
    Ok(if diverse { spread(&found, count) } else { found })
}

impl Turns<'_> {
    fn check(&self) -> Result<()> {
        length("lengths of paths before", self.lengths.len(), self.before.len())?;
        length("cuts", self.lengths.len(), self.cuts.len())?;
        let tokens: u64 = self.lengths.iter().map(|&len| u64::from(len)).sum();
        let tokens = usize::try_from(tokens).unwrap_or(usize::MAX);
        length("log-probabilities", tokens, self.logprobs.len())?;
        length("flags", tokens, self.flags.len())
    }
}

/// The greater, the less surprising or the later.
#[derive(Clone, Copy, PartialEq)]
struct Candidate {
    logprob: f32,
    at: Position,
}

impl Eq for Candidate {}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        let place = |at: Position| (at.turn, at.token);
        self.logprob.total_cmp(&other.logprob).then_with(|| place(self.at).cmp(&place(other.at)))
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

    fn push(&mut self, candidate: Candidate) {
        self.heap.push(candidate);
        if self.heap.len() > self.count {
            self.heap.pop();
        }
        if self.heap.len() == self.count {
            self.limit = self.heap.peek().map_or(self.limit, |worst| worst.logprob);
        }
    }

    fn into_positions(self) -> Vec<Position> {
        self.heap.into_sorted_vec().into_iter().map(|candidate| candidate.at).collect()
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
    if one.turn == other.turn { one.token.abs_diff(other.token) } else { u32::MAX }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::{Position, Turns, surprising};

    const NAN: f32 = f32::NAN;
    const TURNS: Turns<'static> = Turns {
        lengths: &[5, 0, 4, 3],
        before: &[2, 7, 7, 11],
        cuts: &[9, 9, 3, 9],
        logprobs: &[-9.0, -1.0, -3.0, NAN, -2.0, -9.0, -3.0, -0.5, -9.0, -9.0, 0.0, -4.0],
        flags: &[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1],
    };

    fn picks(count: usize, limit: u32, diverse: bool) -> Vec<(u32, u32)> {
        let found = surprising(&TURNS, count, limit, diverse).unwrap();
        found.into_iter().map(|Position { turn, token }| (turn, token)).collect()
    }

    #[test]
    fn the_most_surprising_come_first_and_the_masked_never() {
        assert_eq!(picks(9, u32::MAX, false), [(3, 2), (0, 2), (2, 1), (0, 4), (0, 1), (2, 2)]);
        assert_eq!(picks(2, u32::MAX, false), [(3, 2), (0, 2)]);
        assert_eq!(picks(9, 9, false), [(0, 2), (2, 1), (0, 4), (0, 1)]);
        assert_eq!(picks(9, 5, false), [(0, 2), (0, 1)]);
        assert!(picks(0, u32::MAX, false).is_empty() && picks(9, 0, false).is_empty());
    }

    #[test]
    fn diverse_picks_go_to_other_turns_first_then_far_from_each_other() {
        assert_eq!(picks(3, u32::MAX, true), [(3, 2), (0, 2), (2, 1)]);
        assert_eq!(picks(5, u32::MAX, true), [(3, 2), (0, 2), (2, 1), (0, 4), (0, 1)]);
        let logprobs: Vec<f32> = [0.0, -9.0, -8.9, -8.8, -1.0, -1.1, -1.2].to_vec();
        let one = Turns { lengths: &[7], before: &[0], cuts: &[7], logprobs: &logprobs, flags: &[1; 7] };
        let tokens = |diverse| surprising(&one, 3, 99, diverse).unwrap().iter().map(|at| at.token).collect::<Vec<_>>();
        assert_eq!(tokens(false), [1, 2, 3]);
        assert_eq!(tokens(true), [1, 6, 3]);
    }

    #[test]
    fn columns_that_do_not_fit_are_refused() {
        let refuse = |turns: Turns<'_>| surprising(&turns, 1, 9, false).unwrap_err().to_string();
        assert_eq!(refuse(Turns { cuts: &[1], ..TURNS }), "1 cuts where 4 are needed");
        assert_eq!(refuse(Turns { before: &[1], ..TURNS }), "1 lengths of paths before where 4 are needed");
        assert_eq!(refuse(Turns { flags: &[1], ..TURNS }), "1 flags where 12 are needed");
        assert_eq!(refuse(Turns { lengths: &[5, 0, 4, 4], ..TURNS }), "12 log-probabilities where 13 are needed");
        let text = refuse(Turns { logprobs: &[-9.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], ..TURNS });
        assert!(text.starts_with("the log-probability of token 1 of turn 0 is 0.5"), "{text}");
    }
}
