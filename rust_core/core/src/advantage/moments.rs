//! Mean and variance that can be merged.

/// Weight, mean and sum of squared deviations of some numbers, updated pairwise (Chan, Golub, `LeVeque`, 1983). Of
/// equal numbers the mean is that number and the deviations are 0, exactly.
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

    /// Count in what another has counted.
    pub(super) fn merge(&mut self, other: Self) {
        if other.weight == 0.0 {
            return;
        }
        let total = self.weight + other.weight;
        let apart = other.mean - self.mean;
        let share = other.weight / total;
        self.squares += other.squares + apart * apart * self.weight * share;
        self.mean += apart * share;
        self.weight = total;
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

    /// Whether all numbers are equal.
    pub(super) fn constant(&self) -> bool {
        self.squares == 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::Moments;

    fn of(numbers: &[f64]) -> Moments {
        numbers.iter().fold(Moments::default(), |mut moments, &number| {
            moments.push(number);
            moments
        })
    }

    #[test]
    fn equal_numbers_have_an_exact_mean_and_no_variance() {
        let mut moments = of(&[0.1; 7]);
        moments.merge(of(&[0.1; 3]));
        moments.merge(Moments::default());
        assert_eq!((moments.weight, moments.mean, moments.variance(1.0)), (10.0, 0.1, 0.0));
        assert!(moments.constant());
    }

    #[test]
    fn a_large_offset_costs_no_precision() {
        let moments = of(&[1e9, 1e9 + 1.0, 1e9 + 2.0]);
        assert!((moments.mean - 1e9 - 1.0).abs() < 1e-6);
        assert!((moments.variance(1.0) - 1.0).abs() < 1e-9);
        assert!((moments.variance(0.0) - 2.0 / 3.0).abs() < 1e-9);
    }
}
