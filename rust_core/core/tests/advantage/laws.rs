//! Laws that hold for any rewards, and what is refused.

use proptest::prelude::*;
use trunkline_core::Forest;
use trunkline_core::advantage::{Batch, Estimator, Setting, Trained, step_returns, to_nodes, to_tokens};

use super::nodes::{Trees, trees};
use super::{close, count, text, with};

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

/// Rewards from the smallest to larger than the largest.
fn size() -> impl Strategy<Value = f64> {
    let special = vec![0.0, -0.0, f64::NAN, 5e-324, -1e-300, 1e-160, 1.0, 1e8, 1e8 + 1.5e-8, 1e100, -1e100, 1e300];
    prop_oneof![8 => prop::sample::select(special[..11].to_vec()), 1 => prop::sample::select(special)]
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
    let (rewards, groups, subgroups) = scored;
    // Whole numbers, so that moving makes nothing equal and nothing unequal; and no row alone, which may get its reward.
    let whole: Vec<f64> = rewards.iter().chain(rewards).map(|reward| reward.round()).collect();
    let moved: Vec<f64> = whole.iter().map(|reward| reward * scale + shift).collect();
    let (groups, subgroups) = ([&groups[..]; 2].concat(), [&subgroups[..]; 2].concat());
    let nodes = u32::try_from(whole.len()).unwrap() + 4;
    // Four trees, of a rollout at every node that is no root.
    let forest = Forest::new((0..nodes).map(|node| node % 4).collect(), (4..nodes).collect()).unwrap();
    for preset in
        ["verl_grpo", "trl", "art", "rllm", "tree_grpo", "tree_grpo_published", "tree_2norm", "pass_at_k", "spo_grpo"]
    {
        let estimator = with(preset, &[("eps", Setting::Number(0.0))]);
        let of = |rewards: &[f64]| {
            let columns =
                Batch { group: Some(&groups), subgroup: Some(&subgroups), forest: Some(&forest), ..Batch::default() };
            estimator.estimate(&Batch { rewards, ..columns }).unwrap().values
        };
        let near = of(&whole).iter().zip(of(&moved)).all(|(a, b)| (a - b).abs() < 1e-9 || (a.is_nan() && b.is_nan()));
        prop_assert!(near, "{preset} {whole:?} {moved:?}");
    }
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

/// Rollouts in another order give every preset the same, each rollout what it had and each node what it had.
fn order_does_not_matter(trees: &Trees, keys: &[u64]) -> Result<(), TestCaseError> {
    let rows = trees.rewards.len();
    let mut order: Vec<usize> = (0..rows).collect();
    order.sort_by_key(|row| keys[*row]);
    let number: Vec<u32> = (0u32..).take(rows).collect();
    let key = |of: fn(u64) -> u64| keys[..rows].iter().map(|&key| u32::try_from(of(key)).unwrap()).collect::<Vec<_>>();
    let columns = [key(|key| key % 2), key(|key| key / 2 % 3), key(|key| key / 6 % 2), number];
    let turned = columns.clone().map(|column| order.iter().map(|row| column[*row]).collect::<Vec<_>>());
    let rewards: Vec<f64> = order.iter().map(|row| trees.rewards[*row]).collect();
    let masked: Vec<u8> = order.iter().map(|row| trees.flags[*row]).collect();
    let leaves = order.iter().map(|row| trees.forest.leaves()[*row]).collect();
    let forest = Forest::new(trees.forest.parents().to_vec(), leaves).unwrap();
    for preset in Estimator::PRESETS {
        let of = |columns: &[Vec<u32>; 4], rewards: &[f64], masked: &[u8], forest: &Forest| {
            let mut estimator = with(preset, &[]);
            let _ = estimator.set("singleton", &text("raw"));
            let _ = estimator.set("scale", &text(if *preset == "max_rl" { "std" } else { "none" }));
            let batch = Batch {
                rewards,
                group: Some(&columns[0]),
                subgroup: Some(&columns[1]),
                agent: Some(&columns[2]),
                anchor: Some(&columns[2]),
                trajectory: Some(&columns[3]),
                tokens: Some(&columns[1]),
                step_rewards: Some(rewards),
                masked: Some(masked),
                selected: Some(masked),
                forest: Some(forest),
                ..Batch::default()
            };
            estimator.estimate(&batch).unwrap()
        };
        let found = of(&turned, &rewards, &masked, &forest);
        let mut expected = of(&columns, &trees.rewards, &trees.flags, &trees.forest);
        if !with(preset, &[]).on_nodes() {
            expected.values = order.iter().map(|row| expected.values[*row]).collect();
            expected.kept = order.iter().map(|row| expected.kept[*row]).collect();
        }
        close(&found.values, &expected.values)?;
        prop_assert_eq!(found.kept, expected.kept, "{}", preset);
    }
    Ok(())
}

/// One pass over the tokens of a tree, weighted by the rollouts that share each, is the pass over all rollouts.
fn shared_tokens_count_as_often_as_they_are_passed(trees: &Trees) -> Result<(), TestCaseError> {
    let scored = trees.scored();
    let soft = estimate("dr_grpo", &trees.batch());
    let hard = to_nodes(&trees.forest, &soft, None).unwrap();
    let lengths: Vec<u64> = trees.nodes().map(|node| node as u64 % 3).collect();
    let length = |node: usize| f64::from(u32::try_from(lengths[node]).unwrap());
    let offsets: Vec<u64> = (0..=lengths.len()).map(|node| lengths[..node].iter().sum()).collect();
    let (landed, mask) = to_tokens(&hard.values, Some(&hard.kept), &offsets, Trained::All).unwrap();
    let passes: Vec<f64> = trees.nodes().map(|node| count(trees.below(node).len())).collect();
    let owner = trees.nodes().flat_map(|node| std::iter::repeat_n(node, usize::try_from(lengths[node]).unwrap()));
    let path = |row: usize| trees.path(trees.forest.leaves()[row] as usize).into_iter().map(length).sum::<f64>();
    let once: f64 = owner.clone().zip(&landed).map(|(node, value)| value * passes[node]).sum();
    let each: f64 = scored.iter().map(|&row| soft[row] * path(row)).sum();
    prop_assert!((once - each).abs() < 1e-9 * (1.0 + each.abs()), "{once} {each}");
    let once: f64 = owner.zip(mask).map(|(node, mask)| f64::from(mask) * passes[node]).sum();
    let each: f64 = scored.iter().map(|&row| path(row)).sum();
    prop_assert!((once - each).abs() < 1e-9 * (1.0 + each), "{once} {each}");
    Ok(())
}

/// A large offset costs no more than the rounding of a mean beside it.
fn offsets_cost_no_precision(steps: &[u8], offset: f64) -> Result<(), TestCaseError> {
    // Multiples of 2^-20, which are exact beside 2^30.
    let small: Vec<f64> = steps.iter().map(|&step| f64::from(step) / f64::from(1 << 20)).collect();
    let large: Vec<f64> = small.iter().map(|number| number + offset).collect();
    let nodes = u32::try_from(steps.len()).unwrap();
    let parents = (0..2 * nodes).map(|node| if node == 0 { 0 } else { (node - 1) / 2 }).collect();
    let forest = Forest::new(parents, (nodes..2 * nodes).collect()).unwrap();
    let keys: Vec<u32> = (0..nodes).map(|row| row % 3).collect();
    let columns = Batch { group: Some(&keys), subgroup: Some(&keys), forest: Some(&forest), ..Batch::default() };
    // By how much an error in a mean may grow: the inverse of what divides.
    for (preset, slope) in [
        ("prime_rl", 1.0),
        ("rloo_vectorized", 2.0),
        ("treerl_paper", 2.0),
        ("treepo_average", 2.0),
        ("trl", 1e4),
        ("tree_grpo", 2e6),
    ] {
        let mut estimator = with(preset, &[]);
        let _ = estimator.set("singleton", &text("zero"));
        let _ = estimator.set("whiten", &text("none"));
        let of = |rewards: &[f64]| estimator.estimate(&Batch { rewards, ..columns }).unwrap().values;
        let tolerance = 4.0 * f64::EPSILON * offset * slope;
        let near = of(&small).iter().zip(of(&large)).all(|(a, b)| (a - b).abs() <= tolerance);
        prop_assert!(near, "{preset}: {:?} {:?}", of(&small), of(&large));
    }
    Ok(())
}

/// Rewards of any size are either refused or give finite advantages.
fn nothing_overflows(rewards: &[f64], eps: f64) -> Result<(), TestCaseError> {
    let keys: Vec<u32> = (0u32..).take(rewards.len()).map(|row| row % 3).collect();
    let leaves: Vec<u32> = (0u32..).take(rewards.len()).map(|row| row % 7).collect();
    let forest = Forest::new(vec![0, 0, 0, 1, 1, 2, 6], leaves).unwrap();
    for preset in Estimator::PRESETS {
        let mut estimator = with(preset, &[]);
        let _ = estimator.set("eps", &Setting::Number(eps));
        let batch = Batch {
            rewards,
            group: Some(&keys),
            subgroup: Some(&keys),
            agent: Some(&keys),
            anchor: Some(&keys),
            trajectory: Some(&keys),
            step_rewards: Some(rewards),
            forest: Some(&forest),
            ..Batch::default()
        };
        if let Ok(found) = estimator.estimate(&batch) {
            let finite =
                |values: &[f64]| values.iter().zip(&found.kept).all(|(value, kept)| value.is_finite() || *kept == 0);
            prop_assert!(finite(&found.values), "{preset} {:?}", found.values);
            // A step without a reward leaves those before it without a return.
            if !estimator.on_nodes() && !preset.starts_with("gigpo") {
                prop_assert!(found.values.iter().zip(rewards).all(|(value, reward)| value.is_nan() == reward.is_nan()));
            }
        }
    }
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
    fn the_order_of_rollouts_does_not_matter(trees in trees(), keys in prop::collection::vec(any::<u64>(), 25)) {
        order_does_not_matter(&trees, &keys)?;
    }

    #[test]
    fn a_tree_in_one_pass_is_all_its_rollouts(trees in trees()) {
        shared_tokens_count_as_often_as_they_are_passed(&trees)?;
    }

    #[test]
    fn large_offsets_cost_no_precision(steps in prop::collection::vec(0u8..5, 1..20), power in 20i32..31) {
        offsets_cost_no_precision(&steps, 2f64.powi(power))?;
    }

    #[test]
    fn rewards_of_any_size_are_finite_advantages_or_refused(
        rewards in prop::collection::vec(size(), 0..20),
        eps in prop::sample::select(vec![0.0, 5e-324, 1e-200, 1e-6, 1e100]),
    ) {
        nothing_overflows(&rewards, eps)?;
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
    for (preset, option, listed) in [
        ("spo_rloo", "scale", "count_masked, drop_zero"),
        ("spo_rloo", "eps", "count_masked, drop_zero"),
        ("spo_grpo", "scale", "ddof, eps, count_masked, drop_zero"),
    ] {
        let error = Estimator::preset(preset).unwrap().check(option).unwrap_err().to_string();
        assert!(error.contains(&format!("is \"{option}\", and there are {listed};")), "{error}");
    }
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
