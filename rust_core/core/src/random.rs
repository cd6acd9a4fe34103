//! Chance that can be repeated: one seed, one sequence, on every machine and in every version.

use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// A seeded source of random numbers. Equal seeds and streams give equal numbers for good: nothing here depends on a
/// library's choice of distribution code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Random(Pcg64);

impl Random {
    /// A source for a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Pcg64::seed_from_u64(seed))
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number in `[0, 1)` with 53 random bits.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are what an f64 holds exactly")]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number in `0..bound`, each equally likely; 0 where `bound` is 0 or 1.
    ///
    /// Multiplication with rejection, after D. Lemire, "Fast random integer generation in an interval" (2019).
    pub fn below(&mut self, bound: u64) -> u64 {
        let threshold = bound.wrapping_neg().checked_rem(bound).unwrap_or(0);
        loop {
            let wide = u128::from(self.bits()) * u128::from(bound);
            let [low, high] = [wide, wide >> 64].map(low_half);
            if low >= threshold {
                return high;
            }
        }
    }

    /// Put a slice into random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }

    /// An index below `len`; 0 where `len` is 0.
    #[expect(clippy::cast_possible_truncation, reason = "the number is below a usize")]
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is what is wanted")]
const fn low_half(wide: u128) -> u64 {
    wide as u64
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn a_seed_gives_these_numbers_for_good() {
        let mut random = Random::new(7);
        let found: Vec<u64> = (0..6).map(|_| random.below(1000)).collect();
        assert_eq!(found, PINNED);
        assert_eq!((Random::new(7).below(0), Random::new(7).below(1), Random::new(7).index(0)), (0, 0, 0));
    }

    const PINNED: [u64; 6] = [0, 231, 901, 835, 491, 591];

    #[test]
    fn every_number_below_a_bound_is_as_likely() {
        let mut random = Random::new(1);
        let mut counts = [0u32; 7];
        for _ in 0..70_000 {
            counts[random.index(7)] += 1;
        }
        // Five standard deviations of a binomial count around its mean of 10,000.
        assert!(counts.iter().all(|&count| count.abs_diff(10_000) < 470), "{counts:?}");
        let mut order: Vec<u32> = (0..50).collect();
        random.shuffle(&mut order);
        assert!(!order.is_sorted());
        order.sort_unstable();
        assert_eq!(order, (0..50).collect::<Vec<_>>());
        assert!((0..1000).all(|_| (0.0..1.0).contains(&random.unit())));
    }
}
