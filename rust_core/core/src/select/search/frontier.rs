//! Over everything that can be expanded, wherever it is: by rank, or by chance in proportion to the score.

use std::str::FromStr;

use crate::error::{Error, Result};
use crate::random::Random;
use crate::select::option::{few, named, need};

use super::Search;

/// How nodes are picked; after `parallel_mcts.py` of `TreeRL`, which picks over all that can be expanded instead of going
/// down. By score, nodes that score infinity, roots among them, come before all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The highest scores; where several are equal, the first in the order of nodes.
    Greedy,
    /// One after the other, with a chance in proportion to the score (importance sampling).
    Sampled,
    /// One after the other: a pair is drawn with a chance in proportion to the gap between its scores, and the higher
    /// one of it is taken.
    Pairwise,
    /// Each as likely as any other, whatever it scores.
    Uniform,
}

impl FromStr for Policy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = [
            ("greedy", Self::Greedy),
            ("sampled", Self::Sampled),
            ("pairwise", Self::Pairwise),
            ("uniform", Self::Uniform),
        ];
        named("the policy", text, &known, "\"greedy\", \"sampled\", \"pairwise\" or \"uniform\"")
    }
}

impl Search {
    /// `count` nodes out of those with room, none twice, in the order picked; all of them where there are fewer.
    ///
    /// `room` is as for [`Search::descend`]. The picks do not count as in flight: a node's rating changes with those of
    /// its whole way, which only one who goes down passes.
    ///
    /// # Errors
    /// [`Error::Length`] if `room` does not have one number a node; [`Error::Value`] naming a node whose score is
    /// negative where scores are chances, or if more than 4,096 are to be picked one after the other.
    pub fn frontier(&self, room: &[u32], count: usize, policy: Policy, random: &mut Random) -> Result<Vec<u32>> {
        self.check_room(room)?;
        let scores = self.scores();
        let open = self.order.iter().filter(|&&node| room[node as usize] > 0);
        let mut open: Vec<(u32, f64)> = open.map(|&node| (node, scores[node as usize])).collect();
        let count = count.min(open.len());
        if matches!(policy, Policy::Sampled | Policy::Pairwise) {
            few("k", count)?;
        }
        match policy {
            Policy::Greedy => open.sort_by(|a, b| b.1.total_cmp(&a.1)),
            Policy::Uniform => random.draw(&mut open, count),
            Policy::Sampled => {
                for (node, score) in &open {
                    let name = || format!("the score of node {node} is {score}");
                    need(*score >= 0.0, name, "0 or more to be a chance: raise the offset")?;
                }
                draw(&mut open, count, random, |left| left.iter().map(|(_, score)| *score).collect());
            }
            Policy::Pairwise => {
                open.sort_by(|a, b| a.1.total_cmp(&b.1));
                draw(&mut open, count, random, wins);
            }
        }
        Ok(open[..count].iter().map(|(node, _)| *node).collect())
    }
}

/// Move `count` items to the front, one after the other, the weights of what is left made anew each time. What is left
/// keeps its order.
fn draw(items: &mut [(u32, f64)], count: usize, random: &mut Random, weights: impl Fn(&[(u32, f64)]) -> Vec<f64>) {
    for at in 0..count {
        let pick = weighted(&weights(&items[at..]), random);
        items[at..=at + pick].rotate_right(1);
    }
}

/// Of each item, in ascending order of score, by how much it beats all others together: the chance that it is the higher
/// one of a pair drawn by gap.
fn wins(ascending: &[(u32, f64)]) -> Vec<f64> {
    let mut total = 0.0;
    let mut beaten = 0.0;
    let mut last = ascending.first().map_or(0.0, |(_, score)| *score);
    let gaps = ascending.iter().map(|&(_, score)| {
        // Infinity beats infinity by nothing.
        let gap = if score > last { score - last } else { 0.0 };
        total += beaten * gap;
        beaten += 1.0;
        last = score;
        total
    });
    gaps.collect()
}

/// An index drawn with a chance in proportion to its weight. Where any is infinite, one of those; where all are zero, any.
fn weighted(weights: &[f64], random: &mut Random) -> usize {
    let infinite: Vec<usize> = (0..weights.len()).filter(|&at| weights[at].is_infinite()).collect();
    if !infinite.is_empty() {
        return infinite[random.index(infinite.len())];
    }
    let total: f64 = weights.iter().sum();
    if total == 0.0 {
        return random.index(weights.len());
    }
    let mut rest = random.unit() * total;
    for (at, &weight) in weights.iter().enumerate() {
        if rest < weight {
            return at;
        }
        rest -= weight;
    }
    // Rounding has left a little over: the last one that has a chance.
    weights.iter().rposition(|&weight| weight > 0.0).unwrap_or(0)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::{Policy, weighted, wins};
    use crate::forest::Forest;
    use crate::random::Random;
    use crate::select::{Formula, Scoring, Search};

    /// A root whose five children have the scores 1, 2, 3, 4 and 4.
    fn search() -> Search {
        let scoring = Scoring { formula: Formula::Ucb1, c: 0.0, offset: 0.0, loss: 0.0 };
        let forest = Forest::new(vec![0; 6], vec![]).unwrap();
        Search::new(forest, vec![5, 1, 1, 1, 1, 1], vec![0.0, 1.0, 2.0, 3.0, 4.0, 4.0], vec![0; 6], scoring).unwrap()
    }

    fn picks(room: [u32; 6], policy: Policy, seed: u64) -> Vec<u32> {
        search().frontier(&room, 3, policy, &mut Random::new(seed)).unwrap()
    }

    #[test]
    fn greedy_takes_the_highest_and_a_root_before_all() {
        assert_eq!(picks([0, 1, 1, 1, 1, 1], Policy::Greedy, 0), [4, 5, 3]);
        assert_eq!(picks([1, 1, 1, 1, 1, 1], Policy::Greedy, 0), [0, 4, 5]);
        assert_eq!(picks([0, 1, 0, 7, 0, 0], Policy::Greedy, 0), [3, 1]);
        for policy in [Policy::Sampled, Policy::Pairwise] {
            assert_eq!(picks([1, 1, 1, 1, 1, 1], policy, 5)[0], 0);
        }
    }

    #[test]
    fn these_picks_are_for_good() {
        let room = [0, 1, 1, 1, 1, 1];
        let all = [Policy::Sampled, Policy::Pairwise, Policy::Uniform].map(|policy| picks(room, policy, 2));
        assert_eq!(all, PINNED);
    }

    const PINNED: [[u32; 3]; 3] = [[1, 4, 3], [2, 4, 3], [1, 3, 2]];

    #[test]
    fn a_pair_is_won_by_the_higher_in_proportion_to_the_gap() {
        let ascending = [(9, 1.0), (8, 1.0), (7, 3.0), (6, 4.0)];
        assert_eq!(wins(&ascending), [0.0, 0.0, 4.0, 7.0]);
        assert_eq!(wins(&[(0, 1.0), (1, f64::INFINITY), (2, f64::INFINITY)])[1..], [f64::INFINITY; 2]);
        assert!(wins(&[]).is_empty());
    }

    #[test]
    fn chances_are_in_proportion() {
        let random = &mut Random::new(9);
        let mut counts = [0i32; 4];
        for _ in 0..10_000 {
            counts[weighted(&[1.0, 0.0, 2.0, 7.0], random)] += 1;
        }
        // Five standard deviations of a binomial count are at most 250.
        let near = |count: i32, expected: i32| (count - expected).abs() < 250;
        assert!(
            near(counts[0], 1000) && counts[1] == 0 && near(counts[2], 2000) && near(counts[3], 7000),
            "{counts:?}"
        );
        assert_eq!(weighted(&[1.0, f64::INFINITY, 2.0], random), 1);
        assert!((0..50).any(|_| weighted(&[0.0, 0.0], random) == 1));
    }

    #[test]
    fn so_many_picks_one_after_the_other_are_refused() {
        let scoring = Scoring { formula: Formula::Ucb1, c: 0.0, offset: 0.0, loss: 0.0 };
        let forest = Forest::new(vec![0; 5000], vec![]).unwrap();
        let search = Search::new(forest, vec![1; 5000], vec![0.5; 5000], vec![0; 5000], scoring).unwrap();
        let room = vec![1; 5000];
        let pick = |count, policy| search.frontier(&room, count, policy, &mut Random::new(0));
        for policy in [Policy::Sampled, Policy::Pairwise] {
            assert_eq!(pick(4097, policy).unwrap_err().to_string(), "k is 4097; it must be 4096 or less");
            assert_eq!(pick(4096, policy).unwrap().len(), 4096);
        }
        for policy in [Policy::Greedy, Policy::Uniform] {
            assert_eq!(pick(usize::MAX, policy).unwrap().len(), 5000);
        }
    }

    #[test]
    fn a_negative_score_is_no_chance() {
        let scoring = Scoring { formula: Formula::Uct, c: 0.0, offset: 1.0, loss: 0.0 };
        let forest = Forest::new(vec![0, 0], vec![]).unwrap();
        let search = Search::new(forest, vec![1, 1], vec![-3.0, -3.0], vec![0, 0], scoring).unwrap();
        let text = search.frontier(&[0, 1], 1, Policy::Sampled, &mut Random::new(0)).unwrap_err().to_string();
        assert!(text.starts_with("the score of node 1 is -0.99") && text.contains("raise the offset"), "{text}");
        assert_eq!(search.frontier(&[0, 1], 1, Policy::Pairwise, &mut Random::new(0)).unwrap(), [1]);
    }
}
