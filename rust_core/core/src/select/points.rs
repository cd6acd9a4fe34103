//! Fork points, and a uniform choice of them.

use crate::error::{Result, length};
use crate::forest::Forest;
use crate::select::random::Random;
use crate::tree::nodes::Kind;

use crate::validation::{enough, many};

/// The fork points on the paths of a forest's rollouts: the nodes after which one of them took a model turn.
///
/// `kinds` is one [`Kind`] a node. These are the prompts and the last observation of every step that another step
/// follows; what ended a rollout is none. To get those of one Tree-GRPO tree, give the leaves of that subgroup only: a
/// node that two subgroups share is a fork point of both. They come rollout by rollout, each from the root down, whichever
/// node arrived first.
///
/// # Errors
/// [`crate::Error::Length`] if there is not one kind a node.
pub fn fork_points(forest: &Forest, kinds: &[u8]) -> Result<Vec<u32>> {
    let parents = forest.parents();
    length("kinds", parents.len(), kinds.len())?;
    let mut points = forest.passed();
    let mut forks = vec![false; parents.len()];
    for &node in &points {
        let parent = parents[node as usize];
        // A root that is a turn has no state before it.
        if kinds[node as usize] == Kind::Turn as u8 && parent != node {
            forks[parent as usize] = true;
        }
    }
    points.retain(|&node| forks[node as usize]);
    Ok(points)
}

/// `count` of `points`, each as likely as any other, in the order drawn.
///
/// With `replace` a point may come twice (Tree-GRPO: two siblings). Without, a smaller count is the beginning of a
/// larger one.
///
/// # Errors
/// [`crate::Error::Value`] if there are too few points: fewer than `count` without `replace`, none with it; or if `count` is
/// absurd with it: more than 16,777,216.
pub fn uniform(points: &[u32], count: usize, replace: bool, random: &mut Random) -> Result<Vec<u32>> {
    if !replace {
        enough("points", count, points.len())?;
        let mut pool = points.to_vec();
        random.draw(&mut pool, count);
        pool.truncate(count);
        return Ok(pool);
    }
    enough("points", count.min(1), points.len())?;
    many("k", count)?;
    Ok((0..count).map(|_| points[random.index(points.len())]).collect())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::{fork_points, uniform};
    use crate::forest::Forest;
    use crate::select::random::Random;

    #[test]
    fn fork_points_are_where_a_turn_followed() {
        // 0 root, 1 prompt, 2 turn, 3 and 4 observations of it, 5 turn that answers, 6 turn beside it, 7 observation.
        let kinds = [0, 1, 2, 3, 3, 2, 2, 3];
        let parents = vec![0, 0, 1, 2, 3, 4, 4, 6];
        let all = Forest::new(parents.clone(), vec![5, 7]).unwrap();
        assert_eq!(fork_points(&all, &kinds).unwrap(), [1, 4]);
        let short = Forest::new(parents, vec![2]).unwrap();
        assert_eq!(fork_points(&short, &kinds).unwrap(), [1]);
        let text = fork_points(&short, &kinds[1..]).unwrap_err().to_string();
        assert_eq!(text, "7 kinds where 8 are needed");
    }

    #[test]
    fn fork_points_come_by_rollout_whichever_node_arrived_first() {
        // Two chains of two turns below one prompt: 1-4-5 and 2-3-6.
        let kinds = [1, 2, 2, 3, 3, 2, 2];
        let parents = vec![0, 0, 0, 2, 1, 4, 3];
        let forest = |leaves| Forest::new(parents.clone(), leaves).unwrap();
        assert_eq!(fork_points(&forest(vec![5, 6]), &kinds).unwrap(), [0, 4, 3]);
        assert_eq!(fork_points(&forest(vec![6, 5]), &kinds).unwrap(), [0, 3, 4]);
    }

    #[test]
    fn these_picks_are_for_good() {
        let points: Vec<u32> = (10..20).collect();
        let picks = |replace, k| uniform(&points, k, replace, &mut Random::new(42)).unwrap();
        assert_eq!(picks(true, 6), PINNED_WITH);
        assert_eq!(picks(false, 6), PINNED_WITHOUT);
        assert_eq!(picks(false, 3), PINNED_WITHOUT[..3]);
    }

    const PINNED_WITH: [u32; 6] = [12, 12, 17, 15, 19, 13];
    const PINNED_WITHOUT: [u32; 6] = [12, 13, 18, 16, 19, 11];

    #[test]
    fn too_few_points_are_refused() {
        let random = &mut Random::new(1);
        let text = uniform(&[7, 8], 3, false, random).unwrap_err().to_string();
        assert_eq!(text, "k is 3, with 2 points to choose from; it must be no more than there are");
        assert!(uniform(&[], 1, true, random).is_err());
        let text = uniform(&[1], 1 << 40, true, random).unwrap_err().to_string();
        assert_eq!(text, "k is 1099511627776; it must be 16777216 or less");
        assert_eq!(uniform(&[1], 1 << 24, true, random).unwrap().len(), 1 << 24);
        assert_eq!(uniform(&[], 0, true, random).unwrap(), []);
        assert_eq!(uniform(&[7], 3, true, random).unwrap(), [7, 7, 7]);
    }
}
