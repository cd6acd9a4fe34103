//! Values and estimators of nodes against a model that walks from every node to every leaf.

use proptest::prelude::*;
use trunkline_core::Forest;
use trunkline_core::advantage::{Batch, NodeValues, Setting};

use super::{close, count, mean, text, with};

/// A forest with a rollout at any of its nodes, and their rewards.
#[derive(Clone, Debug)]
pub(super) struct Trees {
    pub(super) forest: Forest,
    pub(super) rewards: Vec<f64>,
    pub(super) flags: Vec<u8>,
}

impl Trees {
    pub(super) fn batch(&self) -> Batch<'_> {
        Batch { rewards: &self.rewards, forest: Some(&self.forest), ..Batch::default() }
    }

    pub(super) fn nodes(&self) -> std::ops::Range<usize> {
        0..self.forest.parents().len()
    }

    fn up(&self, node: usize) -> usize {
        self.forest.parents()[node] as usize
    }

    /// Nodes from a node up to its root.
    pub(super) fn path(&self, node: usize) -> Vec<usize> {
        let mut path = vec![node];
        while self.up(path[path.len() - 1]) != path[path.len() - 1] {
            path.push(self.up(path[path.len() - 1]));
        }
        path
    }

    fn root(&self, node: usize) -> usize {
        *self.path(node).last().unwrap()
    }

    /// Rollouts below a node, scored ones only.
    pub(super) fn below(&self, node: usize) -> Vec<usize> {
        let passes = |row: &usize| self.path(self.forest.leaves()[*row] as usize).contains(&node);
        (0..self.rewards.len()).filter(passes).filter(|row| !self.rewards[*row].is_nan()).collect()
    }

    /// All scored rollouts.
    pub(super) fn scored(&self) -> Vec<usize> {
        (0..self.rewards.len()).filter(|row| !self.rewards[*row].is_nan()).collect()
    }

    fn mean_of(&self, node: usize, values: &[f64]) -> f64 {
        mean(self.below(node).into_iter().map(|row| values[row]))
    }

    fn leaf_mean(&self, node: usize) -> f64 {
        self.mean_of(node, &self.rewards)
    }

    /// Values of the children of a node, and the rewards that end at it.
    fn children(&self, node: usize, rewards: &[f64]) -> Vec<f64> {
        let ends = (0..rewards.len()).filter(|row| self.forest.leaves()[*row] as usize == node).map(|row| rewards[row]);
        let below = self.nodes().filter(|child| *child != node && self.up(*child) == node);
        let values = below.map(|child| self.child_mean(child, rewards));
        ends.chain(values).filter(|value| !value.is_nan()).collect()
    }

    fn child_mean(&self, node: usize, rewards: &[f64]) -> f64 {
        mean(self.children(node, rewards))
    }
}

pub(super) fn trees() -> impl Strategy<Value = Trees> {
    let reward = prop_oneof![4 => (0u8..2).prop_map(f64::from), 2 => -10.0..10.0, 1 => Just(f64::NAN)];
    let nodes = prop::collection::vec(any::<prop::sample::Index>(), 1..25);
    let rows = prop::collection::vec((any::<prop::sample::Index>(), reward, 0u8..2), 0..25);
    (nodes, rows).prop_map(|(nodes, rows)| {
        let index = |at: &prop::sample::Index, size: usize| u32::try_from(at.index(size)).unwrap();
        let parents = nodes.iter().enumerate().map(|(node, at)| index(at, node + 1)).collect();
        let leaves = rows.iter().map(|row| index(&row.0, nodes.len())).collect();
        Trees {
            forest: Forest::new(parents, leaves).unwrap(),
            rewards: rows.iter().map(|row| row.1).collect(),
            flags: rows.iter().map(|row| row.2).collect(),
        }
    })
}

fn one_of(words: &[&'static str]) -> impl Strategy<Value = &'static str> + use<> {
    prop::sample::select(words.to_vec())
}

/// `TreeRL`'s gain and value of a node by recursion from the root.
fn treerl(trees: &Trees, scores: &[f64], node: usize, damping: &str, fill: bool) -> (f64, f64) {
    let up = trees.up(node);
    if up == node {
        return (0.0, 0.0);
    }
    let selected = count(trees.below(node).into_iter().filter(|row| trees.flags[*row] != 0).count());
    let damped = match damping {
        "sqrt" => selected.sqrt(),
        "uniform" => selected,
        _ => 1.0,
    };
    let value = if selected == 0.0 { f64::NAN } else { trees.mean_of(node, scores) / damped };
    let above = treerl(trees, scores, up, damping, fill);
    let gain = value - above.1;
    if fill && trees.up(up) != up && gain.abs() < 1e-8 { (above.0, value) } else { (gain, value) }
}

fn backups(trees: &Trees) -> Result<(), TestCaseError> {
    let mut found = NodeValues::default();
    let check = |found: &NodeValues, value: &dyn Fn(usize) -> f64| {
        close(&found.values, &trees.nodes().map(value).collect::<Vec<_>>())?;
        close(&found.local, &trees.nodes().map(|node| value(node) - value(trees.up(node))).collect::<Vec<_>>())?;
        close(&found.global, &trees.nodes().map(|node| value(node) - value(trees.root(node))).collect::<Vec<_>>())
    };
    found.leaf_means(&trees.forest, &trees.rewards).unwrap();
    check(&found, &|node| trees.leaf_mean(node))?;
    found.child_means(&trees.forest, &trees.rewards).unwrap();
    check(&found, &|node| trees.child_mean(node, &trees.rewards))?;
    Ok(())
}

fn discounted(trees: &Trees, gamma: f64) -> Result<(), TestCaseError> {
    fn value(trees: &Trees, rewards: &[f64], passes: &[u32], gamma: f64, node: usize) -> f64 {
        let children: Vec<(f64, f64)> = trees
            .nodes()
            .filter(|child| *child != node && trees.up(*child) == node)
            .map(|child| {
                (
                    rewards[child] - rewards[node] + gamma * value(trees, rewards, passes, gamma, child),
                    f64::from(passes[child]),
                )
            })
            .filter(|(gain, visits)| !gain.is_nan() && *visits > 0.0)
            .collect();
        let visits: f64 = children.iter().map(|child| child.1).sum();
        if children.is_empty() {
            rewards[node]
        } else {
            children.iter().map(|(gain, visits)| gain * visits).sum::<f64>() / visits
        }
    }
    let rewards: Vec<f64> = trees.nodes().map(|node| trees.rewards.get(node).copied().unwrap_or(0.5)).collect();
    let mut found = NodeValues::default();
    found.discounted(&trees.forest, &rewards, None, gamma).unwrap();
    let passes = trees.forest.passes();
    close(&found.values, &trees.nodes().map(|node| value(trees, &rewards, &passes, gamma, node)).collect::<Vec<_>>())?;
    Ok(())
}

fn scores_by_leaves(trees: &Trees) -> Result<(), TestCaseError> {
    let leaves = |node| count(trees.below(node).len()).sqrt();
    let v = |node| trees.leaf_mean(node);
    let differ = |node| (v(node) + (v(node) - v(trees.up(node)) - 0.1f64).max(0.0)) / leaves(node);
    let found = with("tree_grpo_diff", &[]).estimate(&trees.batch()).unwrap();
    close(&found.values, &trees.nodes().map(differ).collect::<Vec<_>>())?;
    let paper = |node| (v(node) - v(trees.root(node)) + v(node) - v(trees.up(node))) / leaves(node);
    let found = with("treerl_paper", &[]).estimate(&trees.batch()).unwrap();
    close(&found.values, &trees.nodes().map(paper).collect::<Vec<_>>())?;
    let kept: Vec<u8> = trees.nodes().map(|node| u8::from(!trees.below(node).is_empty())).collect();
    prop_assert_eq!(found.kept, kept);
    Ok(())
}

/// `grouped` puts the rows of all trees into two tasks, else each tree is one.
fn treerl_code(trees: &Trees, damping: &str, fill: bool, grouped: bool) -> Result<(), TestCaseError> {
    let root = |row: usize| u32::try_from(trees.root(trees.forest.leaves()[row] as usize)).unwrap();
    let tasks: Vec<u32> = (0..trees.rewards.len()).map(|row| if grouped { root(row) % 2 } else { root(row) }).collect();
    let scores: Vec<f64> = (0..trees.rewards.len())
        .map(|row| {
            let others: Vec<f64> = (0..trees.rewards.len())
                .filter(|other| *other != row && tasks[*other] == tasks[row] && !trees.rewards[*other].is_nan())
                .map(|other| trees.rewards[other])
                .collect();
            if others.is_empty() { trees.rewards[row] * 0.0 } else { trees.rewards[row] - mean(others) }
        })
        .collect();
    let settings = |signal| {
        [
            ("damping", text(damping)),
            ("signal", text(signal)),
            ("fill", Setting::Flag(fill)),
            ("singleton", text("zero")),
        ]
    };
    let group = grouped.then_some(&tasks[..]);
    let batch = Batch { selected: Some(&trees.flags), group, ..trees.batch() };
    let expected: Vec<(f64, f64)> = trees.nodes().map(|node| treerl(trees, &scores, node, damping, fill)).collect();
    for (signal, of) in [
        ("local", (|(gain, _): &(f64, f64)| *gain) as fn(&(f64, f64)) -> f64),
        ("value", |(_, value)| *value),
        ("local_plus_value", |(gain, value)| gain + value),
    ] {
        let found = with("treerl_code", &settings(signal)).estimate(&batch).unwrap();
        close(&found.values, &expected.iter().map(of).collect::<Vec<_>>())?;
    }
    let over_ancestors = |node: usize| {
        let path = trees.path(node);
        let gains: Vec<f64> = path[1..].iter().map(|above| expected[node].1 - expected[*above].1).collect();
        if gains.is_empty() { 0.0 } else { mean(gains) }
    };
    let found = with("treerl_code", &settings("ancestors")).estimate(&batch).unwrap();
    close(&found.values, &trees.nodes().map(over_ancestors).collect::<Vec<_>>())?;
    Ok(())
}

fn spo_edges(trees: &Trees, preset: &str) -> Result<(), TestCaseError> {
    let edge = |node: usize| {
        let siblings = trees.children(trees.up(node), &trees.rewards);
        let centre = mean(siblings.iter().copied());
        let gain = if trees.up(node) == node { 0.0 * centre } else { trees.child_mean(node, &trees.rewards) - centre };
        let std = mean(siblings.iter().map(|value| (value - centre).powi(2))).sqrt() + 1e-6;
        if preset == "spo_grpo" { gain / std } else { gain }
    };
    let settings: &[_] = if preset == "spo_grpo" { &[("eps", Setting::Number(1e-6))] } else { &[] };
    let found = with(preset, settings).estimate(&trees.batch()).unwrap();
    close(&found.values, &trees.nodes().map(edge).collect::<Vec<_>>())?;
    let kept: Vec<u8> = trees.nodes().map(edge).map(|value| u8::from(value.abs() > 1e-12)).collect();
    prop_assert_eq!(found.kept, kept);
    Ok(())
}

fn treepo(trees: &Trees, combine: &str, scale: &str, drop: bool) -> Result<(), TestCaseError> {
    let settings = [
        ("combine", text(combine)),
        ("scale", text(scale)),
        ("whiten", text("none")),
        ("eps", Setting::Number(1e-2)),
        ("zero_variance", text(if drop { "drop_subgroups" } else { "keep" })),
    ];
    let one = |row: usize| {
        let reward = trees.rewards[row];
        if reward.is_nan() {
            return reward;
        }
        let (mut sum, mut weights) = (0.0, 0.0);
        for node in trees.path(trees.forest.leaves()[row] as usize) {
            let group: Vec<f64> = trees.below(node).into_iter().map(|row| trees.rewards[row]).collect();
            let centre = if group.len() == 1 { 0.0 } else { mean(group.iter().copied()) };
            let squares: f64 = group.iter().map(|other| (other - centre).powi(2)).sum();
            let constant = group.iter().all(|other| (other - group[0]).abs() < 1e-12);
            let root = trees.up(node) == node;
            if !root && (group.len() == 1 || (drop && constant)) {
                continue;
            }
            let std = match (scale, group.len()) {
                ("none", _) => 1.0,
                (_, 1) => 1.01,
                _ => (squares / (count(group.len()) - 1.0)).sqrt() + 1e-2,
            };
            let weight = if combine == "size_weighted" { count(group.len()) } else { 1.0 };
            sum += weight * if constant && group.len() > 1 { 0.0 } else { (reward - centre) / std };
            weights += weight;
        }
        if combine == "sum" { sum } else { sum / weights }
    };
    let found = with("treepo_average", &settings).estimate(&trees.batch()).unwrap();
    close(&found.values, &(0..trees.rewards.len()).map(one).collect::<Vec<_>>())?;
    Ok(())
}

fn treepo_segments(trees: &Trees, relative: bool) -> Result<(), TestCaseError> {
    let relate = |row: usize| {
        let path = trees.path(trees.forest.leaves()[row] as usize);
        let groups: Vec<Vec<usize>> = path.iter().map(|node| trees.below(*node)).collect();
        let terms = groups.iter().zip(&path).map(|(group, node)| match (group.len(), trees.up(*node) == *node) {
            (1, true) => trees.rewards[row],
            (1, false) => 0.0,
            _ => count(group.len()) * (trees.rewards[row] - mean(group.iter().map(|row| trees.rewards[*row]))),
        });
        terms.sum::<f64>() / count(groups.iter().map(Vec::len).sum::<usize>().max(1)) + 0.0 * trees.rewards[row]
    };
    let rewards: Vec<f64> =
        if relative { (0..trees.rewards.len()).map(relate).collect() } else { trees.rewards.clone() };
    let segment = |node: usize| {
        let (value, up) = (trees.child_mean(node, &rewards), trees.up(node));
        if up == node {
            0.0 * value
        } else if trees.up(up) == up {
            value
        } else {
            value - trees.child_mean(up, &rewards)
        }
    };
    let found = with("treepo_segments", &[("relative", Setting::Flag(relative))]).estimate(&trees.batch()).unwrap();
    close(&found.values, &trees.nodes().map(segment).collect::<Vec<_>>())?;
    Ok(())
}

fn hard_prefixes(trees: &Trees) -> Result<(), TestCaseError> {
    let soft = with("arpo_soft", &[]).estimate(&trees.batch()).unwrap();
    let hard = with("arpo_hard", &[]).estimate(&trees.batch()).unwrap();
    close(&hard.values, &trees.nodes().map(|node| trees.mean_of(node, &soft.values)).collect::<Vec<_>>())?;
    Ok(())
}

fn masked_rollouts(trees: &Trees, counted: bool) -> Result<(), TestCaseError> {
    let batch = Batch { masked: Some(&trees.flags), ..trees.batch() };
    let found = with("treerl_paper", &[("count_masked", Setting::Flag(counted))]).estimate(&batch).unwrap();
    let rewards: Vec<f64> = trees
        .rewards
        .iter()
        .zip(&trees.flags)
        .map(|(reward, masked)| if *masked == 1 && !counted { f64::NAN } else { *reward })
        .collect();
    let plain = with("treerl_paper", &[]).estimate(&Batch { rewards: &rewards, ..trees.batch() }).unwrap();
    close(&found.values, &plain.values)?;
    let live = |node: usize| {
        (0..trees.rewards.len())
            .any(|row| trees.flags[row] == 0 && trees.path(trees.forest.leaves()[row] as usize).contains(&node))
    };
    let kept: Vec<u8> = trees.nodes().map(|node| u8::from(live(node) && !plain.values[node].is_nan())).collect();
    prop_assert_eq!(found.kept, kept);
    Ok(())
}

fn equal_rewards(trees: &Trees, reward: f64) -> Result<(), TestCaseError> {
    let rewards = vec![reward; trees.rewards.len()];
    let batch = Batch { rewards: &rewards, ..trees.batch() };
    for preset in ["spo_rloo", "spo_grpo", "arpo_hard"] {
        if preset == "arpo_hard" && trees.nodes().any(|node| trees.up(node) == node && trees.below(node).len() < 2) {
            continue;
        }
        let found = with(preset, &[]).estimate(&batch).unwrap();
        prop_assert!(found.values.iter().all(|value| value.is_nan() || *value == 0.0), "{preset} {:?}", found.values);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn values_and_gains_are_those_of_the_model(trees in trees()) {
        backups(&trees)?;
    }

    #[test]
    fn the_discounted_backup_is_that_of_the_model(trees in trees(), gamma in 0.0f64..1.0) {
        discounted(&trees, gamma)?;
    }

    #[test]
    fn scores_by_leaves_below_are_those_of_the_model(trees in trees()) {
        scores_by_leaves(&trees)?;
    }

    #[test]
    fn treerl_is_that_of_the_model(
        trees in trees(), damping in one_of(&["sqrt", "uniform", "none"]), fill in any::<bool>(), grouped in any::<bool>(),
    ) {
        treerl_code(&trees, damping, fill, grouped)?;
    }

    #[test]
    fn spo_edges_are_those_of_the_model(trees in trees(), preset in one_of(&["spo_rloo", "spo_grpo"])) {
        spo_edges(&trees, preset)?;
    }

    #[test]
    fn treepo_is_that_of_the_model(
        trees in trees(),
        combine in one_of(&["mean", "size_weighted", "sum"]),
        scale in one_of(&["none", "std"]),
        drop in any::<bool>(),
    ) {
        treepo(&trees, combine, scale, drop)?;
    }

    #[test]
    fn treepo_segments_are_those_of_the_model(trees in trees(), relative in any::<bool>()) {
        treepo_segments(&trees, relative)?;
    }

    #[test]
    fn a_hard_prefix_is_the_mean_of_its_rollouts(trees in trees()) {
        hard_prefixes(&trees)?;
    }

    #[test]
    fn nodes_of_masked_rollouts_are_not_kept_and_only_count_if_they_should(trees in trees(), counted in any::<bool>()) {
        masked_rollouts(&trees, counted)?;
    }

    #[test]
    fn equal_rewards_gain_nothing_anywhere(trees in trees(), reward in -5.0f64..5.0) {
        equal_rewards(&trees, reward)?;
    }
}
