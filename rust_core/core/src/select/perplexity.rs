//! The most uncertain turns, by the perplexity of a region; after `functionality_specified_partial_rollout.py` of
//! `ParallelMuse`.

use crate::error::Result;
use crate::keyword::{Keyword, Listing};
use crate::reply::Region;

use crate::validation::{need, within};

/// Regions a turn has figures for.
const REGIONS: usize = Region::ALL.len();

/// What makes a turn uncertain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranking {
    /// The perplexity of one region.
    By(Region),
    /// Half of the picks, rounded up, by the tool call, the rest by the thinking.
    Mixed {
        /// Whether a turn that leads both lists is picked twice, as published, or the next one is taken instead.
        duplicates: bool,
    },
}

impl Ranking {
    /// The same, whether or not it picks a turn twice.
    ///
    /// # Errors
    /// [`crate::Error::Value`] if it should and is by one region, which has every turn once.
    pub fn repeating(self, duplicates: bool) -> Result<Self> {
        let mixed = matches!(self, Self::Mixed { .. });
        need(mixed || !duplicates, || "duplicates are asked for in one region".to_owned(), "\"mixed\" to have any")?;
        Ok(if mixed { Self::Mixed { duplicates } } else { self })
    }
}

/// A ranking by the region of this name, or a mixed one without duplicates.
impl Keyword for Ranking {
    const OPTION: &'static str = Region::OPTION;
    const WORDS: &'static [(&'static str, Self)] = &[
        (Region::Think.as_str(), Self::By(Region::Think)),
        (Region::Tool.as_str(), Self::By(Region::Tool)),
        (Region::All.as_str(), Self::By(Region::All)),
        ("mixed", Self::Mixed { duplicates: false }),
    ];
    const LISTING: Listing = Region::LISTING;
}

/// The `count` most uncertain turns, most uncertain first, the earlier one where two are equal.
///
/// `perplexities` has three numbers a turn, in the order of [`Region::ALL`]; NaN where unknown. A turn whose perplexity is
/// unknown in the region that ranks it is never picked: fewer come back where too few are known, for either half of
/// [`Ranking::Mixed`] apart.
///
/// # Errors
/// [`crate::Error::Value`] if there are not three numbers a turn, or naming a perplexity that is neither positive nor NaN.
pub fn top_turns(perplexities: &[f32], count: usize, ranking: Ranking) -> Result<Vec<u32>> {
    let (turns, rest) = perplexities.as_chunks::<REGIONS>();
    need(
        rest.is_empty(),
        || format!("there are {} perplexities", perplexities.len()),
        "three a turn: think, tool and all",
    )?;
    for (turn, figures) in turns.iter().enumerate() {
        for (region, figure) in Region::ALL.iter().zip(figures) {
            let known = figure.is_finite() && *figure > 0.0;
            let name = || format!("the {} perplexity of turn {turn} is {figure}", region.as_str());
            within(known || figure.is_nan(), name, "positive, or NaN where it is not known")?;
        }
    }
    Ok(match ranking {
        Ranking::By(region) => ranked(turns, region).take(count).collect(),
        Ranking::Mixed { duplicates } => {
            let mut picks: Vec<u32> = ranked(turns, Region::Tool).take(count.div_ceil(2)).collect();
            let mut taken = vec![false; turns.len()];
            for &turn in &picks {
                taken[turn as usize] = !duplicates;
            }
            picks.extend(ranked(turns, Region::Think).filter(|&turn| !taken[turn as usize]).take(count / 2));
            picks
        }
    })
}

/// Turns whose perplexity in a region is known, the most uncertain first.
fn ranked(turns: &[[f32; REGIONS]], region: Region) -> impl Iterator<Item = u32> {
    let known = (0u32..).zip(turns).map(|(turn, figures)| (turn, figures[region as usize]));
    let mut known: Vec<_> = known.filter(|(_, figure)| !figure.is_nan()).collect();
    known.sort_by(|a, b| b.1.total_cmp(&a.1));
    known.into_iter().map(|(turn, _)| turn)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::{Ranking, top_turns};
    use crate::keyword::Keyword;
    use crate::reply::Region;

    const NAN: f32 = f32::NAN;
    /// Message ids of the five turns of the worked example; the last one called no tool.
    const IDS: [u32; 5] = [2, 4, 6, 8, 10];
    const TURNS: [f32; 15] = [1.5, 1.1, 1.3, 1.2, 2.0, 1.4, 3.0, 1.9, 2.2, 1.0, 1.0, 1.0, NAN, NAN, NAN];

    fn ids(count: usize, ranking: Ranking) -> Vec<u32> {
        top_turns(&TURNS, count, ranking).unwrap().into_iter().map(|turn| IDS[turn as usize]).collect()
    }

    #[test]
    fn the_worked_example_comes_out() {
        assert_eq!(ids(2, Ranking::from_word("tool").unwrap()), [4, 6]);
        assert_eq!(ids(2, Ranking::from_word("think").unwrap()), [6, 2]);
        assert_eq!(ids(2, Ranking::from_word("all").unwrap()), [6, 4]);
        assert_eq!(ids(3, Ranking::Mixed { duplicates: true }), [4, 6, 6]);
        assert_eq!(ids(3, Ranking::from_word("mixed").unwrap()), [4, 6, 2]);
    }

    #[test]
    fn what_is_unknown_is_never_picked() {
        assert_eq!(ids(9, Ranking::from_word("tool").unwrap()), [4, 6, 2, 8]);
        assert_eq!(ids(9, Ranking::from_word("mixed").unwrap()), [4, 6, 2, 8]);
        assert_eq!(ids(0, Ranking::from_word("mixed").unwrap()), []);
        let only_tool = [NAN, 2.0, 2.0, NAN, 1.0, 1.0];
        assert_eq!(top_turns(&only_tool, 3, Ranking::from_word("mixed").unwrap()).unwrap(), [0, 1]);
        assert_eq!(top_turns(&only_tool, 2, Ranking::from_word("think").unwrap()).unwrap(), []);
    }

    #[test]
    fn what_is_no_perplexity_is_refused() {
        let text = top_turns(&[1.0, -1.0, 1.0], 1, Ranking::from_word("all").unwrap()).unwrap_err().to_string();
        assert_eq!(text, "the tool perplexity of turn 0 is -1; it must be positive, or NaN where it is not known");
        assert!(top_turns(&[1.0, 1.0, f32::INFINITY], 1, Ranking::from_word("think").unwrap()).is_err());
        let text = top_turns(&[1.0; 4], 1, Ranking::from_word("all").unwrap()).unwrap_err().to_string();
        assert_eq!(text, "there are 4 perplexities; it must be three a turn: think, tool and all");
        let text = Ranking::By(Region::All).repeating(true).unwrap_err().to_string();
        assert_eq!(text, "duplicates are asked for in one region; it must be \"mixed\" to have any");
        assert_eq!(Ranking::By(Region::All).repeating(false).unwrap(), Ranking::By(Region::All));
        assert!(Ranking::from_word("tools").unwrap_err().to_string().starts_with("the region is \"tools\""));
    }
}
