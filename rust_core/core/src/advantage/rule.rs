//! How one group turns rewards into advantages.

use super::moments::Moments;
use super::options::{Centre, Combine, EstimatorOptions, Scale, Singleton, Unit, ZeroVariance};
use crate::error::Error;

/// A group's advantage is linear in the reward: `(reward - centre) * slope`, but not below `least`. It counts `weight`
/// times beside those of other scopes, which the slope has in it already.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) centre: f64,
    pub(super) slope: f64,
    pub(super) weight: f64,
    least: f64,
}

impl Line {
    /// Of a group that does not count.
    const NONE: Self = Self::flat(0.0);

    /// 0 for every reward.
    const fn flat(weight: f64) -> Self {
        Self { centre: 0.0, slope: 0.0, weight, least: f64::NEG_INFINITY }
    }

    pub(super) fn at(&self, reward: f64) -> f64 {
        let value = (reward - self.centre) * self.slope;
        if value < self.least { self.least } else { value }
    }
}

/// Why a group has no advantages.
pub(super) enum GroupRefusal {
    Alone,
    Mean(f64),
}

impl GroupRefusal {
    pub(super) fn of(self, group: &str) -> Error {
        match self {
            Self::Alone => {
                Error::conflict(format!("{group} has 1 scored observation"), "at least 2 where singleton is \"error\"")
            }
            Self::Mean(mean) => {
                Error::conflict(format!("{group} has the mean {mean}"), "positive where scale is \"mean\"")
            }
        }
    }
}

impl EstimatorOptions {
    /// Why a group has none, if so. `inner` is true of later scopes and of subtrees below a root.
    pub(super) fn refusal(&self, group: &Moments, inner: bool) -> Option<GroupRefusal> {
        if group.weight > 0.0 && group.weight <= 1.0 && self.alone(inner) == Singleton::Error {
            Some(GroupRefusal::Alone)
        } else if self.scale == Scale::Mean && group.weight > 1.0 && !group.constant() && group.mean < LEAST {
            Some(GroupRefusal::Mean(group.mean))
        } else {
            None
        }
    }

    /// The line of a group that was not refused. `runner_up` is the second largest reward, where that is the centre.
    pub(super) fn line(&self, group: &Moments, runner_up: f64, batch: f64, inner: bool) -> Line {
        let weight = match self.combine {
            Combine::SizeWeighted => group.weight,
            Combine::Sum | Combine::Mean | Combine::Nested => 1.0,
        };
        if group.weight <= 1.0 {
            return match self.alone(inner) {
                _ if group.weight == 0.0 => Line::NONE,
                // verl and its descendants take 0 for the mean of a row alone and 1 for its deviation.
                Singleton::Raw => Line { slope: weight * inverse(self.divisor(1.0, 1.0, batch)), ..Line::flat(weight) },
                Singleton::Zero => Line::flat(weight),
                Singleton::Skip | Singleton::Error => Line::NONE,
            };
        }
        let constant = group.constant();
        let dropped = match self.zero_variance {
            ZeroVariance::Keep => false,
            ZeroVariance::DropSubgroups => inner,
            ZeroVariance::Drop => true,
        };
        if constant && dropped {
            return Line::NONE;
        }
        if constant && self.centre != Centre::None {
            return Line::flat(weight);
        }
        let slope = weight * inverse(self.divisor(self.deviation(group), group.mean, batch));
        let (centre, slope) = match self.centre {
            Centre::None => (0.0, slope),
            Centre::Mean => (group.mean, slope),
            // The row itself is in the mean of the group.
            Centre::LeaveOneOut => (group.mean, slope * group.weight / (group.weight - 1.0)),
            Centre::RunnerUp => (runner_up, slope),
        };
        let least = if self.centre == Centre::RunnerUp { 0.0 } else { f64::NEG_INFINITY };
        Line { centre, slope, weight, least }
    }

    /// By how much numbers that are equal may differ: not at all while they are the rewards themselves; where they are
    /// means of rewards, or advantages from another scope, by what rounding has left of the largest.
    pub(super) fn rounding(&self, values: &[f64], inner: bool) -> f64 {
        if self.unit == Unit::Trajectory || (inner && self.combine == Combine::Nested) {
            values.iter().fold(0.0, |most: f64, value| most.max(value.abs())) * ROUNDING
        } else {
            0.0
        }
    }

    const fn alone(&self, inner: bool) -> Singleton {
        if inner { self.subgroup_singleton } else { self.singleton }
    }

    /// The standard deviation of all groups together, where that matters.
    pub(super) fn batch_deviation(&self, groups: &[Moments]) -> f64 {
        if self.scale != Scale::BatchStd {
            return 0.0;
        }
        let mut all = Moments::default();
        for &group in groups {
            all.merge(group);
        }
        self.deviation(&all)
    }

    fn deviation(&self, moments: &Moments) -> f64 {
        moments.variance(self.ddof).max(self.var_floor).sqrt()
    }

    fn divisor(&self, deviation: f64, mean: f64, batch: f64) -> f64 {
        match self.scale {
            Scale::None => 1.0,
            Scale::Std => deviation + self.eps,
            Scale::BatchStd => batch + self.eps,
            Scale::Mean => mean + self.eps,
        }
    }
}

/// Far above the error of a mean of many thousand numbers, far below what any reward means.
const ROUNDING: f64 = 256.0 * f64::EPSILON;

/// What is smaller divides nothing: the quotient might be infinite.
const LEAST: f64 = 1e-160;

/// Without anything to divide by, nothing is said about a reward.
pub(super) fn inverse(divisor: f64) -> f64 {
    if divisor < LEAST { 0.0 } else { divisor.recip() }
}
