//! What is drawn is as likely as it should be.

use trunkline_core::select::{Adaptive, Choice, Formula, Policy, Row, Rule, Scoring, Search, uniform};
use trunkline_core::{Forest, Random};

use super::model::Known;

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

/// Chances of every sequence of `count` picks, by the definitions: of the nodes left, one with its score as weight, or the
/// higher of a pair with the gap as weight; infinite scores first, and any node where all weights are 0.
fn sequences(scores: &[f64], count: usize, pairwise: bool) -> Vec<(Vec<u32>, f64)> {
    let mut all = vec![(vec![], 1.0)];
    for _ in 0..count {
        let mut longer = vec![];
        for (picks, chance) in all {
            let left: Vec<usize> = (1..scores.len()).filter(|&node| !picks.contains(&(node as u32))).collect();
            let infinite = left.iter().any(|&node| scores[node].is_infinite());
            let weight = |node: usize| {
                if infinite {
                    return f64::from(u8::from(scores[node].is_infinite()));
                }
                let lower = left.iter().filter(|&&other| scores[other] < scores[node]);
                if pairwise { lower.map(|&other| scores[node] - scores[other]).sum() } else { scores[node] }
            };
            let total: f64 = left.iter().map(|&node| weight(node)).sum();
            for &node in &left {
                let share = if total > 0.0 { weight(node) / total } else { 1.0 / left.len() as f64 };
                let mut picks: Vec<u32> = picks.clone();
                picks.push(node as u32);
                longer.push((picks, chance * share));
            }
        }
        all = longer;
    }
    all
}

#[test]
fn every_sequence_of_picks_is_as_likely_as_by_definition() {
    const TRIALS: u32 = 40_000;
    let scoring = Scoring { formula: Formula::Ucb1, c: 0.0, offset: 0.0, loss: 0.25 };
    // Node 0 is the root; a node never visited scores infinity, and visits in flight pull a value down to 0.25.
    for (values, visits, in_flight) in [
        ([0.0, 1.0, 2.0, 4.0, 7.0], [4, 1, 1, 1, 1], [0; 5]),
        ([0.0, 3.0, 1.0, 3.0, 0.0], [4, 1, 1, 1, 1], [0; 5]),
        ([0.0, 0.0, 0.0, 0.0, 2.0], [4, 1, 1, 1, 1], [0; 5]),
        ([0.0, 1.0, 9.0, 2.0, 9.0], [4, 1, 0, 1, 0], [0; 5]),
        ([0.0, 1.0, 2.0, 4.0, 7.0], [4, 1, 1, 2, 0], [6, 3, 0, 1, 2]),
    ] {
        let forest = Forest::new(vec![0; 5], vec![]).unwrap();
        let search = Search::new(forest, visits.into(), values.into(), in_flight.into(), scoring).unwrap();
        let naive = Known {
            parents: vec![0; 5],
            visits: visits.into(),
            values: values.into(),
            in_flight: in_flight.into(),
            room: vec![],
        };
        let scores: Vec<f64> = (0..5).map(|node| naive.score(node, scoring)).collect();
        for policy in [Policy::Sampled, Policy::Pairwise] {
            let mut random = Random::new(11);
            let mut counts = std::collections::HashMap::new();
            for _ in 0..TRIALS {
                let picks = search.frontier(&[0, 1, 1, 1, 1], 3, policy, &mut random).unwrap();
                *counts.entry(picks).or_insert(0) += 1;
            }
            let expected = sequences(&scores, 3, policy == Policy::Pairwise);
            assert!((expected.iter().map(|(_, chance)| chance).sum::<f64>() - 1.0).abs() < 1e-12);
            for (picks, chance) in expected {
                let count = counts.remove(&picks).unwrap_or(0);
                let sure = (chance > 0.0 && near(count, TRIALS, chance)) || (chance == 0.0 && count == 0);
                assert!(sure, "{policy:?} {scores:?} {picks:?}: {count} of {TRIALS}, {chance}");
            }
            assert!(counts.is_empty());
        }
    }
}

#[test]
fn every_draw_and_every_choice_is_as_likely_as_any_other() {
    const TRIALS: u32 = 24_000;
    let mut drawn = std::collections::HashMap::new();
    let mut kept = std::collections::HashMap::new();
    let mut random = Random::new(5);
    for _ in 0..TRIALS {
        *drawn.entry(uniform(&[6, 7, 8, 9], 2, false, &mut random).unwrap()).or_insert(0) += 1;
        let mut choice = Choice::Balanced { ratio: 0.5 }.pick(&[1, 0, 1, 0, 0], 2, &mut random).unwrap();
        choice.sort_unstable();
        *kept.entry(choice).or_insert(0) += 1;
    }
    // 12 ordered pairs; 2 correct leaves beside 3 wrong ones.
    assert_eq!((drawn.len(), kept.len()), (12, 6));
    assert!(drawn.values().all(|&count| near(count, TRIALS, 1.0 / 12.0)), "{drawn:?}");
    assert!(kept.values().all(|&count| near(count, TRIALS, 1.0 / 6.0)), "{kept:?}");
}

#[test]
fn a_branch_is_as_likely_as_its_probability() {
    let adaptive = Adaptive { rule: Rule::Aepo, probability: 0.5, weight: 0.2, beam: 2 };
    let rows = vec![Row { entropy: 1.3, baseline: 1.0 }; 50_000];
    let (branches, streak) = adaptive.branch(&rows, u32::MAX, 2, &mut Random::new(1)).unwrap();
    assert!(near(branches.iter().sum(), 50_000, 0.504_444));
    assert_eq!(streak, 3);
}
