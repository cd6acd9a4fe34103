//! How uncertain the model was of a token, from the log-probabilities of the likeliest tokens at its place.
//!
//! Figures decide where to fork, so exponentials and logarithms are those of `libm`, the same on every machine.

use libm::{exp, log};

use crate::keyword::keywords;

keywords! {
    /// A definition of a token's entropy, in nats.
    ///
    /// `l_i` are the natural log-probabilities of the k likeliest tokens that the server lists, `p_i = exp(l_i)`, and
    /// `q_i = p_i / sum(p)`.
    #[derive(Default, Hash)]
    pub enum Entropy as "the entropy", Or {
        /// `-sum(q ln q)`: the Shannon entropy of the k likeliest tokens, taken for all there are.
        #[default]
        Consistent = "consistent",
        /// `-sum(q ln p)`: the form of `ParallelMuse` (Alibaba-NLP/DeepResearch, `functionality_specified_partial_rollout.py`). It
        /// is more than the entropy by `-ln sum(p)`, the mass that is missing.
        ParallelMuse = "parallelmuse",
        /// `-ln p` of the sampled token, which `TreeRL` (THUDM/TreeRL, `tree_node.py`) calls entropy. Needs no list.
        Surprisal = "surprisal",
    }
}

impl Entropy {
    /// The entropy of a token in nats; NaN where what it needs is not known.
    ///
    /// `logprob` is of the sampled token (NaN for not known), `top` of the likeliest tokens: finite numbers in any order.
    #[must_use]
    pub fn of(self, logprob: f64, top: &[f64]) -> f64 {
        if self == Self::Surprisal {
            // No negative zero.
            return 0.0 - logprob;
        }
        if top.is_empty() {
            return f64::NAN;
        }
        let most = top.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (mut mass, mut weighted) = (0.0, 0.0);
        // Relative to the likeliest, so that the mass is 1 at least and no list is too improbable.
        for offset in top.iter().map(|logprob| logprob - most) {
            let weight = exp(offset);
            mass += weight;
            weighted += weight * offset;
        }
        let mean = weighted / mass;
        match self {
            Self::Consistent => (log(mass) - mean).max(0.0),
            _ => 0.0 - (most + mean),
        }
    }
}

/// The uncertainty of ARPO (RUC-NLPIR/ARPO, `vllm_rollout_with_tools.py`): `-sum(p ln p)` over the ten likeliest tokens at
/// each of the first twenty places, all in one sum, over `ln(vocabulary)`. No mean, nothing renormalised.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Arpo {
    places: u8,
    known: bool,
    sum: f64,
}

impl Arpo {
    const PLACES: u8 = 20;
    const TOP: usize = 10;

    /// Whether further places count.
    pub(super) const fn is_open(&self) -> bool {
        self.places < Self::PLACES
    }

    /// Count a place; its log-probabilities come in falling order.
    pub(super) fn push(&mut self, top: &[f64]) {
        self.sum -= top.iter().take(Self::TOP).map(|logprob| exp(*logprob) * logprob).sum::<f64>();
        self.places += 1;
        self.known |= !top.is_empty();
    }

    /// The sum in nats; NaN where no log-probabilities were listed.
    #[must_use]
    pub const fn sum(&self) -> f64 {
        if self.known { self.sum } else { f64::NAN }
    }

    /// The figure for a vocabulary of this many tokens; NaN where no log-probabilities were listed, or for a vocabulary of
    /// less than two tokens.
    #[must_use]
    pub fn over(&self, vocabulary: u32) -> f64 {
        per_vocabulary(self.sum(), vocabulary)
    }
}

/// A sum of entropies over the logarithm of how many tokens there are; NaN for less than two.
#[must_use]
pub fn per_vocabulary(sum: f64, vocabulary: u32) -> f64 {
    if vocabulary < 2 { f64::NAN } else { sum / log(f64::from(vocabulary)) }
}

/// Put log-probabilities into falling order.
pub(super) fn sort(top: &mut [f64]) {
    top.sort_unstable_by(|a, b| b.total_cmp(a));
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::{Arpo, Entropy};
    use crate::keyword::Keyword;

    fn logs<const N: usize>(probabilities: [f64; N]) -> [f64; N] {
        probabilities.map(f64::ln)
    }

    #[track_caller]
    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-5, "{found} is not {expected}");
    }

    #[test]
    fn a_list_that_lacks_mass_tells_the_definitions_apart() {
        let top = logs([0.5, 0.2, 0.1]);
        close(Entropy::Consistent.of(top[1], &top), 0.900_256);
        close(Entropy::ParallelMuse.of(top[1], &top), 1.123_400);
        close(Entropy::Surprisal.of(top[1], &top), 1.609_438);
    }

    #[test]
    fn whole_lists_give_the_entropy() {
        close(Entropy::Consistent.of(0.0, &logs([0.25; 4])), 4f64.ln());
        close(Entropy::ParallelMuse.of(0.0, &logs([0.25; 4])), 4f64.ln());
        assert_eq!(Entropy::ALL.map(|entropy| entropy.of(0.0, &[0.0]).to_bits()), [0; 3]);
        close(Entropy::Consistent.of(0.0, &[-9999.0; 2]), 2f64.ln());
        close(Entropy::Consistent.of(0.0, &[0.0, -9999.0]), 0.0);
    }

    #[test]
    fn figures_are_the_same_on_every_machine() {
        // To the last bit, in which libraries of C differ.
        let of = |first| Entropy::Consistent.of(0.0, &[first, -1.5, -2.25, -0.75]).to_bits();
        let expected = [1.102_823_992_385_747, 1.107_361_697_156_642_7, 1.107_643_453_629_974_4];
        assert_eq!([-0.001, -0.017, -0.018].map(of), expected.map(f64::to_bits));
    }

    #[test]
    fn definitions_have_names() {
        assert_eq!(Entropy::ALL.map(|entropy| Entropy::from_word(entropy.as_str())), Entropy::ALL.map(Ok));
        assert!(Entropy::from_word("arpo").unwrap_err().to_string().contains("\"arpo\"; it must be consistent"));
    }

    #[test]
    fn what_is_not_known_is_nan() {
        assert!(Entropy::Consistent.of(-1.0, &[]).is_nan());
        assert!(Entropy::ParallelMuse.of(-1.0, &[]).is_nan());
        assert!(Entropy::Surprisal.of(f64::NAN, &[-1.0]).is_nan());
    }

    #[test]
    fn arpo_sums_twenty_places_of_ten() {
        let mut arpo = Arpo::default();
        assert!(arpo.over(1000).is_nan());
        let top = [0.05f64.ln(); 12];
        while arpo.is_open() {
            arpo.push(&top);
        }
        let place = -10.0 * 0.05 * 0.05f64.ln();
        close(arpo.over(1000), 20.0 * place / 1000f64.ln());
        assert!(arpo.over(1).is_nan());
    }
}
