//! Steps of trajectories, and turns of several agents.

use trunkline_core::advantage::{Batch, Estimator, Setting, step_returns};

use super::{close, gives};
use crate::{text, with};

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
