//! Advantages of rows against a model that compares every row with every other.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use trunkline_core::Forest;
use trunkline_core::advantage::{
    Batch, Centre, Combine, Estimator, Options, Scale, Scope, Setting, Singleton, Unit, Whiten, ZeroVariance,
    group_advantages, step_returns,
};

#[derive(Clone, Debug)]
struct Rows {
    rewards: Vec<f64>,
    groups: Vec<u32>,
    subgroups: Vec<u32>,
    trajectories: Vec<u32>,
    masked: Vec<u8>,
    tokens: Vec<u32>,
}

impl Rows {
    fn batch(&self) -> Batch<'_> {
        Batch {
            rewards: &self.rewards,
            group: Some(&self.groups),
            subgroup: Some(&self.subgroups),
            trajectory: Some(&self.trajectories),
            masked: Some(&self.masked),
            tokens: Some(&self.tokens),
            ..Batch::default()
        }
    }
}

fn reward() -> impl Strategy<Value = f64> {
    prop_oneof![4 => (0u8..3).prop_map(f64::from), 2 => -10.0..10.0, 1 => Just(f64::NAN)]
}

/// Keys that need no table, and keys that do.
fn key() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..3, Just(4_000_000_000)]
}

fn rows() -> impl Strategy<Value = Rows> {
    let row = (reward(), key(), key(), 0u32..4, 0u8..2, 0u32..4);
    prop::collection::vec(row, 0..24).prop_map(|rows| {
        let mut all = Rows {
            rewards: vec![],
            groups: vec![],
            subgroups: vec![],
            trajectories: vec![],
            masked: vec![],
            tokens: vec![],
        };
        for (reward, group, subgroup, trajectory, masked, tokens) in rows {
            all.rewards.push(reward);
            all.groups.push(group);
            all.subgroups.push(subgroup);
            all.trajectories.push(trajectory);
            all.masked.push(masked);
            all.tokens.push(tokens);
        }
        all
    })
}

fn options() -> impl Strategy<Value = Options> {
    let centre = prop::sample::select(vec![Centre::Mean, Centre::LeaveOneOut, Centre::RunnerUp, Centre::None]);
    let scale = prop::sample::select(vec![Scale::None, Scale::Std, Scale::BatchStd]);
    let single = || prop::sample::select(vec![Singleton::Raw, Singleton::Zero, Singleton::Skip]);
    let zero = prop::sample::select(vec![ZeroVariance::Keep, ZeroVariance::DropSubgroups, ZeroVariance::Drop]);
    let combine = prop::sample::select(vec![Combine::Sum, Combine::Mean, Combine::SizeWeighted, Combine::Nested]);
    let unit = prop::sample::select(vec![Unit::Row, Unit::Trajectory]);
    let whiten = prop::sample::select(vec![Whiten::None, Whiten::Batch]);
    let flags = (0u8..2, any::<bool>(), any::<bool>(), prop::sample::select(vec![0.0, 0.25]));
    (centre, scale, single(), single(), zero, combine, unit, whiten, flags).prop_map(
        |(centre, scale, singleton, subgroup_singleton, zero_variance, combine, unit, whiten, flags)| Options {
            centre,
            scale,
            singleton,
            subgroup_singleton,
            zero_variance,
            combine,
            unit,
            whiten,
            ddof: f64::from(flags.0),
            count_masked: flags.1,
            drop_zero: flags.2,
            var_floor: flags.3,
            eps: 1e-3,
            ..Options::default()
        },
    )
}

#[expect(clippy::cast_precision_loss, reason = "a few rows")]
fn count(len: usize) -> f64 {
    len as f64
}

fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / count(numbers.len())
}

fn std(numbers: &[f64], ddof: f64) -> f64 {
    let centre = mean(numbers);
    let squares: f64 = numbers.iter().map(|number| (number - centre).powi(2)).sum();
    if count(numbers.len()) > ddof { (squares / (count(numbers.len()) - ddof)).sqrt() } else { 0.0 }
}

/// What the group of one row gives it: the advantage and the size of the group, or nothing where the group is left out.
fn one(value: f64, group: &[f64], all: &[f64], options: &Options, inner: bool) -> Option<(f64, f64)> {
    let size = count(group.len());
    let of = |deviation: f64| match options.scale {
        Scale::Std => deviation.max(options.var_floor.sqrt()) + options.eps,
        Scale::BatchStd => std(all, options.ddof).max(options.var_floor.sqrt()) + options.eps,
        Scale::None | Scale::Mean => 1.0,
    };
    if group.len() == 1 {
        return match if inner { options.subgroup_singleton } else { options.singleton } {
            Singleton::Raw => Some((value / of(1.0), size)),
            Singleton::Skip => None,
            Singleton::Zero | Singleton::Error => Some((0.0, size)),
        };
    }
    let equal = group.iter().all(|other| (other - group[0]).abs() < 1e-12);
    if equal && (options.zero_variance == ZeroVariance::Drop || (inner && options.zero_variance != ZeroVariance::Keep))
    {
        return None;
    }
    let mut sorted = group.to_vec();
    sorted.sort_by(f64::total_cmp);
    let deviation = of(std(group, options.ddof));
    Some(match options.centre {
        Centre::None => (value / deviation, size),
        _ if equal => (0.0, size),
        Centre::Mean => ((value - mean(group)) / deviation, size),
        Centre::LeaveOneOut => {
            let others = (group.iter().sum::<f64>() - value) / (size - 1.0);
            ((value - others) / deviation, size)
        }
        Centre::RunnerUp => ((value - sorted[sorted.len() - 2]).max(0.0) / deviation, size),
    })
}

/// Advantages and what is kept, row by row.
fn model(rows: &Rows, scopes: &[Vec<&[u32]>], options: &Options) -> (Vec<f64>, Vec<u8>) {
    let all = 0..rows.rewards.len();
    let counts = |row: &usize| !rows.rewards[*row].is_nan() && (options.count_masked || rows.masked[*row] == 0);
    let mut input: Vec<f64> = all.clone().map(|row| if counts(&row) { rows.rewards[row] } else { f64::NAN }).collect();
    let mut terms: Vec<Vec<(f64, f64)>> = vec![vec![]; rows.rewards.len()];
    for (at, columns) in scopes.iter().enumerate() {
        let now = input.clone();
        let alike = |a: usize, b: usize| columns.iter().all(|column| column[a] == column[b]);
        let unit = |a: usize, b: usize| rows.trajectories[a] == rows.trajectories[b];
        let value = |row: usize| match options.unit {
            Unit::Row => now[row],
            Unit::Trajectory => mean(
                &all.clone()
                    .filter(counts)
                    .filter(|b| alike(row, *b) && unit(row, *b))
                    .map(|b| now[b])
                    .collect::<Vec<_>>(),
            ),
        };
        let observed = |members: Vec<usize>| -> Vec<f64> {
            let first = |row: &usize| {
                options.unit == Unit::Row || members.iter().find(|b| unit(*row, **b) && alike(*row, **b)) == Some(row)
            };
            members.iter().filter(|row| first(row)).map(|row| value(*row)).collect()
        };
        for row in all.clone().filter(counts) {
            let group = observed(all.clone().filter(counts).filter(|b| alike(row, *b)).collect());
            let every = observed(all.clone().filter(counts).collect());
            let found = one(value(row), &group, &every, options, at > 0);
            if options.combine == Combine::Nested {
                if let Some(found) = found {
                    (input[row], terms[row]) = (found.0, vec![found]);
                }
            } else {
                terms[row].extend(found);
            }
        }
    }
    let trained = |row: usize| counts(&row) && rows.masked[row] == 0 && !terms[row].is_empty();
    let mut values: Vec<f64> = all
        .clone()
        .map(|row| match (rows.rewards[row].is_nan(), trained(row)) {
            (true, _) => f64::NAN,
            (_, false) => 0.0,
            _ => {
                let sum: f64 = terms[row].iter().map(|term| term.0).sum();
                let sizes: f64 = terms[row].iter().map(|term| term.1).sum();
                match options.combine {
                    Combine::Sum | Combine::Nested => sum,
                    Combine::Mean => sum / count(terms[row].len()),
                    Combine::SizeWeighted => terms[row].iter().map(|term| term.0 * term.1).sum::<f64>() / sizes,
                }
            }
        })
        .collect();
    if options.whiten == Whiten::Batch {
        let tokens: Vec<f64> = all
            .clone()
            .filter(|row| trained(*row))
            .flat_map(|row| vec![values[row]; rows.tokens[row] as usize])
            .collect();
        let (centre, scale) =
            if tokens.is_empty() { (0.0, 1e-4) } else { (mean(&tokens), (std(&tokens, 1.0).powi(2) + 1e-8).sqrt()) };
        all.clone().filter(|row| trained(*row)).for_each(|row| values[row] = (values[row] - centre) / scale);
    }
    let kept = all.map(|row| u8::from(trained(row) && !(options.drop_zero && values[row].abs() < 1e-12))).collect();
    (values, kept)
}

fn close(found: &[f64], expected: &[f64]) -> Result<(), TestCaseError> {
    prop_assert_eq!(found.len(), expected.len());
    for (a, b) in found.iter().zip(expected) {
        let near = (a - b).abs() <= 1e-9 * (1.0 + b.abs()) || (a.is_nan() && b.is_nan());
        prop_assert!(near, "found {:?}, expected {:?}", found, expected);
    }
    Ok(())
}

fn groups_follow_the_model(rows: &Rows, mut options: Options, two: bool) -> Result<(), TestCaseError> {
    // Whitening magnifies rounding where all values are nearly equal.
    if options.drop_zero {
        options.whiten = Whiten::None;
    }
    let inner = vec![&rows.groups[..], &rows.subgroups[..]];
    let scopes = if two { vec![vec![&rows.groups[..]], inner] } else { vec![inner] };
    let wrapped: Vec<Scope> = scopes.iter().cloned().map(Scope::Keys).collect();
    let found = group_advantages(&rows.batch(), &wrapped, &options).unwrap();
    let (values, kept) = model(rows, &scopes, &options);
    prop_assume!(values.iter().all(|value| value.is_nan() || value.abs() < 1e6));
    close(&found.values, &values)?;
    if !options.drop_zero {
        prop_assert_eq!(found.kept, kept);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn groups_do_what_the_plain_model_does(rows in rows(), options in options(), two in any::<bool>()) {
        groups_follow_the_model(&rows, options, two)?;
    }
}

fn estimate(name: &str, batch: &Batch, settings: &[(&str, &str)]) -> Vec<f64> {
    let mut estimator = Estimator::preset(name).unwrap();
    for (option, word) in settings {
        estimator.set(option, &Setting::Text((*word).to_owned())).unwrap();
    }
    estimator.estimate(batch).unwrap().values
}

/// Rewards, groups and subgroups.
type Scored = (Vec<f64>, Vec<u32>, Vec<u32>);

fn scored() -> impl Strategy<Value = Scored> {
    let reward = prop_oneof![(0u8..3).prop_map(f64::from), -10.0..10.0];
    prop::collection::vec((reward, 0u32..4, 0u32..3), 1..30).prop_map(|rows| {
        let (rewards, keys): (Vec<_>, Vec<_>) = rows.into_iter().map(|row| (row.0, (row.1, row.2))).unzip();
        let (groups, subgroups) = keys.into_iter().unzip();
        (rewards, groups, subgroups)
    })
}

fn sums_are_zero(scored: &Scored) -> Result<(), TestCaseError> {
    let (rewards, groups, _) = scored;
    let batch = Batch { rewards, group: Some(groups), ..Batch::default() };
    for preset in ["trl", "art", "prime_rl", "rloo_vectorized", "tree_grpo_inter"] {
        let found = estimate(preset, &batch, &[]);
        for group in 0..4 {
            let sum: f64 = found.iter().zip(groups).filter(|row| *row.1 == group).map(|row| row.0).sum();
            prop_assert!(sum.abs() < 1e-9, "{preset} {sum}");
        }
    }
    Ok(())
}

fn affine_changes_nothing(scored: &Scored, scale: f64, shift: f64) -> Result<(), TestCaseError> {
    let (rewards, groups, _) = scored;
    // Whole numbers, so that moving makes nothing equal and nothing unequal.
    let whole: Vec<f64> = rewards.iter().map(|reward| reward.round()).collect();
    let moved: Vec<f64> = whole.iter().map(|reward| reward * scale + shift).collect();
    let of = |rewards: &[f64]| {
        let mut estimator = Estimator::preset("trl").unwrap();
        estimator.set("eps", &Setting::Number(0.0)).unwrap();
        estimator.estimate(&Batch { rewards, group: Some(groups), ..Batch::default() }).unwrap().values
    };
    let near = of(&whole).iter().zip(of(&moved)).all(|(a, b)| (a - b).abs() < 1e-9);
    prop_assert!(near, "{whole:?} {moved:?}");
    Ok(())
}

fn equal_rewards_give_zero(reward: f64, rows: usize, subgroups: u32) -> Result<(), TestCaseError> {
    let (rewards, groups) = (vec![reward; rows], vec![0; rows]);
    let subgroup: Vec<u32> = (0u32..).take(rows).map(|row| row % subgroups).collect();
    let batch = Batch { rewards: &rewards, group: Some(&groups), subgroup: Some(&subgroup), ..Batch::default() };
    for preset in [
        "verl_grpo",
        "verl_grpo_vectorized",
        "trl",
        "art",
        "dr_grpo",
        "rloo",
        "reinforce_pp_baseline",
        "tree_grpo",
        "pass_at_k",
    ] {
        prop_assert_eq!(estimate(preset, &batch, &[]), vec![0.0; rows]);
    }
    Ok(())
}

fn order_does_not_matter(scored: &Scored, turn: usize) -> Result<(), TestCaseError> {
    let (rewards, groups, subgroups) = scored;
    let turned = |column: &[u32]| {
        let mut column = column.to_vec();
        column.rotate_left(turn % rewards.len());
        column
    };
    let (turned_groups, turned_subgroups) = (turned(groups), turned(subgroups));
    let mut turned_rewards = rewards.clone();
    turned_rewards.rotate_left(turn % rewards.len());
    let batch = Batch { rewards: rewards, group: Some(groups), subgroup: Some(subgroups), ..Batch::default() };
    let other = Batch {
        rewards: &turned_rewards,
        group: Some(&turned_groups),
        subgroup: Some(&turned_subgroups),
        ..Batch::default()
    };
    let mut expected = estimate("tree_grpo", &batch, &[]);
    expected.rotate_left(turn % rewards.len());
    close(&estimate("tree_grpo", &other, &[]), &expected)?;
    Ok(())
}

fn single_leaves_are_a_chain(scored: &Scored) -> Result<(), TestCaseError> {
    let (rewards, groups, _) = scored;
    let each: Vec<u32> = (0u32..).take(rewards.len()).collect();
    let batch = Batch { rewards: rewards, group: Some(groups), subgroup: Some(&each), ..Batch::default() };
    close(&estimate("tree_grpo", &batch, &[]), &estimate("tree_grpo_inter", &batch, &[]))?;
    Ok(())
}

fn one_tree_is_the_group(scored: &Scored) -> Result<(), TestCaseError> {
    let (rewards, groups, _) = scored;
    let one = vec![0; rewards.len()];
    let batch = Batch { rewards: rewards, group: Some(groups), subgroup: Some(&one), ..Batch::default() };
    let inter = estimate("tree_grpo_inter", &batch, &[]);
    close(&estimate("tree_grpo_intra", &batch, &[]), &inter)?;
    close(&estimate("tree_grpo", &batch, &[]), &inter.iter().map(|value| 2.0 * value).collect::<Vec<_>>())?;
    Ok(())
}

fn flat_treepo_is_centred(scored: &Scored) -> Result<(), TestCaseError> {
    let (rewards, _, _) = scored;
    let nodes = u32::try_from(rewards.len()).unwrap() + 1;
    let forest = Forest::new(vec![0; nodes as usize], (1..nodes).collect()).unwrap();
    let batch = Batch { rewards: rewards, forest: Some(&forest), ..Batch::default() };
    let expected = estimate("dr_grpo", &batch, &[]);
    for preset in ["treepo_average", "treepo_size"] {
        close(&estimate(preset, &batch, &[("whiten", "none")]), &expected)?;
    }
    Ok(())
}

fn returns_follow_the_model(steps: Vec<(u32, u32, f64)>, gamma: f64) -> Result<(), TestCaseError> {
    let mut steps = steps;
    steps.sort_by_key(|step| step.1);
    let column = |of: fn(&(u32, u32, f64)) -> u32| steps.iter().map(of).collect::<Vec<_>>();
    let (trajectory, step) = (column(|row| row.0), column(|row| row.1));
    let rewards: Vec<f64> = steps.iter().map(|row| row.2).collect();
    let found = step_returns(&rewards, &trajectory, Some(&step), gamma).unwrap();
    // By hand: the distinct steps of the trajectory from this one on, each with the reward of its first row.
    let expected = |row: usize| {
        let mut distinct: Vec<u32> = (0..steps.len())
            .filter(|b| trajectory[*b] == trajectory[row] && step[*b] >= step[row])
            .map(|b| step[b])
            .collect();
        distinct.dedup();
        let first =
            |number: u32| (0..steps.len()).find(|b| trajectory[*b] == trajectory[row] && step[*b] == number).unwrap();
        distinct.iter().rev().fold(0.0, |after, number| rewards[first(*number)] + gamma * after)
    };
    close(&found, &(0..steps.len()).map(expected).collect::<Vec<_>>())?;
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn centred_advantages_of_a_group_sum_to_zero(scored in scored()) {
        sums_are_zero(&scored)?;
    }

    #[test]
    fn moved_rewards_change_nothing_where_the_deviation_divides(
        scored in scored(), scale in 0.5f64..50.0, shift in -100.0f64..100.0,
    ) {
        affine_changes_nothing(&scored, scale, shift)?;
    }

    #[test]
    fn groups_without_variance_give_exactly_zero(reward in -10.0f64..10.0, rows in 2usize..40, subgroups in 1u32..5) {
        equal_rewards_give_zero(reward, rows, subgroups)?;
    }

    #[test]
    fn the_order_of_rows_does_not_matter(scored in scored(), turn in 0usize..30) {
        order_does_not_matter(&scored, turn)?;
    }

    #[test]
    fn a_tree_for_every_leaf_is_a_chain(scored in scored()) {
        single_leaves_are_a_chain(&scored)?;
    }

    #[test]
    fn one_tree_gives_the_same_between_and_within(scored in scored()) {
        one_tree_is_the_group(&scored)?;
    }

    #[test]
    fn treepo_without_branches_is_centred(scored in scored()) {
        flat_treepo_is_centred(&scored)?;
    }

    #[test]
    fn returns_discount_later_steps(
        steps in prop::collection::vec((0u32..3, 0u32..3, -5.0f64..5.0), 0..20), gamma in 0.0f64..1.0,
    ) {
        returns_follow_the_model(steps, gamma)?;
    }
}

#[test]
fn columns_and_options_that_do_not_fit_are_refused() {
    let ok = Batch { rewards: &[1.0, 0.0], group: Some(&[0, 0]), ..Batch::default() };
    let refused = |preset: &str, batch: Batch| {
        Estimator::preset(preset).and_then(|estimator| estimator.estimate(&batch)).unwrap_err().to_string()
    };
    let cases = [
        ("nothing", ok, "preset is \"nothing\", and there are arpo_hard, arpo_soft"),
        ("trl", Batch { group: None, ..ok }, "the column group is missing"),
        ("trl", Batch { group: Some(&[0]), ..ok }, "1 groups where 2 are needed"),
        ("trl", Batch { rewards: &[1.0, f64::INFINITY], ..ok }, "reward 1 is inf"),
        ("trl", Batch { rewards: &[-1e101, 0.0], ..ok }, "reward 0 is -1"),
        ("tree_grpo", ok, "the column subgroup is missing"),
        ("dr_mas", ok, "the column agent is missing"),
        ("gigpo_mean", ok, "the column trajectory is missing"),
        ("treepo_size", ok, "the column forest is missing"),
        ("spo_rloo", ok, "the column forest is missing"),
        ("trl", Batch { forest: Some(&Forest::default()), ..ok }, "0 leaves where 2 are needed"),
        ("trl", Batch { tokens: Some(&[1]), ..ok }, "1 token counts where 2 are needed"),
        ("max_rl", Batch { rewards: &[-1.0, -2.0], ..ok }, "the group of row 0 has the mean -1.5"),
    ];
    for (preset, batch, text) in cases {
        let error = refused(preset, batch);
        assert!(error.starts_with(text), "{error}");
    }
    let set = |option, setting| Estimator::preset("trl").unwrap().set(option, &setting).unwrap_err().to_string();
    let text = |word: &str| Setting::Text(word.to_owned());
    assert!(set("gamma", Setting::Number(0.5)).starts_with("an option is \"gamma\", and there are scopes, unit"));
    assert!(set("centre", text("median")).starts_with("centre is \"median\", and there are mean, leave_one_out"));
    assert!(set("scopes", text("group+subtree")).starts_with("scopes is \"group+subtree\""));
    assert_eq!(set("ddof", Setting::Number(0.5)), "ddof is 0.5; it must be 0 or 1");
    assert_eq!(set("eps", Setting::Number(f64::NAN)), "eps is NaN; it must be 0 to 1e100");
    assert_eq!(set("eps", text("1")), "eps is \"1\"; it must be a number");
    assert_eq!(set("drop_zero", Setting::Number(1.0)), "drop_zero is 1; it must be True or False");
    let late = step_returns(&[0.0, 0.0], &[3, 3], Some(&[2, 1]), 0.9).unwrap_err().to_string();
    assert_eq!(late, "step 1 of row 1 comes after step 2 of its trajectory; it must be in ascending order");
    let mut nested = Estimator::preset("treepo_average").unwrap();
    nested.set("unit", &text("trajectory")).unwrap();
    let forest = Forest::new(vec![0, 0, 0], vec![1, 2]).unwrap();
    let error = nested.estimate(&Batch { forest: Some(&forest), ..ok }).unwrap_err().to_string();
    assert!(error.contains("over subtrees"), "{error}");
}

#[test]
fn every_preset_lists_options_that_it_takes_back() {
    for name in Estimator::PRESETS {
        let preset = Estimator::preset(name).unwrap();
        let mut copy = preset.clone();
        for (option, setting) in preset.settings() {
            copy.set(option, &setting).unwrap();
        }
        assert_eq!(copy, preset);
        assert!(preset.settings().iter().any(|(option, _)| *option == "drop_zero"), "{name}");
    }
}
