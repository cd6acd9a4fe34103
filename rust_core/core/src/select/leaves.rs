//! Which leaves of a tree to keep; after `sample_leaf` of Tree-GRPO and `select_terminal` of `TreeRL`.

use crate::error::Result;
use crate::keyword::{Keyword, Listing};
use crate::select::random::Random;

use crate::validation::{enough, need, within};

/// How leaves are chosen. None is chosen twice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LeafChoice {
    /// Each as likely as any other.
    Random,
    /// A correct one first if there is any, then random others.
    FirstCorrect,
    /// `floor(k ratio)` correct and as many wrong ones first, as far as there are such, then random others.
    Balanced {
        /// Share of correct leaves, and of wrong ones: 0 to 0.5.
        ratio: f64,
    },
}

/// A balanced choice is half and half.
impl Keyword for LeafChoice {
    const OPTION: &'static str = "the choice";
    const WORDS: &'static [(&'static str, Self)] =
        &[("random", Self::Random), ("first_correct", Self::FirstCorrect), ("balanced", Self::Balanced { ratio: 0.5 })];
    const LISTING: Listing = Listing::Quoted;
}

impl LeafChoice {
    /// The same with this ratio.
    ///
    /// # Errors
    /// [`crate::Error::Value`] if it is not balanced and has none.
    pub fn sharing(self, ratio: f64) -> Result<Self> {
        let balanced = matches!(self, Self::Balanced { .. });
        need(balanced, || format!("a ratio of {ratio} is given"), "left out, or the choice \"balanced\"")?;
        Ok(Self::Balanced { ratio })
    }

    /// `count` indices into `correct`, which says of each leaf whether its answer is (not 0), in the order chosen.
    ///
    /// # Errors
    /// [`crate::Error::Value`] if there are fewer leaves than `count`, or a ratio is not in `[0, 0.5]`.
    pub fn pick(self, correct: &[u8], count: usize, random: &mut Random) -> Result<Vec<u32>> {
        enough("leaves", count, correct.len())?;
        let mut leaves: Vec<u32> = (0u32..).zip(correct).map(|(leaf, _)| leaf).collect();
        random.shuffle(&mut leaves);
        let (mut right, mut wrong) = match self {
            Self::Random => (0, 0),
            Self::FirstCorrect => (1, 0),
            Self::Balanced { ratio } => {
                within((0.0..=0.5).contains(&ratio), || format!("the ratio is {ratio}"), "between 0 and 0.5")?;
                (share(count, ratio), share(count, ratio))
            }
        };
        let (mut picks, others): (Vec<u32>, Vec<u32>) = leaves.into_iter().partition(|&leaf| {
            let quota = if correct[leaf as usize] != 0 { &mut right } else { &mut wrong };
            let wanted = *quota > 0;
            *quota -= usize::from(wanted);
            wanted
        });
        picks.extend(others);
        picks.truncate(count);
        Ok(picks)
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "at most a half"
)]
fn share(count: usize, ratio: f64) -> usize {
    (count as f64 * ratio) as usize
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::{Keyword, LeafChoice};
    use crate::select::random::Random;

    const CORRECT: [u8; 8] = [0, 1, 0, 0, 1, 0, 0, 1];

    fn picks(choice: LeafChoice, count: usize, seed: u64) -> Vec<u32> {
        choice.pick(&CORRECT, count, &mut Random::new(seed)).unwrap()
    }

    fn correct(picks: &[u32]) -> usize {
        picks.iter().filter(|&&leaf| CORRECT[leaf as usize] == 1).count()
    }

    #[test]
    fn these_picks_are_for_good() {
        let choices = [LeafChoice::Random, LeafChoice::FirstCorrect, LeafChoice::Balanced { ratio: 0.5 }];
        assert_eq!(choices.map(|choice| picks(choice, 4, 11)), PINNED);
    }

    const PINNED: [[u32; 4]; 3] = [[6, 2, 0, 4], [4, 6, 2, 0], [6, 2, 4, 7]];

    #[test]
    fn quotas_come_first_as_far_as_they_can_be_filled() {
        for seed in 0..50 {
            assert_eq!(correct(&picks(LeafChoice::FirstCorrect, 1, seed)), 1);
            let half = picks(LeafChoice::Balanced { ratio: 0.5 }, 4, seed);
            assert_eq!(correct(&half), 2);
            assert_eq!(correct(&picks(LeafChoice::Balanced { ratio: 0.3 }, 4, seed)[..2]), 1);
            // Four are wanted and three are there.
            assert_eq!(correct(&picks(LeafChoice::Balanced { ratio: 0.5 }, 8, seed)), 3);
        }
        let none = LeafChoice::FirstCorrect.pick(&[0, 0], 2, &mut Random::new(0)).unwrap();
        assert_eq!(none.len(), 2);
        assert_eq!(picks(LeafChoice::FirstCorrect, 0, 0), []);
    }

    #[test]
    fn too_many_leaves_and_odd_ratios_are_refused() {
        let text = LeafChoice::Random.pick(&CORRECT, 9, &mut Random::new(0)).unwrap_err().to_string();
        assert_eq!(text, "k is 9, with 8 leaves to choose from; it must be no more than there are");
        for ratio in [-0.1, 0.6, f64::NAN] {
            let text = LeafChoice::Balanced { ratio }.pick(&CORRECT, 2, &mut Random::new(0)).unwrap_err().to_string();
            assert!(text.ends_with("it must be between 0 and 0.5"), "{text}");
        }
        let text = LeafChoice::Random.sharing(0.5).unwrap_err().to_string();
        assert_eq!(text, "a ratio of 0.5 is given; it must be left out, or the choice \"balanced\"");
        assert_eq!(
            LeafChoice::from_word("balanced").unwrap().sharing(0.3).unwrap(),
            LeafChoice::Balanced { ratio: 0.3 }
        );
        assert!(LeafChoice::from_word("best").is_err());
    }
}
