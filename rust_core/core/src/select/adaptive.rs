//! Branching where the entropy of a model rose after a tool call.

use libm::exp;

use crate::error::{Result, length};
use crate::keyword::keywords;
use crate::select::random::Random;

use crate::validation::{at_least_one, few, finite, need, probability};

keywords! {
    /// How a change of entropy becomes a probability.
    pub enum Rule as "the rule", Quoted {
        /// `clip(p + w dH, 0, 1)`; after `vllm_rollout_with_tools.py:generate_sequences` of ARPO.
        Arpo = "arpo",
        /// `clip(1 - p / f + w dH, 0, 1)` with `f = max(0, 1 - 0.05 l)`, where l is how many rounds in a row the task has
        /// branched, and 0 where f is 0: after 20 rounds. Equal to ARPO at p = 0.5 and l = 0. After AEPO.
        Aepo = "aepo",
    }
}

/// A row that is active after a tool round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EntropyRow {
    /// Entropy of its first tokens after this round; NaN where not known.
    pub entropy: f64,
    /// The first entropy ever known of this row; NaN where this is the first.
    pub baseline: f64,
}

impl EntropyRow {
    /// Rows from two columns.
    ///
    /// # Errors
    /// [`crate::Error::Length`] if they have different lengths.
    pub fn zip(entropies: &[f64], baselines: &[f64]) -> Result<Vec<Self>> {
        length("baselines", entropies.len(), baselines.len())?;
        Ok(entropies.iter().zip(baselines).map(|(&entropy, &baseline)| Self { entropy, baseline }).collect())
    }
}

/// The options of branching by entropy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adaptive {
    /// Which rule.
    pub rule: Rule,
    /// p, the probability at no change (ARPO), or its counterpart (AEPO): 0.5.
    pub probability: f64,
    /// w, the weight of the change: 0.2.
    pub weight: f64,
    /// Rows that one row may become in a round, itself included: 2; at most 4,096.
    pub beam: u32,
}

impl Adaptive {
    /// The probability of a branch after a `change` of entropy, when the task has branched in the last `streak` rounds.
    ///
    /// # Errors
    /// [`crate::Error::Value`] naming an option that is out of range or a change that is not finite.
    pub fn probability(&self, change: f64, streak: u32) -> Result<f64> {
        self.check()?;
        finite("the change of entropy", change)?;
        Ok(self.chance(change, streak))
    }

    /// How often each row branches after a tool round of one task, while there are `free` places; and the streak after it.
    ///
    /// Rows have their turn in the order given. Each row has `beam - 1` attempts, and uses as many random numbers whatever
    /// happens to it, so that no row's luck depends on another's entropy; it can only lose its place. A row without a
    /// baseline has not changed. A row whose entropy is not known does not branch. The streak is how many rounds in a row
    /// had a branch; it goes back to 0 after a round without one.
    ///
    /// # Errors
    /// [`crate::Error::Value`] naming an option that is out of range, or a row whose entropy or baseline is infinite or
    /// absurd (beyond 1e100).
    pub fn branch(&self, rows: &[EntropyRow], free: u32, streak: u32, random: &mut Random) -> Result<(Vec<u32>, u32)> {
        self.check()?;
        for (at, row) in rows.iter().enumerate() {
            for (name, figure) in [("entropy", row.entropy), ("baseline", row.baseline)] {
                if !figure.is_nan() {
                    finite(format_args!("the {name} of row {at}"), figure)?;
                }
            }
        }
        let mut places = free;
        let branches = rows.iter().map(|row| {
            let change = if row.baseline.is_nan() { 0.0 } else { row.entropy - row.baseline };
            let odds = if row.entropy.is_nan() { 0.0 } else { self.chance(change, streak) };
            let hits = (1..self.beam).filter(|_| random.unit() < odds).count();
            let made = u32::try_from(hits).unwrap_or(u32::MAX).min(places);
            places -= made;
            made
        });
        let branches: Vec<u32> = branches.collect();
        let streak = if places < free { streak.saturating_add(1) } else { 0 };
        Ok((branches, streak))
    }

    fn check(&self) -> Result<()> {
        probability("the branch probability", self.probability)?;
        finite("the entropy weight", self.weight)?;
        at_least_one("the beam", self.beam as usize)?;
        few("the beam", self.beam as usize)
    }

    fn chance(&self, change: f64, streak: u32) -> f64 {
        let base = match self.rule {
            Rule::Arpo => self.probability,
            Rule::Aepo => {
                let factor = 1.0 - 0.05 * f64::from(streak);
                if factor <= 0.0 {
                    return 0.0;
                }
                1.0 - self.probability / factor
            }
        };
        (base + self.weight * change).clamp(0.0, 1.0)
    }
}

/// How many of `total` rollouts start from scratch, the rest being kept for branches: AEPO's
/// `clip(floor(n sigmoid(0.5 (root - mean tool))) + 1, 1, n)`.
///
/// `root` is the entropy of the answer to the bare question, `tool` those after tool calls: the surer the model was before
/// the tools, the fewer chains.
///
/// # Errors
/// [`crate::Error::Value`] if `total` is 0, `tool` is empty, or an entropy is not finite.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is between 0 and a u32")]
pub fn initial_chains(total: u32, root: f64, tool: &[f64]) -> Result<u32> {
    at_least_one("the number of rollouts", total as usize)?;
    finite("the entropy of the root", root)?;
    need(!tool.is_empty(), || "there are no entropies after tool calls".to_owned(), "at least one")?;
    for (at, &entropy) in tool.iter().enumerate() {
        finite(format_args!("the entropy after tool call {at}"), entropy)?;
    }
    let count = tool.iter().fold(0.0, |count, _| count + 1.0);
    let mean = tool.iter().sum::<f64>() / count;
    let share = 1.0 / (1.0 + exp(-0.5 * (root - mean)));
    Ok(((f64::from(total) * share) as u32).saturating_add(1).clamp(1, total))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::{Adaptive, EntropyRow, Rule, initial_chains};
    use crate::keyword::Keyword;
    use crate::select::random::Random;

    const ARPO: Adaptive = Adaptive { rule: Rule::Arpo, probability: 0.5, weight: 0.2, beam: 2 };
    const AEPO: Adaptive = Adaptive { rule: Rule::Aepo, ..ARPO };

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
    }

    #[test]
    fn the_worked_probabilities_come_out() {
        near(ARPO.probability(0.3, 0).unwrap(), 0.56);
        for (streak, expected) in [(0, 0.56), (2, 0.504_444), (10, 0.06), (20, 0.0), (40, 0.0), (u32::MAX, 0.0)] {
            near(AEPO.probability(0.3, streak).unwrap(), expected);
        }
        near(Adaptive { probability: 0.0, ..AEPO }.probability(-0.5, 19).unwrap(), 0.9);
        near(ARPO.probability(99.0, 0).unwrap(), 1.0);
        near(ARPO.probability(-99.0, 0).unwrap(), 0.0);
    }

    #[test]
    fn both_rules_agree_at_one_half_and_no_streak() {
        for tenths in -30..30 {
            let change = f64::from(tenths) / 10.0;
            near(ARPO.probability(change, 0).unwrap(), AEPO.probability(change, 0).unwrap());
        }
    }

    #[test]
    fn extremes_are_what_the_formula_says_but_for_a_long_streak() {
        // At p = 1 the code of ARPO branches always, and so does AEPO's at p = 0: here neither is a jump.
        for (rule, edge, inside) in [(Rule::Arpo, 1.0, 1.0 - 1e-9), (Rule::Aepo, 0.0, 1e-9)] {
            let chance = |p, streak| Adaptive { rule, probability: p, ..ARPO }.probability(-1.0, streak).unwrap();
            near(chance(edge, 0), 0.8);
            assert!((chance(edge, 0) - chance(inside, 0)).abs() < 1e-8);
            assert!((chance(edge, 19) - chance(inside, 19)).abs() < 1e-7);
        }
        // 20 rounds in a row end it at any p; for p > 0 the chance has come down to 0 by then.
        let chance = |p, streak| Adaptive { probability: p, ..AEPO }.probability(0.3, streak).unwrap();
        near(chance(0.0, 20), 0.0);
        near(chance(0.05, 18), 0.56);
        near(chance(0.06, 19), 0.0);
    }

    #[test]
    fn these_branches_are_for_good() {
        let rows: Vec<EntropyRow> =
            (0..12).map(|at| EntropyRow { entropy: f64::from(at) / 4.0, baseline: 1.0 }).collect();
        let beam = Adaptive { beam: 3, ..ARPO };
        let (all, streak) = beam.branch(&rows, 99, 4, &mut Random::new(6)).unwrap();
        assert_eq!((all.as_slice(), streak), (PINNED.as_slice(), 5));
        let (some, _) = beam.branch(&rows, 5, 4, &mut Random::new(6)).unwrap();
        assert_eq!(some.iter().sum::<u32>(), 5);
        assert!(some.iter().zip(&all).all(|(some, all)| some <= all));
    }

    const PINNED: [u32; 12] = [0, 1, 0, 0, 2, 2, 2, 1, 1, 1, 2, 2];

    #[test]
    fn what_is_not_known_does_not_branch() {
        let sure = Adaptive { probability: 1.0, ..ARPO };
        let nan = f64::NAN;
        let rows = [(nan, 1.0), (1.0, nan), (nan, nan), (1.0, 1.0)]
            .map(|(entropy, baseline)| EntropyRow { entropy, baseline });
        assert_eq!(sure.branch(&rows, 9, 1, &mut Random::new(0)).unwrap(), (vec![0, 1, 0, 1], 2));
        assert_eq!(sure.branch(&rows, 1, 1, &mut Random::new(0)).unwrap(), (vec![0, 1, 0, 0], 2));
        assert_eq!(sure.branch(&rows, 0, 1, &mut Random::new(0)).unwrap(), (vec![0; 4], 0));
        assert_eq!(sure.branch(&[], 9, 1, &mut Random::new(0)).unwrap(), (vec![], 0));
    }

    #[test]
    fn the_surer_the_start_the_fewer_chains() {
        assert_eq!(initial_chains(16, 1.0, &[1.0]).unwrap(), 9);
        assert_eq!(initial_chains(16, 1.0, &[0.5, 1.5]).unwrap(), 9);
        assert_eq!(initial_chains(16, -50.0, &[50.0]).unwrap(), 1);
        assert_eq!(initial_chains(16, 50.0, &[-50.0]).unwrap(), 16);
        assert_eq!(initial_chains(1, 0.0, &[0.0]).unwrap(), 1);
        // 16 sigmoid(0.5 (1 - 3)) = 16 / (1 + e) = 4.303.
        assert_eq!(initial_chains(16, 1.0, &[3.0]).unwrap(), 5);
    }

    #[test]
    fn options_out_of_range_are_named() {
        let text = Adaptive { probability: 1.5, ..ARPO }.probability(0.0, 0).unwrap_err().to_string();
        assert_eq!(text, "the branch probability is 1.5; it must be between 0 and 1");
        assert!(Adaptive { weight: f64::NAN, ..ARPO }.probability(0.0, 0).is_err());
        assert!(ARPO.probability(f64::NAN, 0).is_err());
        let text = Adaptive { beam: 0, ..ARPO }.branch(&[], 1, 0, &mut Random::new(0)).unwrap_err().to_string();
        assert_eq!(text, "the beam is 0; it must be 1 or more");
        let endless = [EntropyRow { entropy: f64::INFINITY, baseline: 0.0 }];
        let text = ARPO.branch(&endless, 1, 0, &mut Random::new(0)).unwrap_err().to_string();
        assert_eq!(text, "the entropy of row 0 is inf; it must be a number from -1e100 to 1e100");
        let text = Adaptive { beam: 4097, ..ARPO }.probability(0.0, 0).unwrap_err().to_string();
        assert_eq!(text, "the beam is 4097; it must be 4096 or less");
        let text = initial_chains(0, 0.0, &[0.0]).unwrap_err().to_string();
        assert_eq!(text, "the number of rollouts is 0; it must be 1 or more");
        assert!(initial_chains(4, f64::NAN, &[0.0]).is_err() && initial_chains(4, 0.0, &[]).is_err());
        assert!(Rule::from_word("apro").unwrap_err().to_string().contains("\"arpo\" or \"aepo\""));
    }
}
