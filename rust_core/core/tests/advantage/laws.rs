//! Laws that hold for any rewards, and what is refused.

use proptest::prelude::*;
use trunkline_core::Forest;
use trunkline_core::advantage::{Batch, Estimator, Setting, step_returns};

use super::{close, text, with};

fn estimate(name: &str, batch: &Batch) -> Vec<f64> {
    with(name, &[]).estimate(batch).unwrap().values
}

/// Rewards, groups and subgroups.
type Scored = (Vec<f64>, Vec<u32>, Vec<u32>);

fn scored() -> impl Strategy<Value = Scored> {
    let reward = prop_oneof![(0u8..3).prop_map(f64::from), -10.0..10.0];
    prop::collection::vec((reward, 0u32..4, 0u32..3), 1..30).prop_map(|rows| {
        let (rewards, keys): (Vec<_>, Vec<_>) = rows.into_iter().map(|row| (row.0, (row.1, row.2))).unzip();
        let (groups, subgroups) = keys.into_iter().unzip();
        (rewards, groups, subgroups)
    })
}

fn sums_are_zero(scored: &Scored) -> Result<(), TestCaseError> {
    let (rewards, groups, _) = scored;
    let batch = Batch { rewards, group: Some(groups), ..Batch::default() };
    for preset in ["trl", "art", "prime_rl", "rloo_vectorized", "tree_grpo_inter"] {
        let found = estimate(preset, &batch);
        for group in 0..4 {
            let sum: f64 = found.iter().zip(groups).filter(|row| *row.1 == group).map(|row| row.0).sum();
            prop_assert!(sum.abs() < 1e-9, "{preset} {sum}");
        }
    }
    Ok(())
}

fn affine_changes_nothing(scored: &Scored, scale: f64, shift: f64) -> Result<(), TestCaseError> {
    let (rewards, groups, _) = scored;
    // Whole numbers, so that moving makes nothing equal and nothing unequal.
    let whole: Vec<f64> = rewards.iter().map(|reward| reward.round()).collect();
    let moved: Vec<f64> = whole.iter().map(|reward| reward * scale + shift).collect();
    let of = |rewards: &[f64]| {
        let estimator = with("trl", &[("eps", Setting::Number(0.0))]);
        estimator.estimate(&Batch { rewards, group: Some(groups), ..Batch::default() }).unwrap().values
    };
    let near = of(&whole).iter().zip(of(&moved)).all(|(a, b)| (a - b).abs() < 1e-9);
    prop_assert!(near, "{whole:?} {moved:?}");
    Ok(())
}

fn equal_rewards_give_zero(reward: f64, rows: usize, subgroups: u32) -> Result<(), TestCaseError> {
    let (rewards, groups) = (vec![reward; rows], vec![0; rows]);
    let subgroup: Vec<u32> = (0u32..).take(rows).map(|row| row % subgroups).collect();
    let batch = Batch { rewards: &rewards, group: Some(&groups), subgroup: Some(&subgroup), ..Batch::default() };
    for preset in [
        "verl_grpo",
        "verl_grpo_vectorized",
        "trl",
        "art",
        "dr_grpo",
        "rloo",
        "reinforce_pp_baseline",
        "tree_grpo",
        "pass_at_k",
    ] {
        prop_assert_eq!(estimate(preset, &batch), vec![0.0; rows]);
    }
    Ok(())
}

fn order_does_not_matter(scored: &Scored, turn: usize) -> Result<(), TestCaseError> {
    let (rewards, groups, subgroups) = scored;
    let turned = |column: &[u32]| {
        let mut column = column.to_vec();
        column.rotate_left(turn % rewards.len());
        column
    };
    let (turned_groups, turned_subgroups) = (turned(groups), turned(subgroups));
    let mut turned_rewards = rewards.clone();
    turned_rewards.rotate_left(turn % rewards.len());
    let batch = Batch { rewards, group: Some(groups), subgroup: Some(subgroups), ..Batch::default() };
    let other = Batch {
        rewards: &turned_rewards,
        group: Some(&turned_groups),
        subgroup: Some(&turned_subgroups),
        ..Batch::default()
    };
    let mut expected = estimate("tree_grpo", &batch);
    expected.rotate_left(turn % rewards.len());
    close(&estimate("tree_grpo", &other), &expected)?;
    Ok(())
}

fn single_leaves_are_a_chain(scored: &Scored) -> Result<(), TestCaseError> {
    let (rewards, groups, _) = scored;
    let each: Vec<u32> = (0u32..).take(rewards.len()).collect();
    let batch = Batch { rewards, group: Some(groups), subgroup: Some(&each), ..Batch::default() };
    close(&estimate("tree_grpo", &batch), &estimate("tree_grpo_inter", &batch))?;
    Ok(())
}

fn one_tree_is_the_group(scored: &Scored) -> Result<(), TestCaseError> {
    let (rewards, groups, _) = scored;
    let one = vec![0; rewards.len()];
    let batch = Batch { rewards, group: Some(groups), subgroup: Some(&one), ..Batch::default() };
    let inter = estimate("tree_grpo_inter", &batch);
    close(&estimate("tree_grpo_intra", &batch), &inter)?;
    close(&estimate("tree_grpo", &batch), &inter.iter().map(|value| 2.0 * value).collect::<Vec<_>>())?;
    Ok(())
}

fn flat_treepo_is_centred(scored: &Scored) -> Result<(), TestCaseError> {
    let (rewards, _, _) = scored;
    let nodes = u32::try_from(rewards.len()).unwrap() + 1;
    let forest = Forest::new(vec![0; nodes as usize], (1..nodes).collect()).unwrap();
    let batch = Batch { rewards, forest: Some(&forest), ..Batch::default() };
    let expected = estimate("dr_grpo", &batch);
    for preset in ["treepo_average", "treepo_size"] {
        close(&with(preset, &[("whiten", text("none"))]).estimate(&batch).unwrap().values, &expected)?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn centred_advantages_of_a_group_sum_to_zero(scored in scored()) {
        sums_are_zero(&scored)?;
    }

    #[test]
    fn moved_rewards_change_nothing_where_the_deviation_divides(
        scored in scored(), scale in 0.5f64..50.0, shift in -100.0f64..100.0,
    ) {
        affine_changes_nothing(&scored, scale, shift)?;
    }

    #[test]
    fn groups_without_variance_give_exactly_zero(reward in -10.0f64..10.0, rows in 2usize..40, subgroups in 1u32..5) {
        equal_rewards_give_zero(reward, rows, subgroups)?;
    }

    #[test]
    fn the_order_of_rows_does_not_matter(scored in scored(), turn in 0usize..30) {
        order_does_not_matter(&scored, turn)?;
    }

    #[test]
    fn a_tree_for_every_leaf_is_a_chain(scored in scored()) {
        single_leaves_are_a_chain(&scored)?;
    }

    #[test]
    fn one_tree_gives_the_same_between_and_within(scored in scored()) {
        one_tree_is_the_group(&scored)?;
    }

    #[test]
    fn treepo_without_branches_is_centred(scored in scored()) {
        flat_treepo_is_centred(&scored)?;
    }
}

#[test]
fn columns_and_options_that_do_not_fit_are_refused() {
    let ok = Batch { rewards: &[1.0, 0.0], group: Some(&[0, 0]), ..Batch::default() };
    let refused = |preset: &str, batch: Batch| {
        Estimator::preset(preset).and_then(|estimator| estimator.estimate(&batch)).unwrap_err().to_string()
    };
    let cases = [
        ("nothing", ok, "preset is \"nothing\", and there are arpo_hard, arpo_soft"),
        ("trl", Batch { group: None, ..ok }, "the column group is missing"),
        ("trl", Batch { group: Some(&[0]), ..ok }, "1 groups where 2 are needed"),
        ("trl", Batch { rewards: &[1.0, f64::INFINITY], ..ok }, "reward 1 is inf"),
        ("trl", Batch { rewards: &[-1e101, 0.0], ..ok }, "reward 0 is -1"),
        ("tree_grpo", ok, "the column subgroup is missing"),
        ("dr_mas", ok, "the column agent is missing"),
        ("gigpo_mean", ok, "the column trajectory is missing"),
        ("treepo_size", ok, "the column forest (parents, leaves) is missing"),
        ("spo_rloo", ok, "the column forest (parents, leaves) is missing"),
        ("trl", Batch { forest: Some(&Forest::default()), ..ok }, "0 leaves where 2 are needed"),
        ("trl", Batch { tokens: Some(&[1]), ..ok }, "1 token counts where 2 are needed"),
        ("max_rl", Batch { rewards: &[-1.0, -2.0], ..ok }, "the group of row 0 has the mean -1.5"),
    ];
    for (preset, batch, text) in cases {
        let error = refused(preset, batch);
        assert!(error.starts_with(text), "{error}");
    }
    let set = |option, setting| Estimator::preset("trl").unwrap().set(option, &setting).unwrap_err().to_string();
    let text = |word: &str| Setting::Text(word.to_owned());
    assert!(set("gamma", Setting::Number(0.5)).starts_with("an option is \"gamma\", and there are scopes, unit"));
    assert!(set("centre", text("median")).starts_with("centre is \"median\", and there are mean, leave_one_out"));
    assert!(set("scopes", text("group+subtree")).starts_with("scopes is \"group+subtree\""));
    assert_eq!(set("ddof", Setting::Number(0.5)), "ddof is 0.5; it must be 0 or 1");
    assert_eq!(set("eps", Setting::Number(f64::NAN)), "eps is NaN; it must be 0 to 1e100");
    assert_eq!(set("eps", text("1")), "eps is \"1\"; it must be a number");
    assert_eq!(set("drop_zero", Setting::Number(1.0)), "drop_zero is 1; it must be True or False");
    let late = step_returns(&[0.0, 0.0], &[3, 3], Some(&[2, 1]), 0.9).unwrap_err().to_string();
    assert_eq!(late, "step 1 of row 1 comes after step 2 of its trajectory; it must be in ascending order");
    let mut nested = Estimator::preset("treepo_average").unwrap();
    nested.set("unit", &text("trajectory")).unwrap();
    let forest = Forest::new(vec![0, 0, 0], vec![1, 2]).unwrap();
    let error = nested.estimate(&Batch { forest: Some(&forest), ..ok }).unwrap_err().to_string();
    assert!(error.contains("over subtrees"), "{error}");
}

#[test]
fn every_preset_lists_options_that_it_takes_back() {
    for name in Estimator::PRESETS {
        let preset = Estimator::preset(name).unwrap();
        let mut copy = preset.clone();
        for (option, setting) in preset.settings() {
            copy.set(option, &setting).unwrap();
        }
        assert_eq!(copy, preset);
        assert!(preset.settings().iter().any(|(option, _)| *option == "drop_zero"), "{name}");
    }
}
