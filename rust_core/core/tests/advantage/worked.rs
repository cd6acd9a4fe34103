//! Estimators reproduce the numbers that the published code gives on small inputs.

use std::slice::from_ref;

use trunkline_core::advantage::{Batch, Estimator, NodeValues, Setting, Trained, step_returns, to_nodes, to_tokens};
use trunkline_core::{Forest, SAMPLED, SYNTHETIC, TRUNCATED};

use super::{text, with};

/// Two trees of three leaves each, flat.
const E6: [f64; 6] = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0];
const TREES: [u32; 6] = [0, 0, 0, 1, 1, 1];

/// q -> A{A1, A2, A3}, B{B1{B1a, B1b}, B2}, rewards in leaf order as in E6. Nodes: q A B A1 A2 A3 B1 B2 B1a B1b.
fn d6() -> Forest {
    Forest::new(vec![0, 0, 0, 1, 1, 1, 2, 2, 6, 6], vec![3, 4, 5, 8, 9, 7]).unwrap()
}

#[track_caller]
fn close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-5 || (a.is_nan() && b.is_nan());
    assert!(found.iter().zip(expected).all(near), "found {found:?}\nexpected {expected:?}");
}

#[track_caller]
fn gives(preset: &str, settings: &[(&str, Setting)], batch: &Batch, expected: &[f64]) {
    close(&with(preset, settings).estimate(batch).unwrap().values, expected);
}

#[track_caller]
fn one_group(preset: &str, rewards: &[f64], expected: &[f64]) {
    let group = vec![0; rewards.len()];
    gives(preset, &[], &Batch { rewards, group: Some(&group), ..Batch::default() }, expected);
}

/// The six rewards, each times `size`, with the sign of the reward less a half.
fn signs(size: f64) -> Vec<f64> {
    E6.iter().map(|reward| size * (2.0 * reward - 1.0)).collect()
}

#[test]
fn conventions_of_normalisation_differ_as_listed() {
    let rewards = [1.0, 0.0, 0.0, 1.0];
    let of = |size: f64| [size, -size, -size, size];
    for (preset, size) in [
        ("verl_grpo", 0.866_024),
        ("verl_grpo_vectorized", 0.866_024),
        ("skyrl", 0.866_024),
        ("slime", 0.866_024),
        ("trl", 0.865_875),
        ("art", 0.999_998),
        ("rllm", 0.999_998),
        ("prime_rl", 0.5),
        ("dr_grpo", 0.5),
        ("max_rl", 1.0),
    ] {
        one_group(preset, &rewards, &of(size));
    }
}

#[test]
fn one_row_alone_gets_what_its_framework_gives() {
    for (preset, value) in [
        ("verl_grpo", 0.699_999),
        ("verl_grpo_vectorized", 0.699_999),
        ("skyrl", 0.699_999),
        ("rllm", 0.699_999),
        ("arpo_soft", 0.699_999),
        ("dr_grpo", 0.7),
        ("rloo", 0.7),
        ("rloo_vectorized", 0.0),
        ("trl", 0.0),
        ("art", 0.0),
        ("prime_rl", 0.0),
        ("max_rl", 0.0),
        ("tree_grpo", 0.0),
    ] {
        let batch = Batch { rewards: &[0.7], group: Some(&[4]), subgroup: Some(&[0]), ..Batch::default() };
        gives(preset, &[], &batch, &[value]);
    }
    for preset in ["slime", "pass_at_k"] {
        let batch = Batch { rewards: &[0.7], group: Some(&[4]), ..Batch::default() };
        let refused = with(preset, &[]).estimate(&batch).unwrap_err().to_string();
        assert!(refused.starts_with("the group of row 0 has 1 scored observation"), "{refused}");
    }
}

#[test]
fn three_equal_rewards_give_exactly_nothing() {
    for preset in Estimator::PRESETS {
        let (forest, keys) = (Forest::new(vec![0, 0, 0, 0], vec![1, 2, 3]).unwrap(), [0; 3]);
        let batch = Batch {
            rewards: &[0.7; 3],
            group: Some(&keys),
            subgroup: Some(&keys),
            agent: Some(&keys),
            anchor: Some(&keys),
            trajectory: Some(&[0, 1, 2]),
            step_rewards: Some(&[0.7; 3]),
            forest: Some(&forest),
            ..Batch::default()
        };
        let found = with(preset, &[]).estimate(&batch).unwrap().values;
        let expected = match *preset {
            // A value, not an advantage; and gains over a root that counts as 0.
            "tree_grpo_diff" => vec![0.7 / 3f64.sqrt(), 0.7, 0.7, 0.7],
            _ => vec![0.0; found.len()],
        };
        assert_eq!(found, expected, "{preset}");
    }
}

#[test]
fn the_deviation_may_be_that_of_the_whole_batch() {
    let batch = Batch { rewards: &[1.0, 0.0, 3.0, 2.0], group: Some(&[0, 0, 1, 1]), ..Batch::default() };
    // Of 1, 0, 3, 2 with one degree of freedom less: 5/3.
    let size = 0.5 / ((5.0f64 / 3.0).sqrt() + 1e-4);
    gives("trl", &[("scale", text("batch_std"))], &batch, &[size, -size, size, -size]);
}

#[test]
fn grpo_and_its_relatives_on_six_rewards() {
    one_group("verl_grpo", &E6, &signs(0.912_869));
    one_group("arpo_soft", &E6, &signs(0.912_869));
    one_group("dr_grpo", &E6, &signs(0.5));
    one_group("rloo", &E6, &signs(0.6));
    one_group("rloo_vectorized", &E6, &signs(0.6));
    let tokens = [2; 6];
    let batch = Batch { rewards: &E6, group: Some(&[0; 6]), tokens: Some(&tokens), ..Batch::default() };
    gives("reinforce_pp_baseline", &[], &batch, &signs(0.957_427));
    one_group("pass_at_k", &[0.2, 0.9, 0.5, 0.1], &[0.0, 1.112_970, 0.0, 0.0]);
}

#[test]
fn tree_grpo_between_and_within_trees() {
    let batch = Batch { rewards: &E6, group: Some(&[0; 6]), subgroup: Some(&TREES), ..Batch::default() };
    let intra = [1.154_698, -0.577_349, -0.577_349, 0.577_349, 0.577_349, -1.154_699];
    let sum = [2.067_568, -1.490_219, -1.490_219, 1.490_218, 1.490_218, -2.067_568];
    gives("tree_grpo_inter", &[], &batch, &signs(0.912_869));
    gives("tree_grpo_intra", &[], &batch, &intra);
    gives("tree_grpo", &[], &batch, &sum);
    gives("tree_grpo_published", &[], &batch, &sum);
    gives("tree_2norm", &[], &batch, &[1.154_699, -0.577_350, -0.577_350, 0.577_350, 0.577_350, -1.154_699]);
}

#[test]
fn tree_grpo_with_a_tree_that_is_all_the_same() {
    let rewards = [0.0, 0.0, 0.0, 1.0, 1.0, 0.0];
    let batch = Batch { rewards: &rewards, group: Some(&[0; 6]), subgroup: Some(&TREES), ..Batch::default() };
    let low = -0.645_496;
    gives("tree_grpo_inter", &[], &batch, &[low, low, low, 1.290_992, 1.290_992, low]);
    gives("tree_grpo_intra", &[], &batch, &[0.0, 0.0, 0.0, 0.577_349, 0.577_349, -1.154_699]);
    gives("tree_grpo", &[], &batch, &[low, low, low, 1.868_341, 1.868_341, -1.800_195]);
}

#[test]
fn a_tree_of_one_leaf_gets_no_term_of_its_own_unless_as_published() {
    let batch =
        Batch { rewards: &[1.0, 0.0, 1.0], group: Some(&[0; 3]), subgroup: Some(&[0, 0, 1]), ..Batch::default() };
    gives("tree_grpo_published", &[], &batch, &[1.284_455, -1.861_804, 1.577_348]);
    gives("tree_grpo", &[], &batch, &[1.284_455, -1.861_804, 0.577_349]);
}

#[test]
fn the_two_backups_differ_on_uneven_trees() {
    let (forest, third) = (d6(), 1.0 / 3.0);
    let mut found = NodeValues::default();
    found.leaf_means(&forest, &E6).unwrap();
    close(&found.values, &[0.5, third, 2.0 * third, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0]);
    close(&found.local[..3], &[0.0, -0.166_667, 0.166_667]);
    close(&found.local[6..8], &[0.333_333, -0.666_667]);
    close(&found.global, &[0.0, -0.166_667, 0.166_667, 0.5, -0.5, -0.5, 0.5, -0.5, 0.5, 0.5]);
    found.child_means(&forest, &E6).unwrap();
    close(&found.values, &[0.416_667, third, 0.5, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0]);
}

#[test]
fn the_discounted_backup_weighs_children_by_visits() {
    let forest = Forest::new(vec![0, 0, 0, 1], vec![3, 2]).unwrap();
    // V(3) = .8; V(1) = .8 - .2 + .9 V(3); V(0) = (2 (.2 + .9 V(1)) + (.5 + .9 * .5)) / 3.
    let mut found = NodeValues::default();
    found.discounted(&forest, &[0.0, 0.2, 0.5, 0.8], Some(&[3, 2, 1, 1]), 0.9).unwrap();
    close(&found.values, &[1.242, 1.32, 0.5, 0.8]);
}

#[test]
fn tree_grpo_scores_of_differences_are_those_of_each_node() {
    let batch = Batch { rewards: &E6, forest: Some(&d6()), ..Batch::default() };
    let found = with("tree_grpo_diff", &[]).estimate(&batch).unwrap().values;
    close(&found[1..], &[0.192_450, 0.423_390, 1.566_667, 0.0, 0.0, 0.872_098, 0.0, 1.0, 1.0]);
}

#[test]
fn treerl_as_its_paper_has_it() {
    let batch = Batch { rewards: &E6, forest: Some(&d6()), ..Batch::default() };
    let expected = [0.0, -0.192_450, 0.192_450, 1.166_667, -0.833_333, -0.833_333, 0.589_256, -1.166_667, 0.5, 0.5];
    gives("treerl_paper", &[], &batch, &expected);
}

/// Two chains that branch at one and at two places, as segments: 0 is the prompt, 1 to 4 the first chain, 5 to 9 the
/// second.
fn segments() -> Forest {
    Forest::new(vec![0, 0, 1, 1, 1, 0, 5, 5, 7, 7], vec![2, 3, 4, 6, 8, 9]).unwrap()
}

#[test]
fn treerl_as_its_code_has_it() {
    let (forest, rewards) = (segments(), [1.0, 0.0, 0.0, 1.0, 1.0, 0.0]);
    let batch = Batch { rewards: &rewards, forest: Some(&forest), ..Batch::default() };
    let cases = [
        ("sqrt", [-0.230_940, 1.315_470, -1.084_530, 0.230_940, 1.084_530, -0.115_470, 1.2, -1.2]),
        ("uniform", [-0.133_333, 1.266_667, -1.133_333, 0.133_333, 1.133_333, -0.066_667, 1.2, -1.2]),
        ("none", [-0.4, 1.4, -1.0, 0.4, 1.0, -0.2, 1.2, -1.2]),
    ];
    for (damping, [first, good, bad, second, at_two, between, main, at_four]) in cases {
        let expected = [0.0, first, good, bad, bad, second, at_two, between, main, at_four];
        gives("treerl_code", &[("damping", text(damping))], &batch, &expected);
    }
}

#[test]
fn treerl_compares_the_trees_of_a_task() {
    // The same two chains, each with a root of its own.
    let forest = Forest::new(vec![0, 0, 1, 1, 1, 5, 5, 6, 6, 8, 8], vec![2, 3, 4, 7, 9, 10]).unwrap();
    let rewards = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0];
    let batch = Batch { rewards: &rewards, group: Some(&[3; 6]), forest: Some(&forest), ..Batch::default() };
    let (bad, at) = (-1.084_530, -0.115_470);
    let expected = [0.0, -0.230_940, 1.315_470, bad, bad, 0.0, 0.230_940, -bad, at, 1.2, -1.2];
    gives("treerl_code", &[], &batch, &expected);
}

#[test]
fn treerl_may_reward_the_value_or_the_gain_over_all_ancestors() {
    let (forest, none) = (segments(), ("damping", text("none")));
    let batch = Batch { rewards: &[1.0, 0.0, 0.0, 1.0, 1.0, 0.0], forest: Some(&forest), ..Batch::default() };
    let values = [0.0, -0.2, 0.6, -0.6, -0.6, 0.2, 0.6, 0.0, 0.6, -0.6];
    gives("treerl_code", &[none.clone(), ("signal", text("value"))], &batch, &values);
    let gains = [0.0, -0.2, 0.8, -0.4, -0.4, 0.2, 0.4, -0.2, 0.6, -0.6];
    gives("treerl_code", &[none.clone(), ("signal", text("local"))], &batch, &gains);
    // Node 8 is worth .6; above it are 0, .2 and 0.
    let over = [0.0, -0.2, 0.7, -0.5, -0.5, 0.2, 0.5, -0.1, 0.533_333, -0.666_667];
    gives("treerl_code", &[none, ("signal", text("ancestors"))], &batch, &over);
}

#[test]
fn treerl_fills_what_gains_nothing_from_what_came_before() {
    let forest = segments();
    let batch = Batch { rewards: &[0.0, 0.0, 0.0, 1.0, 1.0, 1.0], forest: Some(&forest), ..Batch::default() };
    let none = ("damping", text("none"));
    let (low, high) = (-1.2, 1.2);
    let expected = [0.0, low, low, low, low, high, high, high, high, high];
    gives("treerl_code", from_ref(&none), &batch, &expected);
    let (low, high) = (-0.6, 0.6);
    let expected = [0.0, 2.0 * low, low, low, low, 2.0 * high, high, high, high, high];
    gives("treerl_code", &[none, ("fill", Setting::Flag(false))], &batch, &expected);
    let same = Batch { rewards: &[0.3; 6], ..batch };
    gives("treerl_code", &[], &same, &[0.0; 10]);
    let alone = Forest::new(vec![0, 0], vec![1]).unwrap();
    let refused = with("treerl_code", &[]).estimate(&Batch { rewards: &[1.0], forest: Some(&alone), ..batch });
    assert!(refused.unwrap_err().to_string().contains("has 1 scored observation"));
}

#[test]
fn treepo_over_the_subtrees_of_every_depth() {
    let forest = d6();
    let batch = Batch { rewards: &E6, forest: Some(&forest), tokens: Some(&[6; 6]), ..Batch::default() };
    let raw = ("whiten", text("none"));
    let drop = ("zero_variance", text("drop_subgroups"));
    let low = -0.416_667;
    gives("treepo_average", from_ref(&raw), &batch, &[0.583_333, low, low, 0.277_778, 0.277_778, -0.583_333]);
    gives("treepo_average", &[], &batch, &[1.406_345, -0.827_262, -0.827_262, 0.723_854, 0.723_854, -1.199_530]);
    gives("treepo_average", &[raw.clone(), drop.clone()], &batch, &[0.583_333, low, low, -low, -low, -0.583_333]);
    gives("treepo_average", from_ref(&drop), &batch, &[1.2015, -0.858_214, -0.858_214, 0.858_214, 0.858_214, -1.2015]);
    let low = -0.444_444;
    gives("treepo_size", from_ref(&raw), &batch, &[0.555_556, low, low, 0.363_636, 0.363_636, -0.555_556]);
    gives("treepo_size", &[], &batch, &[1.247_173, -0.893_928, -0.893_928, 0.836_255, 0.836_255, -1.131_828]);
    gives("treepo_size", &[raw, drop.clone()], &batch, &[0.555_556, low, low, -low, -low, -0.555_556]);
    gives("treepo_size", &[drop], &batch, &[1.131_035, -0.904_828, -0.904_828, 0.904_828, 0.904_828, -1.131_035]);
}

#[test]
fn treepo_segments_plain_and_relative() {
    let forest = d6();
    let batch = Batch { rewards: &E6, forest: Some(&forest), ..Batch::default() };
    let third = 1.0 / 3.0;
    let plain = [0.0, third, 0.5, 2.0 * third, -third, -third, 0.5, -0.5, 0.0, 0.0];
    gives("treepo_segments", &[("relative", Setting::Flag(false))], &batch, &plain);
    // Relative rewards of the leaves: .5, -.4, -.4, 1/3, 1/3, -.5.
    let (a, b) = (-0.1, (third - 0.5) / 2.0);
    let relative = [0.0, a, b, 0.5 - a, -0.4 - a, -0.4 - a, third - b, -0.5 - b, 0.0, 0.0];
    gives("treepo_segments", &[], &batch, &relative);
}

#[test]
fn gigpo_adds_trajectories_and_steps() {
    let batch = Batch {
        rewards: &[1.0, 1.0, 1.0, 0.0, 0.0, 1.0],
        group: Some(&[0; 6]),
        trajectory: Some(&[1, 1, 1, 2, 2, 3]),
        anchor: Some(&[0, 1, 2, 0, 1, 0]),
        step_rewards: Some(&[0.0, 0.0, 1.0, 0.0, 0.0, 1.0]),
        ..Batch::default()
    };
    let returns = step_returns(batch.step_rewards.unwrap(), batch.trajectory.unwrap(), None, 0.95).unwrap();
    close(&returns, &[0.9025, 0.95, 1.0, 0.0, 0.0, 1.0]);
    gives("gigpo_mean", &[], &batch, &[0.601_667, 0.808_333, 0.333_333, -1.300_833, -1.141_667, 0.699_167]);
    gives("gigpo_mean_std", &[], &batch, &[1.064_020, 1.284_455, 0.577_349, -2.304_875, -1.861_804, 1.240_854]);
    let whole = [0.333_333, 0.333_333, 0.333_333, -0.666_667, -0.666_667, 0.333_333];
    gives("gigpo_mean", &[("step_weight", Setting::Number(0.0))], &batch, &whole);
}

#[test]
fn trajectories_may_be_numbered_within_their_task() {
    // The table of one task, and after each of its rows one of a task with the same numbers of trajectories.
    let twice = |column: &[u32], other: u32| column.iter().flat_map(|&key| [key, other]).collect::<Vec<u32>>();
    let (group, trajectory) = (twice(&[0; 6], 1), twice(&[1, 1, 1, 2, 2, 3], 1));
    let anchor = twice(&[0, 1, 2, 0, 1, 0], 0);
    let rewards: Vec<f64> = [1.0, 1.0, 1.0, 0.0, 0.0, 1.0].iter().flat_map(|&reward| [reward, 5.0]).collect();
    let steps: Vec<f64> = [0.0, 0.0, 1.0, 0.0, 0.0, 1.0].iter().flat_map(|&reward| [reward, 5.0]).collect();
    let batch = Batch {
        rewards: &rewards,
        group: Some(&group),
        trajectory: Some(&trajectory),
        anchor: Some(&anchor),
        step_rewards: Some(&steps),
        ..Batch::default()
    };
    let found = with("gigpo_mean", &[]).estimate(&batch).unwrap().values;
    let first: Vec<f64> = found.into_iter().step_by(2).collect();
    close(&first, &[0.601_667, 0.808_333, 0.333_333, -1.300_833, -1.141_667, 0.699_167]);
}

#[test]
fn a_step_is_kept_for_either_part_but_not_without_a_return() {
    let batch = Batch {
        rewards: &[1.0, 0.0, 0.0, 0.0],
        group: Some(&[0, 0, 1, 1]),
        trajectory: Some(&[0, 1, 2, 3]),
        anchor: Some(&[0, 1, 0, 0]),
        step_rewards: Some(&[1.0, f64::NAN, 0.0, 1.0]),
        ..Batch::default()
    };
    let found = with("gigpo_mean", &[("zero_variance", text("drop"))]).estimate(&batch).unwrap();
    close(&found.values, &[0.5, f64::NAN, -0.5, 0.5]);
    assert_eq!(found.kept, [1, 0, 1, 1]);
    let skip = ("subgroup_singleton", text("skip"));
    let found = with("gigpo_mean", &[("zero_variance", text("drop")), skip]).estimate(&batch).unwrap();
    assert_eq!(found.kept, [1, 0, 1, 1]);
}

#[test]
fn rows_of_one_step_share_its_return_and_the_reward_of_the_first() {
    let found = step_returns(&[1.0, 9.0, 0.0, 2.0, 5.0], &[7, 7, 8, 7, 8], Some(&[1, 1, 0, 4, 3]), 0.5).unwrap();
    close(&found, &[2.0, 2.0, 2.5, 2.0, 5.0]);
}

#[test]
fn arpo_hard_gives_a_prefix_the_mean_of_its_rollouts() {
    let forest = Forest::new(vec![0, 0, 0, 1, 1, 1, 2, 2, 2], (3..9).collect()).unwrap();
    let batch = Batch { rewards: &E6, forest: Some(&forest), ..Batch::default() };
    let mut expected = vec![0.0, -0.304_290, 0.304_290];
    expected.extend(signs(0.912_869));
    gives("arpo_hard", &[], &batch, &expected);
}

#[test]
fn spo_edges_over_child_means() {
    let forest = d6();
    let batch = Batch { rewards: &E6, forest: Some(&forest), ..Batch::default() };
    let (step, third) = (0.083_333, 1.0 / 3.0);
    let found = with("spo_rloo", &[]).estimate(&batch).unwrap();
    close(&found.values, &[0.0, -step, step, 2.0 * third, -third, -third, 0.5, -0.5, 0.0, 0.0]);
    assert_eq!(found.kept, [0, 1, 1, 1, 1, 1, 1, 1, 0, 0]);
    let low = -0.5f64.sqrt();
    gives("spo_grpo", &[], &batch, &[0.0, -1.0, 1.0, 2f64.sqrt(), low, low, 1.0, -1.0, 0.0, 0.0]);
}

#[test]
fn edges_between_equal_means_are_dropped_in_any_order_of_leaves() {
    // Thirds that were added up in different orders differ by rounding.
    let forest = Forest::new(vec![0, 0, 0, 1, 1, 1, 2, 2, 2], (3..9).collect()).unwrap();
    for rewards in [[1.0, 0.0, 0.0, 0.0, 0.0, 1.0], [0.1, 0.2, 0.6, 0.6, 0.1, 0.2]] {
        for preset in ["spo_rloo", "spo_grpo"] {
            let batch = Batch { rewards: &rewards, forest: Some(&forest), ..Batch::default() };
            let found = with(preset, &[]).estimate(&batch).unwrap();
            assert_eq!((&found.values[..3], &found.kept[..3]), (&[0.0; 3][..], &[0; 3][..]));
            assert_eq!(found.kept[3..], [1; 6]);
        }
    }
}

#[test]
fn dr_mas_compares_agents_with_themselves() {
    let (v, s, a) = (0, 1, 2);
    let agent = [v, s, v, a, v, a, v, s, a];
    let trajectory = [1, 1, 1, 1, 2, 2, 3, 3, 3];
    let rewards = [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.5, 0.5, 0.5];
    let rows = |rows: usize| Batch {
        rewards: &rewards[..rows],
        group: Some(&[0; 9][..rows]),
        agent: Some(&agent[..rows]),
        trajectory: Some(&trajectory[..rows]),
        ..Batch::default()
    };
    let plain = [("scopes", text("group")), ("unit", text("trajectory"))];
    let (high, full) = (0.5f64.sqrt(), 0.999_998);
    gives("dr_mas", &plain, &rows(6), &[high, high, high, high, -high, -high]);
    gives("dr_mas", &[], &rows(6), &[0.577_349, 0.999_999, 0.577_349, high, -1.154_699, -high]);
    let third = 1.0 / 3.0;
    let bare = [("scale", text("none"))];
    gives("dr_mas", &bare, &rows(6), &[third, 1.0, third, 0.5, -2.0 * third, -0.5]);
    gives("dr_mas", &plain, &rows(9), &[full, full, full, full, -full, -full, 0.0, 0.0, 0.0]);
    let expected = [0.783_348, 0.707_105, 0.783_348, full, -1.305_580, -full, -0.261_116, -0.707_105, 0.0];
    gives("dr_mas", &[], &rows(9), &expected);
}

#[test]
fn a_trajectory_counts_once_however_often_an_agent_is_called() {
    let trajectory = [0, 0, 1, 1, 1, 2, 2, 3, 3, 3];
    // Solver 0, verifier 1.
    let agent = [0, 1, 0, 0, 1, 0, 1, 0, 1, 0];
    let rewards = [1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.9, 0.0, 0.0, -0.1];
    let batch = Batch {
        rewards: &rewards,
        group: Some(&[0; 10]),
        agent: Some(&agent),
        trajectory: Some(&trajectory),
        ..Batch::default()
    };
    // The table has one line for the two calls of the second trajectory's solver, and four digits.
    let rounded = |estimator: Estimator, mut values: Vec<f64>| {
        values.insert(3, values[2]);
        let found = estimator.estimate(&batch).unwrap().values;
        assert!(found.iter().zip(values).all(|(a, b)| (a - b).abs() < 6e-5), "{found:?}");
    };
    let agents = vec![1.2875, 0.9545, -0.5967, -0.8636, 1.2875, 0.7727, -0.5967, -0.8636, -0.7851];
    rounded(with("dr_mas", &[]), agents);
    let plain = [("scopes", text("group")), ("unit", text("trajectory"))];
    let whole = vec![0.9089, 0.9089, -0.8361, -0.8361, 0.8216, 0.8216, -0.8943, -0.8943, -0.8943];
    rounded(with("dr_mas", &plain), whole);
    let bare = vec![0.6833, 0.5250, -0.3167, -0.4750, 0.6833, 0.4250, -0.3167, -0.4750, -0.4167];
    rounded(with("dr_mas", &[("scale", text("none"))]), bare);
    let others = vec![0.8200, 0.7000, -0.3800, -0.6333, 0.8200, 0.5667, -0.3800, -0.6333, -0.5000];
    rounded(with("dr_mas", &[("scale", text("none")), ("centre", text("leave_one_out"))]), others);
}

#[test]
fn advantages_land_on_the_nodes_that_kept_rollouts_share() {
    let forest = Forest::new(vec![0, 0, 1, 1, 0], vec![2, 3, 3, 4]).unwrap();
    let found = to_nodes(&forest, &[1.0, 4.0, -2.0, f64::NAN], None).unwrap();
    close(&found.values, &[1.0, 1.0, 1.0, 1.0, f64::NAN]);
    assert_eq!(found.kept, [1, 1, 1, 1, 0]);
    let found = to_nodes(&forest, &[1.0, 4.0, 0.0, 0.0], Some(&[1, 1, 0, 0])).unwrap();
    close(&found.values, &[2.5, 2.5, 1.0, 4.0, f64::NAN]);
    assert_eq!(found.kept, [1, 1, 1, 1, 0]);
}

#[test]
fn flags_train_what_a_model_chose() {
    let flags = [SAMPLED, SAMPLED | SYNTHETIC, 0, SAMPLED | TRUNCATED, SYNTHETIC];
    let (landed, mask) = to_tokens(&[1.5, 2.5], None, &[0, 2, 5], Trained::Flags(&flags)).unwrap();
    assert_eq!((landed, mask), (vec![1.5, 0.0, 0.0, 2.5, 0.0], vec![1, 0, 0, 1, 0]));
}

#[test]
fn values_land_on_tokens_and_nothing_lands_where_nothing_is_trained() {
    let values = [1.5, f64::NAN, -0.5, 2.0];
    let (landed, mask) =
        to_tokens(&values, Some(&[1, 1, 1, 0]), &[0, 2, 3, 3, 5], Trained::Mask(&[1, 0, 1, 1, 1])).unwrap();
    assert_eq!((landed, mask), (vec![1.5, 0.0, 0.0, 0.0, 0.0], vec![1, 0, 0, 0, 0]));
    let (landed, mask) = to_tokens(&[1.5, 2.5], None, &[0, 1, 3], Trained::All).unwrap();
    assert_eq!((landed, mask), (vec![1.5, 2.5, 2.5], vec![1, 1, 1]));
}
