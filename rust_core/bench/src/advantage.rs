//! Values of nodes and estimators.

use std::hint::black_box;
use std::io::Write;

use trunkline_core::advantage::{
    Batch, Estimator, NodeValues, Setting, Trained, to_nodes as land, to_tokens as spread,
};
use trunkline_core::{Forest, Random, Result};

use crate::case::Case;

/// Nodes of the forest, and rows of the batch.
const SIZE: usize = 64 << 10;

/// One tree in which each node hangs under any earlier one, with a rollout at every node that has no child.
fn forest() -> Forest {
    let mut random = Random::new(1);
    let parents: Vec<u32> = (0..SIZE).map(|node| small(random.index(node))).collect();
    let mut inner = vec![false; SIZE];
    for &parent in &parents {
        inner[parent as usize] = true;
    }
    let leaves = (0..SIZE).filter(|&node| !inner[node]).map(small).collect();
    need(Forest::new(parents, leaves))
}

/// What there must be: a case that measures a refusal is worth nothing.
fn need<T>(found: Result<T>) -> T {
    found.unwrap_or_else(|error| {
        let _ = writeln!(std::io::stderr(), "{error}");
        std::process::exit(1)
    })
}

fn small(number: usize) -> u32 {
    u32::try_from(number).unwrap_or_default()
}

fn rewards(count: usize) -> Vec<f64> {
    let mut random = Random::new(2);
    (0..count).map(|_| random.unit()).collect()
}

/// A case over nodes, beside a gather of the parents: what any backup or gain reads at least.
fn over_nodes(mut kernel: impl FnMut(&Forest) + 'static) -> Case {
    let (forest, values) = (forest(), rewards(SIZE));
    let parents = forest.parents().to_vec();
    let mut out = vec![0.0; SIZE];
    let baseline = move || {
        for (slot, &parent) in black_box(&mut out).iter_mut().zip(black_box(&parents)) {
            *slot = values[parent as usize];
        }
        black_box(&out);
    };
    Case {
        item: "node",
        items: SIZE,
        floor: "gather of the parents",
        kernel: Box::new(move || kernel(black_box(&forest))),
        baseline: Box::new(baseline),
    }
}

/// A case over the values of nodes, with local and global gains, into columns that are there.
fn backup(mut update: impl FnMut(&mut NodeValues, &Forest) -> Result<()> + 'static) -> Case {
    let mut found = NodeValues::default();
    over_nodes(move |forest| {
        need(update(&mut found, forest));
        black_box(&found);
    })
}

/// Leaf means.
pub fn leaf_mean() -> Case {
    let rewards = rewards(forest().leaves().len());
    backup(move |found, forest| found.leaf_means(forest, black_box(&rewards)))
}

/// Child means.
pub fn child_mean() -> Case {
    let rewards = rewards(forest().leaves().len());
    backup(move |found, forest| found.child_means(forest, black_box(&rewards)))
}

/// The discounted backup.
pub fn discounted() -> Case {
    let rewards = rewards(SIZE);
    backup(move |found, forest| found.discounted(forest, black_box(&rewards), None, 0.9))
}

/// The rollouts' advantages on nodes.
pub fn to_nodes() -> Case {
    let values = rewards(forest().leaves().len());
    over_nodes(move |forest| {
        black_box(need(land(forest, black_box(&values), None)));
    })
}

/// A preset, over the leaves of a forest if it needs one.
pub fn preset(name: &str) -> Option<Case> {
    let estimator = Estimator::preset(name).ok()?;
    let trees = estimator.on_nodes() || estimator.settings().contains(&("scopes", Setting::Text("subtree".to_owned())));
    Some(if trees { nodes(estimator) } else { rows(estimator) })
}

fn nodes(estimator: Estimator) -> Case {
    let rewards = rewards(forest().leaves().len());
    over_nodes(move |forest| {
        let batch = Batch { rewards: black_box(&rewards), forest: Some(forest), ..Batch::default() };
        black_box(need(estimator.estimate(&batch)));
    })
}

/// Rows in groups of 16, subgroups of 4, trajectories of 2, with 3 agents and 8 anchors a group; beside a
/// gather of one number a group.
fn rows(estimator: Estimator) -> Case {
    let rewards = rewards(SIZE);
    let key = |of: fn(usize) -> usize| (0..SIZE).map(|row| small(of(row))).collect::<Vec<u32>>();
    let group = key(|row| row / 16);
    let (subgroup, trajectory) = (key(|row| row / 4), key(|row| row / 2));
    let (agent, anchor) = (key(|row| row % 3), key(|row| row % 8));
    let centres = rewards[..SIZE / 16].to_vec();
    let (numbers, groups) = (rewards.clone(), group.clone());
    let mut out = vec![0.0; SIZE];
    let baseline = move || {
        for ((slot, &group), number) in black_box(&mut out).iter_mut().zip(black_box(&groups)).zip(&numbers) {
            *slot = number - centres[group as usize];
        }
        black_box(&out);
    };
    let kernel = move || {
        let batch = Batch {
            rewards: black_box(&rewards),
            group: Some(&group),
            subgroup: Some(&subgroup),
            agent: Some(&agent),
            anchor: Some(&anchor),
            trajectory: Some(&trajectory),
            step_rewards: Some(&rewards),
            ..Batch::default()
        };
        black_box(need(estimator.estimate(&batch)));
    };
    Case {
        item: "row",
        items: SIZE,
        floor: "gather of one number a group",
        kernel: Box::new(kernel),
        baseline: Box::new(baseline),
    }
}

/// Land values on 64 tokens each, of which one in four is masked; beside a copy of what comes out.
pub fn to_tokens() -> Case {
    let values = rewards(SIZE / 64);
    let offsets: Vec<u64> = (0..).step_by(64).take(values.len() + 1).collect();
    let mask: Vec<u8> = (0..SIZE).map(|token| u8::from(token % 4 > 0)).collect();
    let (landed, trained) = (rewards(SIZE), mask.clone());
    let kernel = move || {
        black_box(need(spread(black_box(&values), None, black_box(&offsets), Trained::Mask(&mask))));
    };
    let baseline = move || {
        black_box((black_box(&landed).clone(), black_box(&trained).clone()));
    };
    Case {
        item: "token",
        items: SIZE,
        floor: "copy of value and mask",
        kernel: Box::new(kernel),
        baseline: Box::new(baseline),
    }
}
