//! Rollouts in the groups of their tasks, and of their trees.

use trunkline_core::Forest;
use trunkline_core::advantage::{Batch, Estimator};

use super::{E6, gives, one_group, signs};
use crate::{text, with};

const TREES: [u32; 6] = [0, 0, 0, 1, 1, 1];

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
