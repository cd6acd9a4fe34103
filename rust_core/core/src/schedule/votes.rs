//! The tally: weighted votes for answers, and whether the rest of the votes can still change the winner.

use std::collections::BTreeMap;

use crate::error::{Error, Result};

/// What an answer is called: the number of its cluster, or its normalised text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// A cluster.
    Cluster(u32),
    /// A text. Equal texts are one answer.
    Text(Box<str>),
}

/// Votes for one answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Votes {
    /// The answer.
    pub answer: Answer,
    /// Their weights together.
    pub weight: f64,
    /// How many they are.
    pub count: u32,
}

/// Weighted votes, counted in the order in which they are given.
///
/// The leader is the answer with the greatest weight; of equal ones the one that was voted for first. So votes are given in
/// a logical order (that of fork paths, say), never in the order of arrival. Weights are summed in that order as `f64`: a sum
/// of whole weights is exact up to 2^53, another one within `count * 2^-53` of itself.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    // In order of first votes.
    answers: Vec<Votes>,
    places: BTreeMap<Answer, usize>,
    total: f64,
    abstained: u32,
}

impl Tally {
    /// No votes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Count a vote, or an abstention.
    ///
    /// # Errors
    /// [`Error::Value`] for a weight that is negative, infinite or NaN, or that makes the sum of all infinite.
    pub fn vote(&mut self, answer: Option<Answer>, weight: f64) -> Result<()> {
        let total = self.total + amount("a vote's weight", weight)?;
        amount("the weight of all votes", total)?;
        let Some(answer) = answer else {
            self.abstained = self.abstained.saturating_add(1);
            return Ok(());
        };
        self.total = total;
        let place = self.places.get(&answer).copied().unwrap_or_else(|| self.add(answer));
        let votes = &mut self.answers[place];
        votes.weight += weight;
        votes.count = votes.count.saturating_add(1);
        Ok(())
    }

    fn add(&mut self, answer: Answer) -> usize {
        self.places.insert(answer.clone(), self.answers.len());
        self.answers.push(Votes { answer, weight: 0.0, count: 0 });
        self.answers.len() - 1
    }

    /// Every answer with its votes, in order of first votes.
    #[must_use]
    pub fn answers(&self) -> &[Votes] {
        &self.answers
    }

    /// How many did not vote for anything.
    #[must_use]
    pub const fn abstained(&self) -> u32 {
        self.abstained
    }

    /// The answer that wins as things are.
    #[must_use]
    pub fn leader(&self) -> Option<&Votes> {
        self.top().0
    }

    /// The answer that would win without the leader.
    #[must_use]
    pub fn runner_up(&self) -> Option<&Votes> {
        self.top().1
    }

    /// How much weight the leader has more than the runner-up; an answer without votes has 0.
    #[must_use]
    pub fn margin(&self) -> f64 {
        let (leader, runner_up) = self.top();
        weight(leader) - weight(runner_up)
    }

    /// Whether the leader leads, whatever `tries` more votes of at most `heaviest` each say: even if all of them agree with
    /// the runner-up, or with a new answer, it has more weight than that. A possible tie is not
    /// settled while a try remains, and neither is a margin within the rounding of the sums.
    ///
    /// # Errors
    /// [`Error::Value`] for a weight that is negative, infinite or NaN.
    pub fn settled(&self, tries: u32, heaviest: f64) -> Result<bool> {
        let rest = f64::from(tries) * amount("the weight of a remaining try", heaviest)?;
        let (leader, runner_up) = self.top();
        let votes: u64 = self.answers.iter().map(|votes| u64::from(votes.count)).sum();
        #[expect(clippy::cast_precision_loss, reason = "a bound of rounding need not be exact")]
        let rounding = (votes as f64 + f64::from(tries)) * f64::EPSILON * (self.total + rest);
        Ok(tries == 0 || weight(leader) - (weight(runner_up) + rest) > rounding)
    }

    /// Leader and runner-up.
    fn top(&self) -> (Option<&Votes>, Option<&Votes>) {
        self.answers.iter().fold((None, None), |(first, second), votes| {
            if first.is_none_or(|first: &Votes| votes.weight > first.weight) {
                (Some(votes), first)
            } else if second.is_none_or(|second: &Votes| votes.weight > second.weight) {
                (first, Some(votes))
            } else {
                (first, second)
            }
        })
    }
}

fn weight(votes: Option<&Votes>) -> f64 {
    votes.map_or(0.0, |votes| votes.weight)
}

fn amount(what: &str, weight: f64) -> Result<f64> {
    if weight.is_finite() && weight >= 0.0 {
        return Ok(weight);
    }
    Err(Error::range(format!("{what} is {weight}"), "a finite number, 0 or more"))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::{Answer, Tally};

    fn tally(votes: &[(&str, f64)]) -> Tally {
        let mut tally = Tally::new();
        for &(answer, weight) in votes {
            tally.vote(Some(Answer::Text(answer.into())), weight).unwrap();
        }
        tally
    }

    fn name(votes: Option<&super::Votes>) -> Option<&str> {
        match &votes?.answer {
            Answer::Text(text) => Some(text),
            Answer::Cluster(_) => None,
        }
    }

    #[test]
    fn the_answer_with_most_weight_leads() {
        let votes = tally(&[("a", 1.0), ("b", 1.0), ("c", 0.5), ("b", 2.0), ("a", 1.0)]);
        assert_eq!((name(votes.leader()), name(votes.runner_up()), votes.margin()), (Some("b"), Some("a"), 1.0));
        assert!((0..2).all(|tries| votes.settled(tries, 0.9).unwrap()));
        assert!(!votes.settled(2, 0.9).unwrap());
    }

    #[test]
    fn of_equal_answers_the_first_voted_for_leads_and_a_tie_is_not_settled() {
        let votes = tally(&[("b", 1.0), ("a", 2.0), ("b", 1.0)]);
        assert_eq!((name(votes.leader()), votes.margin()), (Some("b"), 0.0));
        assert_eq!((votes.settled(1, 0.0).unwrap(), votes.settled(0, 1.0).unwrap()), (false, true));
        let three = tally(&[("a", 1.0), ("b", 1.0), ("b", 1.0)]);
        assert_eq!((three.settled(1, 1.0).unwrap(), three.settled(1, 0.5).unwrap()), (false, true));
    }

    #[test]
    fn an_answer_nobody_has_given_yet_may_still_win() {
        let votes = tally(&[("a", 3.0)]);
        assert_eq!((name(votes.runner_up()), votes.margin()), (None, 3.0));
        assert_eq!((votes.settled(3, 1.0).unwrap(), votes.settled(2, 1.0).unwrap()), (false, true));
        assert!(!Tally::new().settled(1, 0.0).unwrap());
        assert_eq!((Tally::new().settled(1, 1.0).unwrap(), Tally::new().settled(0, 1.0).unwrap()), (false, true));
    }

    #[test]
    fn a_margin_within_rounding_is_not_settled() {
        // 0.1 + 0.2 is 0.30000000000000004, which is no lead over 0.3.
        let votes = tally(&[("a", 0.1), ("a", 0.2), ("b", 0.1)]);
        assert_eq!((votes.settled(1, 0.2).unwrap(), votes.settled(1, 0.19).unwrap()), (false, true));
    }

    #[test]
    fn abstentions_are_no_votes() {
        let mut votes = tally(&[("a", 1.0)]);
        votes.vote(None, 5.0).unwrap();
        votes.vote(Some(Answer::Cluster(0)), 0.0).unwrap();
        assert_eq!((votes.abstained(), votes.margin(), votes.answers().len()), (1, 1.0, 2));
    }

    #[test]
    fn weights_that_cannot_be_summed_are_refused() {
        for wrong in [f64::NAN, f64::INFINITY, -1.0] {
            let text = Tally::new().vote(None, wrong).unwrap_err().to_string();
            assert!(text.starts_with("a vote's weight is") && text.ends_with("0 or more"), "{text}");
            assert!(Tally::new().settled(1, wrong).is_err());
        }
        let mut full = tally(&[("a", f64::MAX)]);
        assert!(full.vote(Some(Answer::Cluster(1)), f64::MAX).is_err());
        assert_eq!(full.answers().len(), 1);
        assert!(!full.settled(2, f64::MAX).unwrap());
    }
}
