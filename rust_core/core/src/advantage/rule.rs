//! How one group turns rewards into advantages.

use super::moments::Moments;
use super::options::{Centre, Combine, Options, Scale, Singleton, ZeroVariance};
use crate::error::Error;

/// A group's advantage is linear in the reward: `(reward - centre) * slope`, at least 0 where it is clamped. It counts
/// `weight` times beside those of other scopes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Line {
    pub(super) centre: f64,
    pub(super) slope: f64,
    pub(super) weight: f64,
    pub(super) clamped: bool,
}

impl Line {
    pub(super) fn at(&self, reward: f64) -> f64 {
        let value = (reward - self.centre) * self.slope;
        if self.clamped { value.max(0.0) } else { value }
    }
}

/// Why a group has no advantages.
pub(super) enum Refusal {
    Alone,
    Mean(f64),
}

impl Refusal {
    pub(super) fn of(self, group: &str) -> Error {
        match self {
            Self::Alone => Error::Value {
                value: format!("{group} has 1 scored observation"),
                want: "at least 2 where singleton is \"error\"",
            },
            Self::Mean(mean) => {
                Error::Value { value: format!("{group} has the mean {mean}"), want: "positive where scale is \"mean\"" }
            }
        }
    }
}

impl Options {
    /// The line of a group. `inner` is true of later scopes and of subtrees below a root; `runner_up` is the second
    /// largest reward, where that is the centre.
    pub(super) fn line(&self, group: &Moments, runner_up: f64, batch: f64, inner: bool) -> Result<Line, Refusal> {
        let weight = match self.combine {
            Combine::SizeWeighted => group.weight,
            Combine::Sum | Combine::Mean | Combine::Nested => 1.0,
        };
        if group.weight <= 1.0 {
            return if group.weight == 0.0 { Ok(Line::default()) } else { self.alone(weight, batch, inner) };
        }
        let constant = group.constant();
        let dropped = match self.zero_variance {
            ZeroVariance::Keep => false,
            ZeroVariance::DropSubgroups => inner,
            ZeroVariance::Drop => true,
        };
        if constant && dropped {
            return Ok(Line::default());
        }
        if constant && self.centre != Centre::None {
            return Ok(Line { weight, ..Line::default() });
        }
        let divisor = match self.scale {
            Scale::Mean if group.mean <= 0.0 => return Err(Refusal::Mean(group.mean)),
            Scale::Mean => group.mean + self.eps,
            _ => self.divisor(self.deviation(group), batch),
        };
        let (centre, slope) = match self.centre {
            Centre::None => (0.0, inverse(divisor)),
            Centre::Mean => (group.mean, inverse(divisor)),
            Centre::LeaveOneOut => (group.mean, inverse(divisor) * group.weight / (group.weight - 1.0)),
            Centre::RunnerUp => (runner_up, inverse(divisor)),
        };
        Ok(Line { centre, slope, weight, clamped: self.centre == Centre::RunnerUp })
    }

    /// A row alone: verl and its descendants take 0 for its mean and 1 for its deviation.
    fn alone(&self, weight: f64, batch: f64, inner: bool) -> Result<Line, Refusal> {
        match if inner { self.subgroup_singleton } else { self.singleton } {
            Singleton::Raw => Ok(Line { slope: inverse(self.divisor(1.0, batch)), weight, ..Line::default() }),
            Singleton::Zero => Ok(Line { weight, ..Line::default() }),
            Singleton::Skip => Ok(Line::default()),
            Singleton::Error => Err(Refusal::Alone),
        }
    }

    /// A standard deviation.
    pub(super) fn deviation(&self, moments: &Moments) -> f64 {
        moments.variance(self.ddof).sqrt()
    }

    fn divisor(&self, deviation: f64, batch: f64) -> f64 {
        match self.scale {
            Scale::Std => deviation.max(self.var_floor.sqrt()) + self.eps,
            Scale::BatchStd => batch.max(self.var_floor.sqrt()) + self.eps,
            Scale::None | Scale::Mean => 1.0,
        }
    }
}

/// Without anything to divide by, nothing is said about a reward.
fn inverse(divisor: f64) -> f64 {
    if divisor > 0.0 { divisor.recip() } else { 0.0 }
}
