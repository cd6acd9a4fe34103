//! Advantages of rows against a model that compares every row with every other.

use proptest::prelude::*;
use trunkline_core::Forest;
use trunkline_core::advantage::{
    Batch, Centre, Combine, EstimatorOptions, Scale, Scope, Singleton, Unit, Whiten, ZeroVariance, group_advantages,
};

use super::{close, count, mean};

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

fn options() -> impl Strategy<Value = EstimatorOptions> {
    let centre = prop::sample::select(vec![Centre::Mean, Centre::LeaveOneOut, Centre::RunnerUp, Centre::None]);
    let scale = prop::sample::select(vec![Scale::None, Scale::Std, Scale::BatchStd]);
    let single = || prop::sample::select(vec![Singleton::Raw, Singleton::Zero, Singleton::Skip]);
    let zero = prop::sample::select(vec![ZeroVariance::Keep, ZeroVariance::DropSubgroups, ZeroVariance::Drop]);
    let combine = prop::sample::select(vec![Combine::Sum, Combine::Mean, Combine::SizeWeighted, Combine::Nested]);
    let unit = prop::sample::select(vec![Unit::Row, Unit::Trajectory]);
    let whiten = prop::sample::select(vec![Whiten::None, Whiten::Batch]);
    let flags = (0u8..2, any::<bool>(), any::<bool>(), prop::sample::select(vec![0.0, 0.25]));
    (centre, scale, single(), single(), zero, combine, unit, whiten, flags).prop_map(
        |(centre, scale, singleton, subgroup_singleton, zero_variance, combine, unit, whiten, flags)| {
            EstimatorOptions {
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
                ..EstimatorOptions::default()
            }
        },
    )
}

fn std(numbers: &[f64], ddof: f64) -> f64 {
    let centre = mean(numbers.iter().copied());
    let squares: f64 = numbers.iter().map(|number| (number - centre).powi(2)).sum();
    if count(numbers.len()) > ddof { (squares / (count(numbers.len()) - ddof)).sqrt() } else { 0.0 }
}

/// What the group of one row gives it: the advantage and the size of the group, or nothing where the group is left out.
fn one(value: f64, group: &[f64], all: &[f64], options: &EstimatorOptions, inner: bool) -> Option<(f64, f64)> {
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
        Centre::Mean => ((value - mean(group.iter().copied())) / deviation, size),
        Centre::LeaveOneOut => {
            let others = (group.iter().sum::<f64>() - value) / (size - 1.0);
            ((value - others) / deviation, size)
        }
        Centre::RunnerUp => ((value - sorted[sorted.len() - 2]).max(0.0) / deviation, size),
    })
}

/// Advantages, what is kept, row by row, and by how much whitening has magnified the advantages, rounding and all.
fn model(rows: &Rows, scopes: &[Vec<&[u32]>], options: &EstimatorOptions) -> (Vec<f64>, Vec<u8>, f64) {
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
            Unit::Trajectory => {
                mean(all.clone().filter(counts).filter(|b| alike(row, *b) && unit(row, *b)).map(|b| now[b]))
            }
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
    let mut magnified = 1.0;
    if options.whiten == Whiten::Batch {
        let tokens: Vec<f64> = all
            .clone()
            .filter(|row| trained(*row))
            .flat_map(|row| vec![values[row]; rows.tokens[row] as usize])
            .collect();
        let (centre, scale) = if tokens.is_empty() {
            (0.0, 1e-4)
        } else {
            (mean(tokens.iter().copied()), (std(&tokens, 1.0).powi(2) + 1e-8).sqrt())
        };
        for row in all.clone().filter(|row| trained(*row)) {
            values[row] = if rows.tokens[row] > 0 { (values[row] - centre) / scale } else { 0.0 };
        }
        magnified = 1.0 / scale;
    }
    let kept = all.map(|row| u8::from(trained(row) && !(options.drop_zero && values[row].abs() < 1e-12))).collect();
    (values, kept, magnified)
}

fn groups_follow_the_model(rows: &Rows, mut options: EstimatorOptions, two: bool) -> Result<(), TestCaseError> {
    // Whitening magnifies rounding where all values are nearly equal.
    if options.drop_zero {
        options.whiten = Whiten::None;
    }
    let inner = vec![&rows.groups[..], &rows.subgroups[..]];
    let scopes = if two { vec![vec![&rows.groups[..]], inner] } else { vec![inner] };
    let wrapped: Vec<Scope> = scopes.iter().cloned().map(Scope::Keys).collect();
    let found = group_advantages(&rows.batch(), &wrapped, &options).unwrap();
    let (values, kept, magnified) = model(rows, &scopes, &options);
    prop_assume!(values.iter().all(|value| value.is_nan() || value.abs() < 1e6));
    let reduce = |values: &[f64]| values.iter().map(|value| value / magnified.max(1.0)).collect::<Vec<f64>>();
    close(&reduce(&found.values), &reduce(&values))?;
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

/// Two trajectories of mean 4/3 whose steps came in another order: a group without variance, however rounding fell.
#[test]
fn trajectories_of_equal_means_are_a_group_without_variance() {
    let (rewards, trajectories) = ([0.0, 2.0, 2.0, 1.0, 2.0, 1.0], [1, 0, 1, 0, 1, 0]);
    let batch = Batch { rewards: &rewards, group: Some(&[7; 6]), trajectory: Some(&trajectories), ..Batch::default() };
    let found = |zero_variance| {
        let options = EstimatorOptions {
            unit: Unit::Trajectory,
            scale: Scale::Std,
            eps: 0.0,
            zero_variance,
            ..EstimatorOptions::default()
        };
        group_advantages(&batch, &[Scope::Keys(vec![&[7; 6]])], &options).unwrap()
    };
    assert_eq!((found(ZeroVariance::Keep).values, found(ZeroVariance::Keep).kept), (vec![0.0; 6], vec![1; 6]));
    assert_eq!((found(ZeroVariance::Drop).values, found(ZeroVariance::Drop).kept), (vec![0.0; 6], vec![0; 6]));
}

/// The better row of each group is ahead of its mean by 0.1, but for the last bit. The two are alike in a later scope.
#[test]
fn equal_advantages_are_a_group_without_variance_in_the_next_scope() {
    let (rewards, groups, subgroups) = ([0.1, 0.3, 0.0, 0.2], [0, 0, 1, 1], [0, 1, 2, 1]);
    let options = EstimatorOptions {
        scale: Scale::None,
        subgroup_singleton: Singleton::Zero,
        combine: Combine::Nested,
        ..EstimatorOptions::default()
    };
    let batch = Batch { rewards: &rewards, ..Batch::default() };
    let first = group_advantages(&batch, &[Scope::Keys(vec![&groups])], &options).unwrap().values;
    assert!(first[1].to_bits() != first[3].to_bits() && (first[1] - first[3]).abs() < 1e-15, "{first:?}");

    let forest = Forest::new(vec![0, 1, 2], vec![0, 1, 2, 1]).unwrap();
    for next in [Scope::Keys(vec![&subgroups]), Scope::Subtrees(&forest)] {
        let scopes = [Scope::Keys(vec![&groups]), next];
        assert_eq!(group_advantages(&batch, &scopes, &options).unwrap().values, [0.0; 4]);
    }
}
