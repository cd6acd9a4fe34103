//! Returns of steps, values on nodes and tokens, and columns that do not fit.

use proptest::prelude::*;
use trunkline_core::advantage::{NodeValues, Trained, step_returns, to_nodes, to_tokens};
use trunkline_core::{Forest, SAMPLED, SYNTHETIC, TRUNCATED};

use super::close;

fn returns_follow_the_model(steps: Vec<(u32, u32, f64)>, gamma: f64) -> Result<(), TestCaseError> {
    let mut steps = steps;
    steps.sort_by_key(|step| step.1);
    let column = |of: fn(&(u32, u32, f64)) -> u32| steps.iter().map(of).collect::<Vec<_>>();
    let (trajectory, step) = (column(|row| row.0), column(|row| row.1));
    let rewards: Vec<f64> = steps.iter().map(|row| row.2).collect();
    let found = step_returns(&rewards, &trajectory, Some(&step), gamma).unwrap();
    // By hand: the distinct steps of the trajectory from this one on, each with the reward of its first row.
    let expected = |row: usize| {
        let mut distinct: Vec<u32> = (0..steps.len())
            .filter(|b| trajectory[*b] == trajectory[row] && step[*b] >= step[row])
            .map(|b| step[b])
            .collect();
        distinct.dedup();
        let first =
            |number: u32| (0..steps.len()).find(|b| trajectory[*b] == trajectory[row] && step[*b] == number).unwrap();
        distinct.iter().rev().fold(0.0, |after, number| rewards[first(*number)] + gamma * after)
    };
    close(&found, &(0..steps.len()).map(expected).collect::<Vec<_>>())?;
    Ok(())
}

/// A value, whether it is kept, and the mask of its tokens.
type Span = (f64, u8, Vec<u8>);

fn spans() -> impl Strategy<Value = Vec<Span>> {
    prop::collection::vec((-5.0f64..5.0, 0u8..2, prop::collection::vec(0u8..2, 0..5)), 0..8)
}

fn tokens(spans: &[Span]) -> Result<(), TestCaseError> {
    let values: Vec<f64> = spans.iter().map(|span| span.0).collect();
    let kept: Vec<u8> = spans.iter().map(|span| span.1).collect();
    let mask: Vec<u8> = spans.iter().flat_map(|span| span.2.clone()).collect();
    let mut offsets = vec![0u64];
    for span in spans {
        offsets.push(offsets[offsets.len() - 1] + span.2.len() as u64);
    }
    let (values_of_tokens, trained) = to_tokens(&values, Some(&kept), &offsets, Trained::Mask(&mask)).unwrap();
    let expected: Vec<(f64, u8)> = spans
        .iter()
        .flat_map(|(value, kept, mask)| mask.iter().map(move |mask| (value * f64::from(mask * kept), mask * kept)))
        .collect();
    prop_assert_eq!(values_of_tokens.into_iter().zip(trained).collect::<Vec<_>>(), expected);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn returns_discount_later_steps(
        steps in prop::collection::vec((0u32..3, 0u32..3, -5.0f64..5.0), 0..20), gamma in 0.0f64..1.0,
    ) {
        returns_follow_the_model(steps, gamma)?;
    }

    #[test]
    fn tokens_get_the_value_they_belong_to(spans in spans()) {
        tokens(&spans)?;
    }
}

#[test]
fn columns_that_do_not_fit_are_refused() {
    let forest = Forest::new(vec![0, 0], vec![1]).unwrap();
    let mut found = NodeValues::default();
    let texts = [
        (found.leaf_means(&forest, &[1.0, 2.0]), "2 rewards where 1 are needed"),
        (found.child_means(&forest, &[f64::NEG_INFINITY]), "reward 0 is -inf"),
        (found.discounted(&forest, &[1.0], None, 0.9), "1 rewards of nodes where 2 are needed"),
        (found.discounted(&forest, &[1.0, 1.0], Some(&[1]), 0.9), "1 visits where 2 are needed"),
        (found.discounted(&forest, &[1.0, 1.0], None, f64::NAN), "gamma is NaN; it must be 0 to 1"),
        (found.named("leaf_mean", &forest, &[1.0], Some(&[1, 1]), 0.9), "visits are given to leaf_mean"),
        (found.named("median", &forest, &[1.0], None, 0.9), "backup is \"median\", and there are leaf_mean"),
        (to_tokens(&[1.0], None, &[0], Trained::All).map(drop), "1 offsets where 2 are needed"),
        (to_tokens(&[1.0], Some(&[]), &[0, 1], Trained::All).map(drop), "0 kept where 1 are needed"),
        (to_tokens(&[1.0], None, &[0, 2], Trained::Mask(&[1])).map(drop), "1 mask where 2 are needed"),
        (to_tokens(&[1.0], None, &[0, 2], Trained::Flags(&[1])).map(drop), "1 flags where 2 are needed"),
        (to_nodes(&forest, &[1.0, 2.0], None).map(drop), "2 rewards where 1 are needed"),
        (to_nodes(&forest, &[1.0], Some(&[])).map(drop), "0 kept where 1 are needed"),
        (to_tokens(&[1.0], None, &[1, 2], Trained::All).map(drop), "offset 0 of the runs is 1"),
        (to_tokens(&[1.0, 2.0], None, &[0, 2, 1], Trained::All).map(drop), "offset 1 of the runs is 2"),
        (to_tokens(&[1.0], None, &[0, u64::MAX], Trained::All).map(drop), "offsets end at 18446744073709551615"),
    ];
    for (refused, text) in texts {
        let error = refused.unwrap_err().to_string();
        assert!(error.starts_with(text), "{error}");
    }
}

#[test]
fn advantages_land_on_the_nodes_that_kept_rollouts_share() {
    let forest = Forest::new(vec![0, 0, 1, 1, 0], vec![2, 3, 3, 4]).unwrap();
    let found = to_nodes(&forest, &[1.0, 4.0, -2.0, f64::NAN], None).unwrap();
    close(&found.values, &[1.0, 1.0, 1.0, 1.0, f64::NAN]).unwrap();
    assert_eq!(found.kept, [1, 1, 1, 1, 0]);
    let found = to_nodes(&forest, &[1.0, 4.0, 0.0, 0.0], Some(&[1, 1, 0, 0])).unwrap();
    close(&found.values, &[2.5, 2.5, 1.0, 4.0, f64::NAN]).unwrap();
    assert_eq!(found.kept, [1, 1, 1, 1, 0]);
}

#[test]
fn flags_train_what_a_model_chose() {
    let flags = [SAMPLED, SAMPLED | SYNTHETIC, 0, SAMPLED | TRUNCATED, SYNTHETIC];
    let (values_of_tokens, mask) = to_tokens(&[1.5, 2.5], None, &[0, 2, 5], Trained::Flags(&flags)).unwrap();
    assert_eq!((values_of_tokens, mask), (vec![1.5, 0.0, 0.0, 2.5, 0.0], vec![1, 0, 0, 1, 0]));
}

#[test]
fn values_land_on_tokens_and_nothing_lands_where_nothing_is_trained() {
    let values = [1.5, f64::NAN, -0.5, 2.0];
    let (values_of_tokens, mask) =
        to_tokens(&values, Some(&[1, 1, 1, 0]), &[0, 2, 3, 3, 5], Trained::Mask(&[1, 0, 1, 1, 1])).unwrap();
    assert_eq!((values_of_tokens, mask), (vec![1.5, 0.0, 0.0, 0.0, 0.0], vec![1, 0, 0, 0, 0]));
    let (values_of_tokens, mask) = to_tokens(&[1.5, 2.5], None, &[0, 1, 3], Trained::All).unwrap();
    assert_eq!((values_of_tokens, mask), (vec![1.5, 2.5, 2.5], vec![1, 1, 1]));
}
