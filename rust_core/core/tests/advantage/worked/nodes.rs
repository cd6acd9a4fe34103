//! Values and advantages of nodes, and those over subtrees.

use std::slice::from_ref;

use trunkline_core::Forest;
use trunkline_core::advantage::{Batch, NodeValues, Setting};

use super::{E6, close, d6, gives, signs};
use crate::{text, with};

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
