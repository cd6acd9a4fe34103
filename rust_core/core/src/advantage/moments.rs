//! Mean and variance that can be merged.

use super::keys::Groups;

/// Weight, mean and sum of squared deviations of some numbers; merged pairwise (Chan, Golub, `LeVeque`, 1983). Of equal
/// numbers the mean is that number and the deviations are 0, exactly.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moments {
    pub(super) weight: f64,
    pub(super) mean: f64,
    squares: f64,
}

impl Moments {
    /// Of one number that counts `weight` times.
    pub(super) const fn of(number: f64, weight: f64) -> Self {
        Self { weight, mean: number, squares: 0.0 }
    }

    /// Of the numbers that are not NaN, each of which counts once.
    pub(super) fn over(numbers: &[f64]) -> Self {
        Self::weighted(numbers.iter().filter(|number| !number.is_nan()).map(|&number| (number, 1.0)))
    }

    /// The same per group, in two passes over the rows.
    pub(super) fn by_group(groups: &Groups, numbers: &[f64]) -> Vec<Self> {
        let mut sums = vec![Sum::default(); groups.count];
        fold(groups, numbers, &mut sums, |sum, number| {
            sum.first = if sum.count == 0 { number } else { sum.first };
            sum.count += 1;
            sum.total += number - sum.first;
        });
        let mut moments: Vec<Self> = sums.into_iter().map(Sum::mean).collect();
        fold(groups, numbers, &mut moments, |moments, number| {
            moments.squares += (number - moments.mean) * (number - moments.mean);
        });
        moments
    }

    /// Of numbers with their weights, in two passes.
    pub(super) fn weighted(pairs: impl Iterator<Item = (f64, f64)> + Clone) -> Self {
        // Sums of what is left over the first number are exactly 0 where all are equal.
        let Some((first, _)) = pairs.clone().next() else { return Self::default() };
        let (mut weight, mut sum) = (0.0, 0.0);
        for (number, count) in pairs.clone() {
            weight += count;
            sum += count * (number - first);
        }
        if weight == 0.0 {
            return Self::default();
        }
        let mean = first + sum / weight;
        let squares = pairs.map(|(number, count)| count * (number - mean) * (number - mean)).sum();
        Self { weight, mean, squares }
    }

    /// Count in what another has counted.
    pub(super) fn merge(&mut self, other: Self) {
        if self.weight == 0.0 {
            *self = other;
        } else if other.weight > 0.0 {
            let total = self.weight + other.weight;
            let apart = other.mean - self.mean;
            let share = other.weight / total;
            self.squares += other.squares + apart * apart * self.weight * share;
            self.mean += apart * share;
            self.weight = total;
        }
    }

    /// Count in one more number.
    pub(super) fn push(&mut self, number: f64) {
        self.merge(Self::of(number, 1.0));
    }

    /// The variance; 0 where `ddof` leaves nothing to divide by.
    pub(super) fn variance(&self, ddof: f64) -> f64 {
        let count = self.weight - ddof;
        if count > 0.0 { self.squares / count } else { 0.0 }
    }

    /// Take deviations that are no larger than `rounding` for what arithmetic made of equal numbers.
    pub(super) fn settle(all: &mut [Self], rounding: f64) {
        if rounding > 0.0 {
            for one in all.iter_mut().filter(|one| one.squares <= one.weight * rounding * rounding) {
                one.squares = 0.0;
            }
        }
    }

    /// Whether all numbers are equal; so are those for which differences smaller than 1e-160 are all there is.
    pub(super) fn constant(&self) -> bool {
        self.squares == 0.0
    }
}

/// Sums of what is left over the first number are exactly 0 where all are equal.
#[derive(Clone, Copy, Default)]
struct Sum {
    first: f64,
    total: f64,
    count: u32,
}

impl Sum {
    fn mean(self) -> Moments {
        match f64::from(self.count) {
            0.0 => Moments::default(),
            count => Moments::of(self.first + self.total / count, count),
        }
    }
}

/// Take every number that is not NaN into what its group has. Rows of a group mostly come together, so what the last
/// one has is held at hand.
fn fold<T: Copy>(groups: &Groups, numbers: &[f64], all: &mut [T], mut take: impl FnMut(&mut T, f64)) {
    let Some(&(mut held)) = all.first() else { return };
    let mut last = 0;
    for (&group, &number) in groups.of.iter().zip(numbers).filter(|(_, number)| !number.is_nan()) {
        if group != last {
            all[last as usize] = std::mem::replace(&mut held, all[group as usize]);
            last = group;
        }
        take(&mut held, number);
    }
    all[last as usize] = held;
}

#[cfg(test)]
mod tests {
    use super::{Groups, Moments};

    /// Every way to count the same numbers.
    fn ways(numbers: &[f64]) -> [Moments; 4] {
        let (head, tail) = numbers.split_at(numbers.len() / 2);
        let mut merged = Moments::over(head);
        merged.merge(Moments::over(tail));
        merged.merge(Moments::default());
        let mut pushed = Moments::default();
        numbers.iter().filter(|number| !number.is_nan()).for_each(|&number| pushed.push(number));
        let one = Groups::new(&[], numbers.len());
        [Moments::over(numbers), merged, pushed, Moments::by_group(&one, numbers)[0]]
    }

    #[test]
    fn equal_numbers_have_an_exact_mean_and_no_variance() {
        for numbers in [[0.1; 7], [-1e8 - 0.3; 7], [1e100; 7], [5e-324; 7]] {
            for moments in ways(&numbers) {
                assert_eq!((moments.weight, moments.mean, moments.variance(1.0)), (7.0, numbers[0], 0.0));
                assert!(moments.constant());
            }
        }
    }

    #[test]
    fn a_large_offset_costs_no_precision() {
        for moments in ways(&[f64::NAN, 1e9, 1e9 + 1.0, f64::NAN, 1e9 + 2.0]) {
            assert_eq!((moments.weight, moments.mean, moments.variance(1.0)), (3.0, 1e9 + 1.0, 1.0));
            assert!((moments.variance(0.0) - 2.0 / 3.0).abs() < 1e-15);
        }
        let twice = Moments::weighted([(1e9, 2.0), (1e9 + 1.0, 0.0), (1e9 + 2.0, 2.0)].into_iter());
        assert_eq!((twice.weight, twice.mean, twice.variance(0.0)), (4.0, 1e9 + 1.0, 1.0));
    }

    #[test]
    fn nothing_has_no_weight() {
        assert!(ways(&[f64::NAN; 3]).iter().all(|moments| (moments.weight, moments.variance(0.0)) == (0.0, 0.0)));
        assert_eq!((Moments::weighted([(3.0, 0.0)].into_iter()).weight, 0), (0.0, 0));
    }

    #[test]
    fn what_is_within_rounding_is_equal_once_it_is_settled() {
        // The mean of 0, 2 and 2 and that of 2, 1 and 1, each as the sum of what is left over its first number.
        let means = [4.0_f64 / 3.0, 2.0 - 2.0 / 3.0];
        assert_ne!(means[0].to_bits(), means[1].to_bits());
        for (rounding, settled) in [(0.0, false), (1e-17, false), (1e-15, true)] {
            let mut all = ways(&means);
            Moments::settle(&mut all, rounding);
            assert!(all.iter().all(|one| one.constant() == settled), "{rounding}");
        }
    }

    #[test]
    fn groups_whose_rows_take_turns_are_counted_apart() {
        let groups = Groups::new(&[&[2, 0, 2, 0, 2]], 5);
        let found = Moments::by_group(&groups, &[5.0, 1.0, 6.0, 1.0, 7.0]).into_iter();
        let found: Vec<_> = found.map(|moments| (moments.weight, moments.mean, moments.variance(1.0))).collect();
        assert_eq!(found, [(2.0, 1.0, 0.0), (0.0, 0.0, 0.0), (3.0, 6.0, 1.0)]);
    }
}
