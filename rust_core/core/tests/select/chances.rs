//! What is drawn is as likely as it should be.

use trunkline_core::Random;
use trunkline_core::select::{Adaptive, EntropyRow, LeafChoice, Rule, uniform};

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
fn every_draw_and_every_choice_is_as_likely_as_any_other() {
    const TRIALS: u32 = 24_000;
    let mut drawn = std::collections::HashMap::new();
    let mut kept = std::collections::HashMap::new();
    let mut random = Random::new(5);
    for _ in 0..TRIALS {
        *drawn.entry(uniform(&[6, 7, 8, 9], 2, false, &mut random).unwrap()).or_insert(0) += 1;
        let mut choice = LeafChoice::Balanced { ratio: 0.5 }.pick(&[1, 0, 1, 0, 0], 2, &mut random).unwrap();
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
    let rows = vec![EntropyRow { entropy: 1.3, baseline: 1.0 }; 50_000];
    let (branches, streak) = adaptive.branch(&rows, u32::MAX, 2, &mut Random::new(1)).unwrap();
    assert!(near(branches.iter().sum(), 50_000, 0.504_444));
    assert_eq!(streak, 3);
}
