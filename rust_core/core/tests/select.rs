//! Selection against models that follow the definitions word by word.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used)]
// Indices here are small.
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]

use proptest::prelude::*;
use trunkline_core::select::{
    Adaptive, Choice, Formula, Policy, Position, Ranking, Row, Rule, Scoring, Search, Turns, fork_points, surprising,
    top_turns, uniform, width,
};
use trunkline_core::{Forest, Kind, Random, Region};

/// Parents of a forest in which a node is a root where it drew itself.
fn parents(most: usize) -> impl Strategy<Value = Vec<u32>> {
    let draws = prop::collection::vec(any::<prop::sample::Index>(), 1..most);
    draws.prop_map(|draws| draws.iter().enumerate().map(|(node, draw)| draw.index(node + 1) as u32).collect())
}

#[derive(Clone, Debug)]
struct Known {
    parents: Vec<u32>,
    visits: Vec<u32>,
    values: Vec<f64>,
    in_flight: Vec<u32>,
    room: Vec<u32>,
}

fn known() -> impl Strategy<Value = Known> {
    parents(24).prop_flat_map(|parents| {
        let n = parents.len();
        // Often 0, so that there are ties between what was never visited.
        let column = |most: u32| prop::collection::vec(prop_oneof![Just(0), 0..most], n);
        let values = prop::collection::vec(prop_oneof![Just(0.0), Just(1.0), 0.0..1.0f64], n);
        (Just(parents), column(9), values, column(3), column(3))
            .prop_map(|(parents, visits, values, in_flight, room)| Known { parents, visits, values, in_flight, room })
    })
}

fn scorings() -> impl Strategy<Value = Scoring> {
    let formula = prop_oneof![Just(Formula::Uct), Just(Formula::Ucb1)];
    (formula, 0.0..2.0f64, 0.0..1.0f64, -1.0..0.5f64).prop_map(|(formula, c, offset, loss)| Scoring {
        formula,
        c,
        offset,
        loss,
    })
}

impl Known {
    fn search(&self, scoring: Scoring) -> Search {
        let forest = Forest::new(self.parents.clone(), vec![]).unwrap();
        Search::new(forest, self.visits.clone(), self.values.clone(), self.in_flight.clone(), scoring).unwrap()
    }

    fn count(&self, node: usize) -> f64 {
        f64::from(self.visits[node] + self.in_flight[node])
    }

    /// By definition: every visit in flight is one more visit that came back with the loss.
    fn score(&self, node: usize, scoring: Scoring) -> f64 {
        let parent = self.parents[node] as usize;
        if parent == node {
            return f64::INFINITY;
        }
        let mut returns = vec![self.values[node]; self.visits[node] as usize];
        returns.extend(vec![scoring.loss; self.in_flight[node] as usize]);
        let mean = if returns.is_empty() { 0.0 } else { returns.iter().sum::<f64>() / returns.len() as f64 };
        let (n, above) = (self.count(node), self.count(parent));
        match scoring.formula {
            Formula::Uct => {
                (mean + scoring.offset + 1e-8) / 2.0 + scoring.c * ((above + 1.0).ln() / (n + 1e-10)).sqrt()
            }
            Formula::Ucb1 if n == 0.0 => f64::INFINITY,
            Formula::Ucb1 => mean + scoring.c * (above.max(1.0).ln() / n).sqrt(),
        }
    }

    fn below(&self, node: usize) -> u32 {
        let children = (0..self.parents.len()).filter(|&child| child != node && self.parents[child] as usize == node);
        self.room[node] + children.map(|child| self.below(child)).sum::<u32>()
    }

    /// Whether a pick at `node` is what going down would give, within rounding; and count it.
    fn follows(&mut self, start: usize, pick: usize, scoring: Scoring) -> bool {
        let mut way = vec![pick];
        while *way.last().unwrap() != start {
            let node = *way.last().unwrap();
            if self.parents[node] as usize == node {
                return false;
            }
            way.push(self.parents[node] as usize);
        }
        way.reverse();
        let best = way.windows(2).all(|step| {
            let rivals = (0..self.parents.len()).filter(|&rival| {
                rival != step[0] && rival != step[1] && self.parents[rival] as usize == step[0] && self.below(rival) > 0
            });
            let chosen = self.score(step[1], scoring);
            let slack = if chosen.is_finite() { 1e-9 * (1.0 + chosen.abs()) } else { 0.0 };
            let worse = rivals.into_iter().all(|rival| {
                let score = self.score(rival, scoring);
                score <= chosen + slack && (score.is_finite() || rival > step[1])
            });
            worse && self.room[step[0]] == 0
        });
        let open = self.room[pick] > 0;
        self.room[pick] = self.room[pick].saturating_sub(1);
        for node in way {
            self.in_flight[node] += 1;
        }
        best && open
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn scores_are_their_definition(known in known(), scoring in scorings()) {
        for (node, found) in known.search(scoring).scores().into_iter().enumerate() {
            let expected = known.score(node, scoring);
            let near = (found - expected).abs() <= 1e-9 * expected.abs();
            prop_assert!(near || found.is_infinite() && expected.is_infinite(), "{found} {expected}");
        }
    }

    #[test]
    fn going_down_takes_the_best_child_and_leaves_a_loss_in_flight(
        mut known in known(), scoring in scorings(), k in 0usize..9, start: prop::sample::Index,
    ) {
        let start = start.index(known.parents.len());
        let mut search = known.search(scoring);
        let open = known.below(start) as usize;
        let picks = search.descend(start as u32, &known.room, k).unwrap();
        prop_assert_eq!(picks.len(), k.min(open));
        for pick in picks {
            prop_assert!(known.follows(start, pick as usize, scoring), "{pick}");
        }
        prop_assert_eq!(search.in_flight(), known.in_flight);
    }

    #[test]
    fn a_frontier_has_room_and_no_node_twice(known in known(), scoring in scorings(), k in 0usize..9, seed: u64) {
        let search = known.search(Scoring { offset: 1.0, loss: 0.0, ..scoring });
        let open = known.room.iter().filter(|room| **room > 0).count();
        for policy in [Policy::Greedy, Policy::Sampled, Policy::Pairwise, Policy::Uniform] {
            let picks = search.frontier(&known.room, k, policy, &mut Random::new(seed)).unwrap();
            prop_assert_eq!(picks.len(), k.min(open));
            prop_assert!(picks.iter().all(|&pick| known.room[pick as usize] > 0));
            let mut once = picks.clone();
            once.sort_unstable();
            once.dedup();
            prop_assert_eq!(once.len(), picks.len());
            prop_assert_eq!(&picks, &search.frontier(&known.room, k, policy, &mut Random::new(seed)).unwrap());
            if policy == Policy::Greedy {
                let scores = search.scores();
                let order = |node: u32| (scores[node as usize], std::cmp::Reverse(node));
                prop_assert!(picks.windows(2).all(|two| order(two[0]) > order(two[1])));
            }
        }
    }

    #[test]
    fn fork_points_are_before_the_turns_of_a_path(parents in parents(30), seed: u64) {
        let mut random = Random::new(seed);
        let kinds: Vec<u8> = parents.iter().map(|_| random.index(5) as u8).collect();
        let leaves: Vec<u32> = parents.iter().take(4).map(|_| random.index(parents.len()) as u32).collect();
        let mut expected = std::collections::BTreeSet::new();
        for &leaf in &leaves {
            let mut node = leaf;
            while parents[node as usize] != node {
                if kinds[node as usize] == Kind::Turn as u8 {
                    expected.insert(parents[node as usize]);
                }
                node = parents[node as usize];
            }
        }
        let forest = Forest::new(parents, leaves).unwrap();
        prop_assert_eq!(fork_points(&forest, &kinds).unwrap(), expected.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn a_draw_without_replacement_repeats_nothing(n in 0u32..40, k in 0usize..40, seed: u64) {
        let points: Vec<u32> = (100..100 + n).collect();
        let drawn = uniform(&points, k, false, &mut Random::new(seed));
        prop_assert_eq!(drawn.is_err(), k > points.len());
        let mut drawn = drawn.unwrap_or_default();
        drawn.sort_unstable();
        drawn.dedup();
        prop_assert_eq!(drawn.len(), if k > points.len() { 0 } else { k });
        prop_assert!(drawn.iter().all(|point| points.contains(point)));
    }

    #[test]
    fn top_turns_are_those_with_none_better(
        figures in prop::collection::vec(prop_oneof![Just(f32::NAN), Just(2.0f32), 1.0..9.0f32], 0..30), k in 0usize..12,
    ) {
        let figures = &figures[..figures.len() / 3 * 3];
        let turns = figures.len() / 3;
        let ranked = |region: usize, taken: &[u32]| {
            let mut left: Vec<u32> = (0..turns as u32).collect();
            left.retain(|&turn| !figures[turn as usize * 3 + region].is_nan() && !taken.contains(&turn));
            let mut order = vec![];
            while !left.is_empty() {
                let value = |turn: &u32| figures[*turn as usize * 3 + region];
                let top = left.iter().map(value).fold(0.0, f32::max);
                let at = left.iter().position(|turn| value(turn) >= top).unwrap();
                order.push(left.remove(at));
            }
            order
        };
        for region in Region::ALL {
            let expected: Vec<u32> = ranked(region as usize, &[]).into_iter().take(k).collect();
            prop_assert_eq!(top_turns(figures, k, Ranking::By(region)).unwrap(), expected);
        }
        for duplicates in [false, true] {
            let mut expected: Vec<u32> = ranked(1, &[]).into_iter().take(k - k / 2).collect();
            let taken = if duplicates { vec![] } else { expected.clone() };
            expected.extend(ranked(0, &taken).into_iter().take(k / 2));
            prop_assert_eq!(top_turns(figures, k, Ranking::Mixed { duplicates }).unwrap(), expected);
        }
    }

    #[test]
    fn surprising_tokens_are_the_lowest_of_all_that_are_open(
        lengths in prop::collection::vec(0u32..9, 0..6), seed: u64, k in 0usize..9, limit in 0u32..40,
    ) {
        let mut random = Random::new(seed);
        let before: Vec<u32> = lengths.iter().map(|_| random.index(30) as u32).collect();
        let cuts: Vec<u32> = lengths.iter().map(|_| random.index(12) as u32).collect();
        let total = lengths.iter().sum::<u32>() as usize;
        let steps = [f32::NAN, 0.0, -0.0, -0.5, -1.0, -2.0, -4.0, f32::NEG_INFINITY];
        let logprobs: Vec<f32> = (0..total).map(|_| steps[random.index(steps.len())]).collect();
        let flags: Vec<u8> = (0..total).map(|_| u8::from(random.index(4) > 0)).collect();
        let turns = Turns { lengths: &lengths, before: &before, cuts: &cuts, logprobs: &logprobs, flags: &flags };
        let mut open = vec![];
        let mut start = 0;
        for turn in 0..lengths.len() {
            for token in 1..lengths[turn] {
                let at = start + token as usize;
                if token < cuts[turn] && before[turn] + token < limit && flags[at] == 1 && !logprobs[at].is_nan() {
                    open.push((logprobs[at], Position { turn: turn as u32, token }));
                }
            }
            start += lengths[turn] as usize;
        }
        open.sort_by(|a, b| a.0.partial_cmp(&b.0).unwrap());
        let open: Vec<Position> = open.into_iter().map(|(_, at)| at).collect();
        let expected: Vec<Position> = open.iter().copied().take(k).collect();
        prop_assert_eq!(&surprising(&turns, k, limit, false).unwrap(), &expected);

        let far = |a: Position, b: Position| if a.turn == b.turn { a.token.abs_diff(b.token) } else { u32::MAX };
        let pool: Vec<Position> = open.into_iter().take(2 * k).collect();
        let picks = surprising(&turns, k, limit, true).unwrap();
        prop_assert_eq!(picks.len(), k.min(pool.len()));
        for (at, pick) in picks.iter().enumerate() {
            let gap = |one: Position| picks[..at].iter().map(|&other| far(one, other)).min().unwrap_or(u32::MAX);
            let farthest = pool.iter().map(|&one| gap(one)).max().unwrap();
            prop_assert_eq!(pool.iter().find(|&&one| gap(one) == farthest), Some(pick));
        }
    }

    #[test]
    fn leaves_are_chosen_once_and_quotas_are_kept(correct in prop::collection::vec(0u8..2, 0..20), k in 0usize..20, seed: u64) {
        let right: usize = correct.iter().map(|&flag| usize::from(flag)).sum();
        for choice in [Choice::Random, Choice::FirstCorrect, Choice::Balanced { ratio: 0.5 }] {
            let picks = choice.pick(&correct, k, &mut Random::new(seed));
            prop_assert_eq!(picks.is_err(), k > correct.len());
            let Ok(picks) = picks else { continue };
            let mut once = picks.clone();
            once.sort_unstable();
            once.dedup();
            prop_assert_eq!((once.len(), picks.len()), (k, k));
            let chosen = picks.iter().filter(|&&leaf| correct[leaf as usize] == 1).count();
            let (least, most) = match choice {
                Choice::Random => (0, k),
                Choice::FirstCorrect => (right.min(k).min(1), k),
                Choice::Balanced { .. } => (right.min(k / 2), k - (correct.len() - right).min(k / 2)),
            };
            prop_assert!((least..=most).contains(&chosen), "{chosen} of {least} to {most}");
        }
    }

    #[test]
    fn branches_never_exceed_what_is_free_or_the_beam(
        rows in prop::collection::vec((-2.0..2.0f64, -2.0..2.0f64), 0..12), free in 0u32..9, seed: u64, streak in 0u32..25,
        beam in 1u32..4, aepo: bool,
    ) {
        let rule = if aepo { Rule::Aepo } else { Rule::Arpo };
        let adaptive = Adaptive { rule, probability: 0.5, weight: 0.4, beam };
        let rows: Vec<Row> = rows.into_iter().map(|(entropy, baseline)| Row { entropy, baseline }).collect();
        let (found, after) = adaptive.branch(&rows, free, streak, &mut Random::new(seed)).unwrap();
        let mut random = Random::new(seed);
        let mut left = free;
        let mut expected = vec![];
        for row in &rows {
            let chance = adaptive.probability(row.entropy - row.baseline, streak).unwrap();
            let mut made = 0;
            for _ in 1..beam {
                if random.unit() < chance && left > 0 {
                    left -= 1;
                    made += 1;
                }
            }
            expected.push(made);
        }
        prop_assert_eq!(found, expected);
        prop_assert_eq!(after, if left < free { streak + 1 } else { 0 });
    }

    #[test]
    fn a_split_keeps_its_total_and_everybody_has_one(
        weights in prop::collection::vec(0.0..3.0f64, 1..9), more in 0u32..60,
    ) {
        let paths = weights.len() as u32;
        let shares = width::weighted(paths + more, &weights).unwrap();
        prop_assert_eq!(shares.iter().sum::<u32>(), paths + more);
        let sum: f64 = weights.iter().sum();
        for (share, weight) in shares.iter().zip(&weights) {
            let quota = if sum > 0.0 { f64::from(more) * weight / sum } else { f64::from(more) / weights.len() as f64 };
            prop_assert!((f64::from(*share) - 1.0 - quota).abs() < 1.0 + 1e-9);
        }
        let even = width::even(paths + more, paths).unwrap();
        prop_assert_eq!(even.iter().sum::<u32>(), paths + more);
        prop_assert!(even.iter().all(|share| *share >= 1));
    }
}

/// Five standard deviations of a binomial count, and one for the rounding of the mean.
fn near(count: u32, trials: u32, chance: f64) -> bool {
    let mean = f64::from(trials) * chance;
    (f64::from(count) - mean).abs() < 5.0 * (mean * (1.0 - chance)).sqrt() + 1.0
}

#[test]
fn a_draw_with_replacement_takes_each_point_as_often() {
    let drawn = uniform(&[3, 4, 5, 6, 7], 50_000, true, &mut Random::new(8)).unwrap();
    for point in 3..8 {
        assert!(near(drawn.iter().filter(|&&pick| pick == point).count() as u32, 50_000, 0.2));
    }
}

#[test]
fn pairs_and_single_nodes_are_drawn_in_proportion() {
    let scoring = Scoring { formula: Formula::Ucb1, c: 0.0, offset: 0.0, loss: 0.0 };
    let scores = [0.0, 1.0, 2.0, 4.0, 7.0];
    let forest = Forest::new(vec![0; 5], vec![]).unwrap();
    let search = Search::new(forest, vec![4, 1, 1, 1, 1], scores.to_vec(), vec![0; 5], scoring).unwrap();
    let mut random = Random::new(4);
    for policy in [Policy::Sampled, Policy::Pairwise] {
        let mut first = [0; 5];
        let mut second = [0; 5];
        for _ in 0..20_000 {
            let picks = search.frontier(&[0, 1, 1, 1, 1], 2, policy, &mut random).unwrap();
            first[picks[0] as usize] += 1;
            second[picks[1] as usize] += u32::from(picks[0] == 4);
        }
        // By definition, over the nodes that are left: every one, or every pair with the gap as its weight.
        let chance = |node: usize, left: &[usize]| {
            if policy == Policy::Sampled {
                return scores[node] / left.iter().map(|&other| scores[other]).sum::<f64>();
            }
            let gap = |a: usize, b: usize| (scores[a] - scores[b]).abs();
            let all: f64 = left.iter().flat_map(|&a| left.iter().map(move |&b| gap(a, b))).sum::<f64>() / 2.0;
            left.iter().filter(|&&other| scores[other] < scores[node]).map(|&other| gap(node, other)).sum::<f64>() / all
        };
        for node in 1..5 {
            assert!(near(first[node], 20_000, chance(node, &[1, 2, 3, 4])), "{policy:?} {first:?}");
        }
        for node in 1..4 {
            assert!(near(second[node], first[4], chance(node, &[1, 2, 3])), "{policy:?} {second:?}");
        }
    }
}

#[test]
fn a_branch_is_as_likely_as_its_probability() {
    let adaptive = Adaptive { rule: Rule::Aepo, probability: 0.5, weight: 0.2, beam: 2 };
    let rows = vec![Row { entropy: 1.3, baseline: 1.0 }; 50_000];
    let (branches, streak) = adaptive.branch(&rows, u32::MAX, 2, &mut Random::new(1)).unwrap();
    assert!(near(branches.iter().sum(), 50_000, 0.504_444));
    assert_eq!(streak, 3);
}
