//! Chance that can be repeated: one seed, one sequence, on every machine and in every version.

use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// A seeded source of random numbers. Equal seeds give equal numbers for good: nothing here depends on a library's choice
/// of distribution code.
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
        loop {
            let wide = u128::from(self.bits()) * u128::from(bound);
            let [low, high] = [wide, wide >> 64].map(low_half);
            // What is rejected is below the remainder, so below the bound: the division is rarely needed.
            if low >= bound || low >= bound.wrapping_neg().checked_rem(bound).unwrap_or(0) {
                return high;
            }
        }
    }

    /// Put a slice into random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        self.draw(items, items.len());
    }

    /// Bring `count` items to the front in random order, each as likely as any other: the first steps of a shuffle, so
    /// that a smaller draw is the beginning of a larger one. All of them where there are fewer.
    pub fn draw<T>(&mut self, items: &mut [T], count: usize) {
        for at in 0..count.min(items.len()) {
            let pick = at + self.index(items.len() - at);
            items.swap(at, pick);
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
    fn a_smaller_draw_begins_a_larger_one() {
        let drawn = |count: usize| {
            let mut items: Vec<u32> = (0..9).collect();
            Random::new(3).draw(&mut items, count);
            items.truncate(count);
            items
        };
        assert_eq!(drawn(4), drawn(20)[..4]);
        let mut all = drawn(20);
        all.sort_unstable();
        assert_eq!(all, (0..9).collect::<Vec<_>>());
    }

    #[test]
    fn every_number_below_a_bound_is_as_likely() {
        let mut random = Random::new(1);
        let mut counts = [0u32; 7];
        for _ in 0..70_000 {
            counts[random.index(7)] += 1;
        }
        // Five standard deviations of a binomial count around its mean of 10,000.
        assert!(counts.iter().all(|&count| count.abs_diff(10_000) < 470), "{counts:?}");
        // Without rejection, every third number below three quarters of 2^64 would be twice as likely as the others.
        let thirds = (0..30_000).filter(|_| random.below(3 << 62).is_multiple_of(3)).count();
        assert!(thirds.abs_diff(10_000) < 410, "{thirds}");
        let mut order: Vec<u32> = (0..50).collect();
        random.shuffle(&mut order);
        assert!(!order.is_sorted());
        order.sort_unstable();
        assert_eq!(order, (0..50).collect::<Vec<_>>());
        assert!((0..1000).all(|_| (0.0..1.0).contains(&random.unit())));
    }
}
