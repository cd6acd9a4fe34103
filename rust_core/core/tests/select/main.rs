//! Selection against models that follow the definitions word by word.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used)]
// Indices here are small.
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]

mod chances;
mod model;

use proptest::prelude::*;
use trunkline_core::select::{
    Adaptive, EntropyRow, LeafChoice, LogprobColumns, Position, Ranking, Rule, Search, budget, fork_points, surprising,
    top_turns, uniform,
};
use trunkline_core::{Forest, Kind, Random, Region};

use model::{arrival, known, moved, parents, path, scorings};

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
    fn fork_points_are_before_the_turns_of_a_path(parents in parents(30), seed: u64) {
        let mut random = Random::new(seed);
        let kinds: Vec<u8> = parents.iter().map(|_| random.index(5) as u8).collect();
        let leaves: Vec<u32> = parents.iter().take(4).map(|_| random.index(parents.len()) as u32).collect();
        let paths: Vec<Vec<u32>> = leaves.iter().map(|&leaf| path(&parents, leaf)).collect();
        let steps = || paths.iter().flat_map(|path| path.windows(2));
        let forks = |node: u32| steps().any(|step| step[0] == node && kinds[step[1] as usize] == Kind::Turn as u8);
        let mut expected = vec![];
        for &node in paths.iter().flatten() {
            if forks(node) && !expected.contains(&node) {
                expected.push(node);
            }
        }
        let forest = Forest::new(parents, leaves).unwrap();
        prop_assert_eq!(fork_points(&forest, &kinds).unwrap(), expected);
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
        parents in parents(7), seed: u64, k in 0usize..9, limit in 0u32..30, cut: bool,
    ) {
        let mut random = Random::new(seed);
        let nodes = parents.len();
        let lengths: Vec<usize> = parents.iter().map(|_| random.index(9)).collect();
        let offsets: Vec<u64> = (0..=nodes).map(|node| lengths[..node].iter().sum::<usize>() as u64).collect();
        let total = offsets[nodes];
        let cuts: Vec<u32> = parents.iter().map(|_| random.index(12) as u32).collect();
        let leaves: Vec<u32> = (0..random.index(4)).map(|_| random.index(nodes) as u32).collect();
        let steps = [f32::NAN, 0.0, -0.0, -0.5, -1.0, -2.0, -4.0, f32::NEG_INFINITY];
        let logprobs: Vec<f32> = (0..total).map(|_| steps[random.index(steps.len())]).collect();
        let flags: Vec<u8> = (0..total).map(|_| u8::from(random.index(4) > 0)).collect();
        let forest = Forest::new(parents.clone(), leaves.clone()).unwrap();
        let runs =
            LogprobColumns { offsets: &offsets, logprobs: &logprobs, flags: &flags, cuts: cut.then_some(cuts.as_slice()) };
        let mut open: Vec<(f32, Position)> = vec![];
        for &leaf in &leaves {
            let path = path(&parents, leaf);
            let mut before = 0;
            for &node in &path {
                let at = node as usize;
                for token in 1..lengths[at] {
                    let position = Position { node, token: token as u32 };
                    let row = offsets[at] as usize + token;
                    let reachable = (!cut || token < cuts[at] as usize) && before + token < limit as usize;
                    let known = flags[row] == 1 && !logprobs[row].is_nan();
                    if reachable && known && open.iter().all(|(_, other)| *other != position) {
                        open.push((logprobs[row], position));
                    }
                }
                before += lengths[at];
            }
        }
        open.sort_by(|a, b| a.0.partial_cmp(&b.0).unwrap());
        let open: Vec<Position> = open.into_iter().map(|(_, at)| at).collect();
        let expected: Vec<Position> = open.iter().copied().take(k).collect();
        prop_assert_eq!(&surprising(&forest, &runs, k, limit, false).unwrap(), &expected);

        let far = |a: Position, b: Position| if a.node == b.node { a.token.abs_diff(b.token) } else { u32::MAX };
        let pool: Vec<Position> = open.into_iter().take(2 * k).collect();
        let picks = surprising(&forest, &runs, k, limit, true).unwrap();
        prop_assert_eq!(picks.len(), k.min(pool.len()));
        for (at, pick) in picks.iter().enumerate() {
            let gap = |one: Position| picks[..at].iter().map(|&other| far(one, other)).min().unwrap_or(u32::MAX);
            let farthest = pool.iter().map(|&one| gap(one)).max().unwrap();
            prop_assert_eq!(pool.iter().find(|&&one| gap(one) == farthest), Some(pick));
        }
    }

    /// The same tree whose nodes arrived in another order: every pick is of the same node, whatever its number.
    #[test]
    fn no_pick_depends_on_which_node_arrived_first(
        parents in parents(20), seed: u64, k in 1usize..6, scoring in scorings(),
    ) {
        let mut random = Random::new(seed);
        let nodes = parents.len();
        let column: Vec<u32> = parents.iter().map(|_| random.index(3) as u32).collect();
        let numbers = arrival(&parents, &mut random);
        // Every node is on the path of a rollout.
        let mut leaves: Vec<u32> = (0..nodes as u32).collect();
        random.shuffle(&mut leaves);
        let other_parents = moved(&numbers, &parents.iter().map(|&parent| numbers[parent as usize]).collect::<Vec<_>>());
        let other_leaves: Vec<u32> = leaves.iter().map(|&leaf| numbers[leaf as usize]).collect();
        let one = Forest::new(parents, leaves).unwrap();
        let other = Forest::new(other_parents, other_leaves).unwrap();
        let renamed = |picks: Vec<u32>| picks.into_iter().map(|node| numbers[node as usize]).collect::<Vec<_>>();

        let kinds: Vec<u8> = column.iter().map(|&kind| kind as u8 + 1).collect();
        let points = renamed(fork_points(&one, &kinds).unwrap());
        prop_assert_eq!(points, fork_points(&other, &moved(&numbers, &kinds)).unwrap());

        let values: Vec<f64> = column.iter().map(|&value| f64::from(value) / 4.0).collect();
        let mut search = Search::new(one.clone(), column.clone(), values.clone(), column.clone(), scoring).unwrap();
        let turned = moved(&numbers, &column);
        let values = moved(&numbers, &values);
        let mut again = Search::new(other.clone(), turned.clone(), values, turned.clone(), scoring).unwrap();
        let picks = search.descend(0, &column, k).unwrap();
        prop_assert_eq!(renamed(picks), again.descend(0, &turned, k).unwrap());

        let offsets: Vec<u64> = (0..=nodes as u64).map(|node| node * 2).collect();
        let logprobs: Vec<f32> = column.iter().flat_map(|&value| [0.0, -f32::from(value as u8)]).collect();
        let (flags, cuts) = (vec![1; 2 * nodes], None);
        let found = surprising(&one, &LogprobColumns { offsets: &offsets, logprobs: &logprobs, flags: &flags, cuts }, k, 99, false);
        let logprobs: Vec<f32> = turned.iter().flat_map(|&value| [0.0, -f32::from(value as u8)]).collect();
        let same = surprising(&other, &LogprobColumns { offsets: &offsets, logprobs: &logprobs, flags: &flags, cuts }, k, 99, false);
        let found = found.unwrap().into_iter().map(|at| at.node).collect();
        prop_assert_eq!(renamed(found), same.unwrap().into_iter().map(|at| at.node).collect::<Vec<_>>());
    }

    #[test]
    fn leaves_are_chosen_once_and_quotas_are_kept(correct in prop::collection::vec(0u8..2, 0..20), k in 0usize..20, seed: u64) {
        let right: usize = correct.iter().map(|&flag| usize::from(flag)).sum();
        for choice in [LeafChoice::Random, LeafChoice::FirstCorrect, LeafChoice::Balanced { ratio: 0.5 }] {
            let picks = choice.pick(&correct, k, &mut Random::new(seed));
            prop_assert_eq!(picks.is_err(), k > correct.len());
            let Ok(picks) = picks else { continue };
            let mut once = picks.clone();
            once.sort_unstable();
            once.dedup();
            prop_assert_eq!((once.len(), picks.len()), (k, k));
            let chosen = picks.iter().filter(|&&leaf| correct[leaf as usize] == 1).count();
            let (least, most) = match choice {
                LeafChoice::Random => (0, k),
                LeafChoice::FirstCorrect => (right.min(k).min(1), k),
                LeafChoice::Balanced { .. } => (right.min(k / 2), k - (correct.len() - right).min(k / 2)),
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
        let rows: Vec<EntropyRow> = rows.into_iter().map(|(entropy, baseline)| EntropyRow { entropy, baseline }).collect();
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
    fn a_split_keeps_its_total_and_everybody_has_one(paths in 1u32..9, more in 0u32..60) {
        let even = budget::split_evenly(paths + more, paths).unwrap();
        prop_assert_eq!(even.iter().sum::<u32>(), paths + more);
        prop_assert!(even.iter().all(|share| *share >= 1));
    }
}
