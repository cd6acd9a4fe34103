//! What a strategy is going to cost: leaves and steps before anything is run, and a total split evenly.

use crate::error::{Error, Result};

use crate::validation::{at_least_one, many, need};

/// Leaves of `starts` chains of which each is continued `samples` times from each of `points` places in each of `rounds`
/// rounds: `M (1 + N L T)`.
///
/// Tree-GRPO's budget with T = 1, `EPTree`'s with its T samples a position, and `ParallelMuse`'s `I (1 + K R T)`.
///
/// # Errors
/// [`Error::Value`] if it is more than 64 bits hold.
pub fn leaves(starts: u32, points: u32, rounds: u32, samples: u32) -> Result<u64> {
    let each = product(&[points, rounds, samples]).and_then(|each| each.checked_add(1));
    fits(each.and_then(|each| each.checked_mul(u64::from(starts))), "leaves")
}

/// Steps or whatever is generated, as a tree and as chains with the same leaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// As a tree.
    pub tree: f64,
    /// As chains.
    pub flat: f64,
}

impl Cost {
    /// How many times as much the chains cost; NaN where neither costs anything.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.flat / self.tree
    }
}

/// Expected steps of one Tree-GRPO round over chains of `steps` steps: `M (T + N (T + 1) / 2)`, against `M (1 + N) T`.
///
/// A fork point drawn uniformly has a depth of 0 to T - 1, so that (T + 1) / 2 steps are left on average. Later rounds draw
/// from a tree that has branches, and have no such formula.
#[must_use]
pub fn steps(trees: u32, forks: u32, steps: u32) -> Cost {
    let [trees, forks, steps] = [trees, forks, steps].map(f64::from);
    Cost { tree: trees * (steps + forks * (steps + 1.0) / 2.0), flat: trees * (1.0 + forks) * steps }
}

/// What Tree-GRPO's ratio comes close to for long chains: `(1 + N L) / (1 + N L / 2)`. An idealisation for L > 1.
#[must_use]
pub fn ideal_ratio(forks: u32, rounds: u32) -> f64 {
    let grown = f64::from(forks) * f64::from(rounds);
    (1.0 + grown) / (1.0 + grown / 2.0)
}

/// Fresh rollouts that fill up a `ParallelMuse` budget, for each of I initial rollouts of which `branched[i]` turns were
/// branched at in all rounds together: `floor(B / I) - 1 - b T`. What B leaves over when divided by I is not spent.
///
/// Where fewer than the planned `top_k` turns a round could be branched at, fresh rollouts take their place, also where the
/// original has none.
///
/// # Errors
/// [`Error::Value`] if `branched` is empty or an option 0, the budget is less than `I (1 + K R T)`, or more than `K R`
/// turns were branched at.
pub fn top_up(budget: u32, branched: &[u32], [top_k, rounds, samples]: [u32; 3]) -> Result<Vec<u32>> {
    let initial = u32::try_from(branched.len()).unwrap_or(u32::MAX);
    for (name, count) in [("initial rollouts", initial), ("turns", top_k), ("rounds", rounds), ("samples", samples)] {
        at_least_one(&format!("the number of {name}"), count as usize)?;
    }
    let least = leaves(initial, top_k, rounds, samples)?;
    let short =
        || format!("the budget is {budget} rollouts, and {initial} initial ones with their branches take {least}");
    need(u64::from(budget) >= least, short, "at least as many")?;
    // Both fit, because the budget does.
    let (share, most) = (budget / initial, top_k * rounds);
    let fresh = branched.iter().enumerate().map(|(at, &turns)| {
        need(turns <= most, || format!("initial rollout {at} was branched at {turns} turns of {most}"), "no more")?;
        Ok(share - 1 - turns * samples)
    });
    fresh.collect()
}

/// Split `total` evenly over `paths`, the remainder going to the last.
///
/// # Errors
/// [`Error::Value`] if there are more paths than `total` or than 16,777,216, or none to split over.
pub fn split_evenly(total: u32, paths: u32) -> Result<Vec<u32>> {
    let value = || format!("a total of {total} is split over {paths} paths");
    need(paths > 0 && paths <= total, value, "at least one for each of one or more paths")?;
    many("the number of paths", paths as usize)?;
    let mut shares = vec![total / paths; paths as usize];
    if let Some(last) = shares.last_mut() {
        *last += total % paths;
    }
    Ok(shares)
}

fn product(factors: &[u32]) -> Option<u64> {
    factors.iter().try_fold(1u64, |all, &factor| all.checked_mul(u64::from(factor)))
}

fn fits(count: Option<u64>, what: &str) -> Result<u64> {
    count.ok_or_else(|| Error::range(format!("the number of {what} is too large"), "a number of 64 bits"))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::{ideal_ratio, leaves, split_evenly, steps, top_up};

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-4, "{found} is not {expected}");
    }

    #[test]
    fn leaves_are_those_of_the_published_settings() {
        assert_eq!(leaves(2, 2, 1, 1).unwrap(), 6);
        assert_eq!(leaves(6, 2, 1, 2).unwrap(), 30);
        assert_eq!(leaves(8, 4, 2, 2).unwrap(), 136);
        // Tree-GRPO as its data class has it; ParallelMuse, with one fresh rollout to come; chains.
        assert_eq!(leaves(4, 2, 1, 1).unwrap(), 12);
        assert_eq!(leaves(1, 2, 1, 3).unwrap(), 7);
        assert_eq!(leaves(16, 0, 0, 0).unwrap(), 16);
        let text = leaves(u32::MAX, u32::MAX, u32::MAX, u32::MAX).unwrap_err().to_string();
        assert_eq!(text, "the number of leaves is too large; it must be a number of 64 bits");
    }

    #[test]
    fn the_table_of_tree_grpo_comes_out() {
        for (length, flat, tree, ratio) in
            [(2, 12.0, 10.0, 1.2), (3, 18.0, 14.0, 1.2857), (4, 24.0, 18.0, 1.3333), (10, 60.0, 42.0, 1.4286)]
        {
            let cost = steps(2, 2, length);
            near(cost.flat, flat);
            near(cost.tree, tree);
            near(cost.ratio(), ratio);
        }
        near(ideal_ratio(2, 1), 1.5);
        // Where the published pair of settings comes from: four chains for six leaves.
        near(6.0 / ideal_ratio(2, 1), 4.0);
        near(steps(2, 2, u32::MAX).ratio(), 1.5);
    }

    #[test]
    fn fresh_rollouts_fill_a_budget_up() {
        assert_eq!(top_up(8, &[2], [2, 1, 3]).unwrap(), [1]);
        // The original fails here: no room beyond the branches, and fewer of them than planned.
        assert_eq!(top_up(7, &[1], [2, 1, 3]).unwrap(), [3]);
        // Two rounds, each of which has turns of its own: all four, three, none.
        assert_eq!(top_up(34, &[4, 3, 0], [2, 2, 2]).unwrap(), [2, 4, 10]);
        let text = top_up(6, &[2], [2, 1, 3]).unwrap_err().to_string();
        let expected =
            "the budget is 6 rollouts, and 1 initial ones with their branches take 7; it must be at least as many";
        assert_eq!(text, expected);
        assert!(top_up(9, &[3], [2, 1, 3]).unwrap_err().to_string().contains("3 turns of 2"));
        assert!(top_up(9, &[], [2, 1, 3]).unwrap_err().to_string().contains("initial rollouts is 0"));
        assert!(top_up(9, &[u32::MAX], [u32::MAX, u32::MAX, 0]).unwrap_err().to_string().contains("samples is 0"));
    }

    #[test]
    fn a_total_is_split_evenly_or_refused() {
        assert_eq!(split_evenly(8, 3).unwrap(), [2, 2, 4]);
        assert_eq!(split_evenly(3, 3).unwrap(), [1, 1, 1]);
        let text = split_evenly(2, 3).unwrap_err().to_string();
        assert_eq!(text, "a total of 2 is split over 3 paths; it must be at least one for each of one or more paths");
        let text = split_evenly(u32::MAX, u32::MAX).unwrap_err().to_string();
        assert_eq!(text, "the number of paths is 4294967295; it must be 16777216 or less");
        assert!(split_evenly(0, 0).is_err());
    }
}
