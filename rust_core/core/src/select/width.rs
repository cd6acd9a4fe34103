//! How many paths go on after a segment, and from which: planner arithmetic of `TreePO`, after
//! `vllm_rollout_spmd.py:generate_sequences_tree_deepth_first_vanilla_mode`.

use libm::exp;

use crate::error::Result;

use super::option::{finite, many, need, positive};

/// How many paths a task should have in the next round: `max(live, min(target - finished, branches (ended + live)))`.
///
/// `target` rollouts are wanted and `finished` are there, `ended` of them since the last round; `live` go on. A path that
/// ended leaves its share to the live ones, and each of those keeps at least one. 0 where none lives: start again elsewhere.
#[must_use]
pub fn next(target: u32, finished: u32, ended: u32, live: u32, branches: u32) -> u32 {
    if live == 0 {
        return 0;
    }
    let wish = u64::from(branches).saturating_mul(u64::from(ended) + u64::from(live));
    // The smaller of the two fits: one of them is a u32.
    let most = u32::try_from(wish).unwrap_or(u32::MAX).min(target.saturating_sub(finished));
    most.max(live)
}

/// Split `total` evenly over `paths`, the remainder going to the last.
///
/// # Errors
/// [`crate::Error::Value`] if there are more paths than `total` or than 16,777,216, or none to split over.
pub fn even(total: u32, paths: u32) -> Result<Vec<u32>> {
    check(total, paths as usize)?;
    many("the number of paths", paths as usize)?;
    let mut shares = vec![total / paths; paths as usize];
    if let Some(last) = shares.last_mut() {
        *last += total % paths;
    }
    Ok(shares)
}

/// Split `total` over paths by weight: one for each, and of the rest in proportion, rounded by the largest remainder, the
/// earlier path where two remainders are equal. Weights that are all 0 count as equal.
///
/// # Errors
/// [`crate::Error::Value`] if there are more paths than `total`, none to split over, or a weight is negative, not finite or
/// beyond 1e100.
pub fn weighted(total: u32, weights: &[f64]) -> Result<Vec<u32>> {
    check(total, weights.len())?;
    for (path, &weight) in weights.iter().enumerate() {
        positive(format_args!("the weight of path {path}"), weight)?;
    }
    let sum: f64 = weights.iter().sum();
    if sum == 0.0 {
        return weighted(total, &vec![1.0; weights.len()]);
    }
    let rest = u32::try_from(weights.len()).map_or(0, |paths| total - paths);
    let parts: Vec<f64> = weights.iter().map(|weight| f64::from(rest) * weight).collect();
    // A remainder is exact, a quotient is not: quotas of 1/3 and 4/3 would not be equally far from whole.
    let remainders: Vec<f64> = parts.iter().map(|part| part % sum).collect();
    let quota = |(part, remainder): (&f64, &f64)| 1 + whole((part - remainder) / sum);
    let mut shares: Vec<u32> = parts.iter().zip(&remainders).map(quota).collect();
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by(|&a, &b| remainders[b].total_cmp(&remainders[a]));
    let given: u64 = shares.iter().map(|&share| u64::from(share)).sum();
    let left = usize::try_from(u64::from(total).saturating_sub(given)).unwrap_or(0);
    for path in order.into_iter().cycle().take(left) {
        shares[path] += 1;
    }
    Ok(shares)
}

/// Split `total` over paths by score, such as mean log-probabilities: [`weighted`] by the softmax of `scores / temperature`.
/// A negative temperature prefers low scores.
///
/// # Errors
/// [`crate::Error::Value`] as of [`weighted`], or if a score or the temperature is not finite or the temperature 0.
pub fn by_score(total: u32, scores: &[f64], temperature: f64) -> Result<Vec<u32>> {
    finite("the temperature", temperature)?;
    need(temperature != 0.0, || "the temperature is 0".to_owned(), "above or below")?;
    for (path, &score) in scores.iter().enumerate() {
        finite(format_args!("the score of path {path}"), score)?;
    }
    // Less the best, so that no power is above 1.
    let better = if temperature > 0.0 { f64::max } else { f64::min };
    let best = scores.iter().copied().reduce(better).unwrap_or_default();
    let weights: Vec<f64> = scores.iter().map(|score| exp((score - best) / temperature)).collect();
    weighted(total, &weights)
}

fn check(total: u32, paths: usize) -> Result<()> {
    let value = || format!("a total of {total} is split over {paths} paths");
    need(paths > 0 && paths <= total as usize, value, "at least one for each of one or more paths")
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a quota is between 0 and a u32")]
fn whole(quota: f64) -> u32 {
    quota.round() as u32
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::{by_score, even, next, weighted};

    #[test]
    fn live_paths_inherit_what_others_leave() {
        // Two of two branch; later eight of sixteen are missing, then one.
        assert_eq!(next(16, 0, 0, 2, 2), 4);
        assert_eq!(next(16, 8, 2, 6, 2), 8);
        assert_eq!(next(16, 15, 1, 3, 2), 3);
        assert_eq!(next(16, 20, 1, 3, 2), 3);
        assert_eq!(next(16, 4, 2, 3, 2), 10);
        assert_eq!(next(16, 4, 2, 0, 2), 0);
        assert_eq!(next(u32::MAX, 0, u32::MAX, u32::MAX, u32::MAX), u32::MAX);
    }

    #[test]
    fn the_worked_splits_come_out() {
        assert_eq!(weighted(8, &[0.5, 0.3, 0.2]).unwrap(), [4, 2, 2]);
        assert_eq!(weighted(5, &[1.0, 1.0, 1.0]).unwrap(), [2, 2, 1]);
        assert_eq!(weighted(5, &[0.0, 0.0]).unwrap(), [3, 2]);
        // Equal remainders, of 1.5 and 2.5 and of four with a third left: the earlier path.
        assert_eq!(weighted(7, &[3.0, 5.0, 0.0]).unwrap(), [3, 3, 1]);
        assert_eq!(weighted(8, &[1.0, 4.0, 1.0, 0.0]).unwrap(), [2, 4, 1, 1]);
        assert_eq!(weighted(9, &[1e100, 1e100, 0.0]).unwrap(), [4, 4, 1]);
        assert_eq!(even(8, 3).unwrap(), [2, 2, 4]);
        assert_eq!(even(3, 3).unwrap(), [1, 1, 1]);
    }

    #[test]
    fn scores_split_by_their_softmax() {
        let scores = [0.5f64, 0.3, 0.2].map(f64::ln);
        assert_eq!(by_score(8, &scores, 1.0).unwrap(), [4, 2, 2]);
        assert_eq!(by_score(8, &scores, 0.01).unwrap(), [6, 1, 1]);
        assert_eq!(by_score(8, &scores, -0.01).unwrap(), [1, 1, 6]);
        assert_eq!(by_score(6, &[-1e100, 1e100], 1e-300).unwrap().iter().sum::<u32>(), 6);
        let text = by_score(8, &scores, 0.0).unwrap_err().to_string();
        assert_eq!(text, "the temperature is 0; it must be above or below");
        assert!(by_score(8, &[f64::NAN], 1.0).is_err() && by_score(8, &scores, f64::INFINITY).is_err());
    }

    #[test]
    fn what_cannot_be_split_is_refused() {
        let text = even(2, 3).unwrap_err().to_string();
        assert_eq!(text, "a total of 2 is split over 3 paths; it must be at least one for each of one or more paths");
        let text = even(u32::MAX, u32::MAX).unwrap_err().to_string();
        assert_eq!(text, "the number of paths is 4294967295; it must be 16777216 or less");
        assert!(even(0, 0).is_err() && weighted(4, &[]).is_err());
        let text = weighted(4, &[1.0, -1.0]).unwrap_err().to_string();
        assert_eq!(text, "the weight of path 1 is -1.0; it must be a number from 0 to 1e100");
        assert!(weighted(4, &[f64::NAN]).is_err() && weighted(4, &[f64::INFINITY]).is_err());
    }
}
