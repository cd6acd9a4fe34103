//! The tally against a plain count, and its settled test against every way the rest of the votes can go.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use trunkline_core::{Answer, Tally};

fn tally(votes: &[(Option<u32>, u32)]) -> Tally {
    let mut tally = Tally::new();
    for &(answer, weight) in votes {
        tally.vote(answer.map(Answer::Cluster), f64::from(weight)).unwrap();
    }
    tally
}

/// Answers in order of first votes with their weights.
fn count(votes: &[(Option<u32>, u32)]) -> Vec<(u32, u32)> {
    let mut counts: Vec<(u32, u32)> = Vec::new();
    for &(answer, weight) in votes {
        let Some(answer) = answer else { continue };
        match counts.iter_mut().find(|(known, _)| *known == answer) {
            Some((_, sum)) => *sum += weight,
            None => counts.push((answer, weight)),
        }
    }
    counts
}

fn winner(counts: &[(u32, u32)]) -> Option<u32> {
    let best = counts.iter().map(|(_, weight)| *weight).max()?;
    counts.iter().find(|(_, weight)| *weight == best).map(|(answer, _)| *answer)
}

/// Every continuation by `tries` votes for one of the answers or a new one, of no weight or the heaviest, or by abstentions,
/// and who wins alone after it.
fn outcomes(votes: &[(Option<u32>, u32)], tries: u32, heaviest: u32) -> Vec<Option<u32>> {
    if tries == 0 {
        let counts = count(votes);
        let first = winner(&counts);
        let best = counts.iter().map(|(_, weight)| *weight).max().unwrap_or(0);
        let alone = counts.iter().filter(|(_, weight)| *weight == best).count() == 1 && best > 0;
        return vec![first.filter(|_| alone)];
    }
    let answers = (0..5).map(Some).chain([None]);
    let next = answers.flat_map(|answer| [(answer, 0), (answer, heaviest)]);
    next.flat_map(|vote| outcomes(&[votes, &[vote]].concat(), tries - 1, heaviest)).collect()
}

proptest! {
    #[test]
    fn a_tally_is_a_count(votes in prop::collection::vec((prop::option::of(0u32..6), 0u32..5), 0..40)) {
        let (tally, counts) = (tally(&votes), count(&votes));
        let found: Vec<_> = tally.answers().iter().map(|votes| (votes.answer.clone(), votes.weight)).collect();
        let expected: Vec<_> =
            counts.iter().map(|&(answer, weight)| (Answer::Cluster(answer), f64::from(weight))).collect();
        prop_assert_eq!(found, expected);
        let leader = winner(&counts);
        prop_assert_eq!(tally.leader().map(|votes| votes.answer.clone()), leader.map(Answer::Cluster));
        let rest: Vec<_> = counts.iter().copied().filter(|(answer, _)| Some(*answer) != leader).collect();
        prop_assert_eq!(tally.runner_up().map(|votes| votes.answer.clone()), winner(&rest).map(Answer::Cluster));
        let best = |counts: &[(u32, u32)]| counts.iter().map(|(_, weight)| *weight).max().unwrap_or(0);
        let margin = f64::from(best(&counts) - best(&rest));
        prop_assert_eq!(tally.margin().to_bits(), margin.to_bits());
        prop_assert_eq!(tally.abstained() as usize, votes.iter().filter(|(answer, _)| answer.is_none()).count());
    }

    #[test]
    fn settled_means_that_no_continuation_changes_the_winner(
        votes in prop::collection::vec((prop::option::weighted(0.9, 0u32..3), 0u32..3), 0..7),
        tries in 1u32..4,
        heaviest in 0u32..3,
    ) {
        let tally = tally(&votes);
        let leader = winner(&count(&votes));
        let unchanged = leader.is_some() && outcomes(&votes, tries, heaviest).into_iter().all(|winner| winner == leader);
        prop_assert_eq!(tally.settled(tries, f64::from(heaviest)), Ok(unchanged));
        prop_assert_eq!(tally.settled(0, 1.0), Ok(true));
    }

    #[test]
    fn fractions_never_settle_what_exact_sums_leave_open(
        votes in prop::collection::vec((0u32..3, 0u32..20), 1..20),
        tries in 1u32..5,
        heaviest in 0u32..20,
    ) {
        // Tenths, which no f64 holds exactly, against their whole numerators.
        let mut tenths = Tally::new();
        for &(answer, weight) in &votes {
            tenths.vote(Some(Answer::Cluster(answer)), f64::from(weight) / 10.0).unwrap();
        }
        let whole: Vec<_> = votes.iter().map(|&(answer, weight)| (Some(answer), weight)).collect();
        let expected = tally(&whole).settled(tries, f64::from(heaviest));
        prop_assert_eq!(tenths.settled(tries, f64::from(heaviest) / 10.0), expected);
    }
}
