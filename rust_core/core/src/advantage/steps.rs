//! Returns of steps, and `GiGPO`: groups of trajectories and groups of steps taken from the same observation.

use super::batch::{Advantages, Batch};
use super::groups::{drop_zero, within};
use super::keys::Groups;
use super::options::{Combine, EstimatorOptions, Scope, Unit, need};
use crate::error::{Error, Result};
use crate::validation::discount;

/// `G = r + gamma * G(next step)` of every row, within its trajectory.
///
/// Rows with the same `step` are one step with the reward of the first of them and share its return
/// (`compute_step_discounted_returns`). A trajectory's steps must not descend; trajectories may be interleaved. NaN
/// rewards make NaN of the returns of their step and of all steps before it.
///
/// # Errors
/// [`Error::Length`] or [`Error::Value`] naming the column or the row.
pub fn step_returns(rewards: &[f64], trajectory: &[u32], step: Option<&[u32]>, gamma: f64) -> Result<Vec<f64>> {
    Batch { rewards, trajectory: Some(trajectory), step, ..Batch::default() }.check()?;
    discount(gamma)?;
    returns(rewards, &Groups::new(&[trajectory], rewards.len()), step, gamma)
}

fn returns(rewards: &[f64], trajectories: &Groups, step: Option<&[u32]>, gamma: f64) -> Result<Vec<f64>> {
    let first = first_rows(trajectories, step)?;
    let mut next = vec![0.0; trajectories.count];
    let mut returns = vec![0.0; rewards.len()];
    for (row, &of) in trajectories.of.iter().enumerate().rev() {
        if first[row] == row {
            next[of as usize] = rewards[row] + gamma * next[of as usize];
            returns[row] = next[of as usize];
        }
    }
    Ok(first.iter().map(|&row| returns[row]).collect())
}

/// Per row the first row of its step.
fn first_rows(trajectories: &Groups, step: Option<&[u32]>) -> Result<Vec<usize>> {
    let Some(step) = step else { return Ok((0..trajectories.of.len()).collect()) };
    let mut last: Vec<Option<usize>> = vec![None; trajectories.count];
    let mut first = Vec::with_capacity(step.len());
    for (row, &of) in trajectories.of.iter().enumerate() {
        let before = &mut last[of as usize];
        match before.map(|before| (before, step[before])) {
            Some((before, number)) if number == step[row] => first.push(before),
            Some((_, number)) if number > step[row] => {
                let value = format!("step {} of row {row} comes after step {number} of its trajectory", step[row]);
                return Err(Error::conflict(value, "in ascending order"));
            }
            _ => {
                first.push(row);
                *before = Some(row);
            }
        }
    }
    Ok(first)
}

/// `GiGPO` (`compute_gigpo_outcome_advantage`): the advantage of the trajectory among those of its task, each counted
/// once, plus `step_weight` times that of the step's return among steps of the task with the same anchor.
pub(super) fn gigpo(batch: &Batch, group: &[u32], options: &EstimatorOptions) -> Result<Advantages> {
    let trajectory = need(batch.trajectory, "trajectory")?;
    let rewards = need(batch.step_rewards, "step_rewards")?;
    let anchor = need(batch.anchor, "anchor")?;
    // Trajectories may be numbered within their task.
    let trajectory = Groups::new(&[group, trajectory], group.len());
    let returns = returns(rewards, &trajectory, batch.step, options.gamma)?;
    let batch = Batch { trajectory: Some(&trajectory.of), ..*batch };
    let part = EstimatorOptions { combine: Combine::Sum, drop_zero: false, ..options.clone() };
    let whole = EstimatorOptions { unit: Unit::Trajectory, ..part.clone() };
    let each = EstimatorOptions { unit: Unit::Row, singleton: options.subgroup_singleton, ..part };
    let mut found = within(&batch, &[Scope::Keys(vec![group])], &whole)?;
    let by_step = Batch { rewards: &returns, ..batch };
    let steps = within(&by_step, &[Scope::Keys(vec![group, anchor])], &each)?;
    for (row, value) in found.values.iter_mut().enumerate() {
        *value += options.step_weight * steps.values[row];
        // Either part is enough to train on, but a step without a return has no advantage.
        found.kept[row] = (found.kept[row] | steps.kept[row]) & u8::from(!value.is_nan());
    }
    drop_zero(&found.values, &mut found.kept, options);
    Ok(found)
}
