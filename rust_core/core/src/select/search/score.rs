//! Upper confidence bounds for trees, with virtual loss.

use std::str::FromStr;

use libm::log;

use crate::error::{Error, Result};
use crate::select::option::{finite, named, positive};

use super::Node;

/// Which bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Formula {
    /// `TreeRL`'s `(V + offset + 1e-8) / 2 + c sqrt(ln(Np + 1) / (N + 1e-10))`: `offset` 1 maps rewards in `[-1, 1]` to
    /// `[0, 1]`; what was never visited rates very high, and not all alike. After `parallel_mcts.py:MCTSr` of `TreeRL`.
    Uct,
    /// The textbook's `V + c sqrt(ln Np / N)`, infinite where never visited. After P. Auer, N. Cesa-Bianchi and
    /// P. Fischer, "Finite-time analysis of the multiarmed bandit problem" (2002), where `c` is the root of 2.
    Ucb1,
}

impl FromStr for Formula {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        named("the formula", text, &[("uct", Self::Uct), ("ucb1", Self::Ucb1)], "\"uct\" or \"ucb1\"")
    }
}

/// A bound and its options. V is a node's mean reward, N its visits, Np those of its parent; a visit in flight counts in
/// all three, as one that came back with `loss` (virtual loss), so that the next pick goes elsewhere.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scoring {
    /// Which bound.
    pub formula: Formula,
    /// Weight of what has been tried little; 0 or more. `TreeRL` trains with 0.5.
    pub c: f64,
    /// Added to V by [`Formula::Uct`].
    pub offset: f64,
    /// The reward that a visit in flight counts as.
    pub loss: f64,
}

impl Scoring {
    /// # Errors
    /// [`Error::Value`] naming an option that is out of range.
    pub(super) fn check(&self) -> Result<()> {
        positive("c", self.c)?;
        finite("the offset", self.offset)?;
        finite("the virtual loss", self.loss)
    }

    /// The logarithm of the visits of a parent that its children share.
    pub(super) fn log(&self, count: u64) -> f64 {
        match self.formula {
            Formula::Uct => log(real(count) + 1.0),
            // A parent that was never visited knows as little as one that was once.
            Formula::Ucb1 => log(real(count).max(1.0)),
        }
    }

    /// How a node rates under a parent with this logarithm.
    pub(super) fn score(&self, log: f64, node: &Node) -> f64 {
        let (value, count) = (node.mean(self.loss), real(node.count()));
        match self.formula {
            Formula::Uct => (value + self.offset + 1e-8) / 2.0 + self.c * (log / (count + 1e-10)).sqrt(),
            Formula::Ucb1 if count == 0.0 => f64::INFINITY,
            Formula::Ucb1 => value + self.c * (log / count).sqrt(),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "two 32-bit counts")]
const fn real(count: u64) -> f64 {
    count as f64
}

/// Logarithms of visits. Most parents have few, and a logarithm costs more than all else in a score.
pub(super) struct Logs<'a> {
    scoring: &'a Scoring,
    few: Vec<f64>,
}

impl<'a> Logs<'a> {
    pub(super) fn new(scoring: &'a Scoring) -> Self {
        Self { scoring, few: (0..256).map(|count| scoring.log(count)).collect() }
    }

    pub(super) fn of(&self, parent: &Node) -> f64 {
        let few = usize::try_from(parent.count()).ok().and_then(|count| self.few.get(count));
        few.copied().unwrap_or_else(|| self.scoring.log(parent.count()))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::{Formula, Scoring};
    use crate::forest::Forest;
    use crate::select::Search;

    /// The score of a child with V and n under a parent with `above` visits; `in_flight` of both.
    fn score(formula: Formula, c: f64, (value, above, visits): (f64, u32, u32), in_flight: u32) -> f64 {
        let forest = Forest::new(vec![0, 0], vec![]).unwrap();
        let scoring = Scoring { formula, c, offset: 1.0, loss: -1.0 };
        let search = Search::new(forest, vec![above, visits], vec![0.0, value], vec![in_flight; 2], scoring).unwrap();
        search.scores()[1]
    }

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
    }

    #[test]
    fn the_worked_numbers_come_out() {
        near(score(Formula::Uct, 1.0, (0.5, 6, 3), 0), 1.555_380);
        near(score(Formula::Uct, 0.5, (1.0, 6, 2), 0), 1.493_192);
        near(score(Formula::Ucb1, 2f64.sqrt(), (0.5, 6, 3), 0), 1.592_935);
    }

    #[test]
    fn a_visit_in_flight_is_a_loss() {
        // Two in flight: V = (3 x 0.5 - 2) / 5, N = 5, Np = 8.
        near(score(Formula::Ucb1, 1.0, (0.5, 6, 3), 2), -0.1 + (8f64.ln() / 5.0).sqrt());
        near(score(Formula::Uct, 0.0, (0.5, 6, 3), 2), 0.45);
        near(score(Formula::Ucb1, 0.0, (f64::NAN, 6, 0), 2), -1.0);
    }

    #[test]
    fn what_was_never_visited_comes_first() {
        assert!(score(Formula::Ucb1, 1.0, (f64::NAN, 6, 0), 0).is_infinite());
        assert!(score(Formula::Uct, 0.5, (f64::NAN, 6, 0), 0) > 1e4);
        near(score(Formula::Uct, 0.0, (f64::NAN, 6, 0), 0), 0.5);
        near(score(Formula::Ucb1, 1.0, (0.25, 0, 1), 0), 0.25);
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let forest = Forest::new(vec![0, 0], vec![]).unwrap();
        let scoring = Scoring { formula: Formula::Uct, c: 1e100, offset: 1e100, loss: -1e100 };
        let visits = vec![u32::MAX; 2];
        let make = |value| Search::new(forest.clone(), visits.clone(), vec![0.0, value], visits.clone(), scoring);
        assert!(make(1e100).unwrap().scores()[1].is_finite());
        for value in [1.1e100, -1.1e100, f64::MAX, f64::INFINITY, f64::NAN] {
            let text = make(value).unwrap_err().to_string();
            assert!(text.ends_with("it must be a number from -1e100 to 1e100"), "{text}");
        }
    }

    #[test]
    fn options_out_of_range_are_named() {
        let refuse = |scoring: Scoring| {
            let forest = Forest::new(vec![0], vec![]).unwrap();
            Search::new(forest, vec![0], vec![0.0], vec![0], scoring).unwrap_err().to_string()
        };
        let good = Scoring { formula: Formula::Uct, c: 1.0, offset: 1.0, loss: 0.0 };
        assert_eq!(refuse(Scoring { c: -0.5, ..good }), "c is -0.5; it must be a number from 0 to 1e100");
        assert_eq!(
            refuse(Scoring { offset: f64::NAN, ..good }),
            "the offset is NaN; it must be a number from -1e100 to 1e100"
        );
        assert_eq!(
            refuse(Scoring { loss: f64::INFINITY, ..good }),
            "the virtual loss is inf; it must be a number from -1e100 to 1e100"
        );
        let text = "greedy".parse::<Formula>().unwrap_err().to_string();
        assert_eq!(text, "the formula is \"greedy\"; it must be \"uct\" or \"ucb1\"");
    }
}
