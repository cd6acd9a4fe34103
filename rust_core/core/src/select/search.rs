//! Tree search: what is known of every node, and where to expand next, by upper confidence bounds with virtual loss.

use libm::log;

use crate::error::{Result, length};
use crate::forest::Forest;
use crate::keyword::keywords;
use crate::validation::{few, finite, need, not_negative};

/// What a search knows of one node.
#[derive(Clone, Copy, Debug)]
struct SearchNode {
    visits: u32,
    value: f64,
    in_flight: u32,
}

impl SearchNode {
    /// Visits, those in flight included.
    fn count(&self) -> u64 {
        u64::from(self.visits) + u64::from(self.in_flight)
    }

    /// Mean reward if every visit in flight came back with `loss`; 0 where nothing was visited.
    fn mean(&self, loss: f64) -> f64 {
        match (self.visits, self.in_flight) {
            (0, 0) => 0.0,
            (0, _) => loss,
            (_, 0) => self.value,
            (visits, in_flight) => {
                let [visits, in_flight] = [visits, in_flight].map(f64::from);
                (self.value * visits + loss * in_flight) / (visits + in_flight)
            }
        }
    }
}

/// A search over a forest, with the picks that are still in flight.
#[derive(Clone, Debug)]
pub struct Search {
    forest: Forest,
    order: Vec<u32>,
    visits: Vec<u32>,
    values: Vec<f64>,
    in_flight: Vec<u32>,
    scoring: Scoring,
}

impl Search {
    /// A search that knows of every node its `visits` (rollouts through it that have been scored), their mean reward
    /// `values`, not read where there are none, and how many rollouts through it are `in_flight`: not scored yet.
    ///
    /// Of nodes that score alike, the first in their *order* wins: those that the forest's rollouts pass, rollout by rollout
    /// from the root down, then the others by number. Give the leaves, in the order in which rollouts were opened, and no pick
    /// depends on which node arrived first.
    ///
    /// # Errors
    /// [`crate::Error::Length`] if a column does not have one number a node, [`crate::Error::Value`] naming a visited
    /// node whose value is NaN or absurd (beyond 1e100), or an option of `scoring` that is out of range.
    pub fn new(
        forest: Forest,
        visits: Vec<u32>,
        values: Vec<f64>,
        in_flight: Vec<u32>,
        scoring: Scoring,
    ) -> Result<Self> {
        let count = forest.parents().len();
        length("visits", count, visits.len())?;
        length("values", count, values.len())?;
        length("picks in flight", count, in_flight.len())?;
        scoring.check()?;
        let known = visits.iter().zip(&values).enumerate();
        // Only a visited node has a value.
        for (node, (_, &value)) in known.filter(|(_, (visits, _))| **visits > 0) {
            finite(format_args!("the value of node {node}"), value)?;
        }
        let order = forest.order();
        Ok(Self { forest, order, visits, values, in_flight, scoring })
    }

    /// How each node rates against its siblings, roots highest of all: infinity.
    #[must_use]
    pub fn scores(&self) -> Vec<f64> {
        let logs = Logs::new(&self.scoring);
        let score = |(node, &parent): (u32, &u32)| {
            if parent == node {
                return f64::INFINITY;
            }
            self.scoring.score(logs.of(&self.node(parent)), &self.node(node))
        };
        (0..).zip(self.forest.parents()).map(score).collect()
    }

    /// Picks in flight through each node.
    #[must_use]
    pub fn in_flight(&self) -> &[u32] {
        &self.in_flight
    }

    fn node(&self, node: u32) -> SearchNode {
        let at = node as usize;
        SearchNode { visits: self.visits[at], value: self.values[at], in_flight: self.in_flight[at] }
    }

    fn check_room(&self, room: &[u32]) -> Result<()> {
        length("numbers of children to come", self.visits.len(), room.len())
    }

    fn check_start(&self, start: u32) -> Result<()> {
        let count = self.visits.len();
        need((start as usize) < count, || format!("the start of the search is {start} of {count} nodes"), "one of them")
    }
}

/// No further sibling.
const NONE: u32 = u32::MAX;

/// What lies below a node, and beside it.
#[derive(Clone, Copy)]
struct Way {
    /// How many children may still come here or below; more than 32 bits hold are as good as these.
    below: u32,
    /// How many may still come here.
    room: u32,
    /// The first child, in the order of nodes.
    first: u32,
    /// The next sibling.
    next: u32,
}

/// Where nodes can still be expanded, and how to get there.
struct Ways(Vec<Way>);

impl Ways {
    /// Children are linked in the order of nodes, in which they come after their parents.
    fn new(parents: &[u32], order: &[u32], room: &[u32]) -> Self {
        let way = |&room: &u32| Way { below: room, room, first: NONE, next: NONE };
        let mut ways: Vec<Way> = room.iter().map(way).collect();
        for &node in order.iter().rev() {
            let parent = parents[node as usize];
            if node != parent {
                let below = ways[node as usize].below;
                let above = &mut ways[parent as usize];
                above.below = above.below.saturating_add(below);
                ways[node as usize].next = std::mem::replace(&mut above.first, node);
            }
        }
        Self(ways)
    }

    fn at(&mut self, node: u32) -> &mut Way {
        &mut self.0[node as usize]
    }

    /// Children of a node that lead to something, in the order of nodes.
    fn children(&self, node: u32) -> impl Iterator<Item = u32> {
        let link = |link: u32| (link != NONE).then_some(link);
        let all =
            std::iter::successors(link(self.0[node as usize].first), move |&child| link(self.0[child as usize].next));
        all.filter(|&child| self.0[child as usize].below > 0)
    }
}

impl Search {
    /// `count` nodes to expand, each found by going down from `start`: stop at the first node that has room, else go on to
    /// the child with the highest score, of several that have it the first in the order of nodes.
    ///
    /// `room` says per node how many children it may still get: 0 for what is terminal or full. What leads nowhere is
    /// never entered. Each pick takes one place and is in flight from then on, on the whole way from `start`, so that
    /// parallel picks spread and a further call continues from there. Fewer come back where there is no room for more.
    ///
    /// # Errors
    /// [`crate::Error::Length`] if `room` does not have one number a node, [`crate::Error::Value`] if there is no `start` or
    /// there would be more than 4,096 picks.
    pub fn descend(&mut self, start: u32, room: &[u32], count: usize) -> Result<Vec<u32>> {
        self.check_room(room)?;
        self.check_start(start)?;
        let mut ways = Ways::new(self.forest.parents(), &self.order, room);
        few("k", count.min(ways.at(start).below as usize))?;
        let mut picks = Vec::new();
        while picks.len() < count && ways.at(start).below > 0 {
            let mut node = start;
            while ways.at(node).room == 0 {
                // There is one: no way leads to where nothing below has room.
                let Some(child) = self.best(&ways, node) else { return Ok(picks) };
                self.pass(node, &mut ways);
                node = child;
            }
            self.pass(node, &mut ways);
            ways.at(node).room -= 1;
            picks.push(node);
        }
        Ok(picks)
    }

    /// The child to go on to.
    fn best(&self, ways: &Ways, node: u32) -> Option<u32> {
        let log = self.scoring.log(self.node(node).count());
        let scored = ways.children(node).map(|child| (child, self.scoring.score(log, &self.node(child))));
        scored.reduce(|best, next| if next.1 > best.1 { next } else { best }).map(|(child, _)| child)
    }

    /// Count a pick that goes through a node.
    fn pass(&mut self, node: u32, ways: &mut Ways) {
        ways.at(node).below -= 1;
        let in_flight = &mut self.in_flight[node as usize];
        *in_flight = in_flight.saturating_add(1);
    }
}

keywords! {
    /// Which bound.
    pub enum Formula as "the formula", Quoted {
        /// `TreeRL`'s `(V + offset + 1e-8) / 2 + c sqrt(ln(Np + 1) / (N + 1e-10))`: `offset` 1 maps rewards in `[-1, 1]` to
        /// `[0, 1]`; what was never visited rates very high, and not all alike. After `parallel_mcts.py:MCTSr` of `TreeRL`.
        Uct = "uct",
        /// The textbook's `V + c sqrt(ln Np / N)`, infinite where never visited. After P. Auer, N. Cesa-Bianchi and
        /// P. Fischer, "Finite-time analysis of the multiarmed bandit problem" (2002), where `c` is the root of 2.
        Ucb1 = "ucb1",
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
    /// [`crate::Error::Value`] naming an option that is out of range.
    fn check(&self) -> Result<()> {
        not_negative("c", self.c)?;
        finite("the offset", self.offset)?;
        finite("the virtual loss", self.loss)
    }

    /// The logarithm of the visits of a parent that its children share.
    fn log(&self, count: u64) -> f64 {
        match self.formula {
            Formula::Uct => log(real(count) + 1.0),
            // A parent that was never visited knows as little as one that was once.
            Formula::Ucb1 => log(real(count).max(1.0)),
        }
    }

    /// How a node rates under a parent with this logarithm.
    fn score(&self, log: f64, node: &SearchNode) -> f64 {
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
struct Logs<'a> {
    scoring: &'a Scoring,
    few: Vec<f64>,
}

impl<'a> Logs<'a> {
    fn new(scoring: &'a Scoring) -> Self {
        Self { scoring, few: (0..256).map(|count| scoring.log(count)).collect() }
    }

    fn of(&self, parent: &SearchNode) -> f64 {
        let few = usize::try_from(parent.count()).ok().and_then(|count| self.few.get(count));
        few.copied().unwrap_or_else(|| self.scoring.log(parent.count()))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::{Formula, Scoring, Search};
    use crate::forest::Forest;
    use crate::keyword::Keyword;

    /// Root 0 with children 1 and 2; 1 has the children 3 and 4, 2 has 5. Five visits in all.
    fn search() -> Search {
        let forest = Forest::new(vec![0, 0, 0, 1, 1, 2], vec![]).unwrap();
        let scoring = Scoring { formula: Formula::Uct, c: 0.5, offset: 1.0, loss: 0.0 };
        Search::new(forest, vec![5, 3, 2, 2, 1, 2], vec![0.6, 0.67, 0.5, 0.5, 1.0, 0.5], vec![0; 6], scoring).unwrap()
    }

    #[test]
    fn the_first_node_with_room_on_the_best_way_is_picked() {
        let mut search = search();
        // 1 rates 0.835 + 0.5 sqrt(ln 6 / 3) = 1.221, and 2 rates 0.75 + 0.5 sqrt(ln 6 / 2) = 1.223.
        assert_eq!(search.clone().descend(0, &[0, 0, 0, 9, 9, 9], 1).unwrap(), [5]);
        assert_eq!(search.clone().descend(0, &[0, 9, 0, 9, 9, 0], 1).unwrap(), [1]);
        assert_eq!(search.clone().descend(0, &[1, 9, 9, 9, 9, 9], 2).unwrap(), [0, 2]);
        assert_eq!(search.clone().descend(1, &[0, 0, 9, 9, 9, 9], 1).unwrap(), [4]);
        assert_eq!(search.descend(0, &[0, 0, 0, 9, 9, 9], 1).unwrap(), [5]);
        assert_eq!(search.in_flight(), [1, 0, 1, 0, 0, 1]);
    }

    #[test]
    fn picks_in_flight_spread_and_room_runs_out() {
        let mut search = search();
        assert_eq!(search.clone().descend(0, &[0, 0, 0, 9, 9, 9], 4).unwrap(), PINNED);
        let first = search.descend(0, &[0, 0, 0, 9, 9, 9], 2).unwrap();
        let second = search.descend(0, &[0, 0, 0, 9, 9, 9], 2).unwrap();
        assert_eq!([first, second].concat(), PINNED);
        assert_eq!(search.descend(0, &[0, 0, 0, 1, 0, 1], 4).unwrap().len(), 2);
        assert!(search.descend(0, &[0; 6], 4).unwrap().is_empty());
        assert_eq!(search.descend(0, &[0, u32::MAX, u32::MAX, 0, 0, 0], 3).unwrap().len(), 3);
    }

    const PINNED: [u32; 4] = [5, 4, 3, 5];

    #[test]
    fn of_equal_children_the_one_that_an_earlier_rollout_passes_is_first() {
        for (leaves, expected) in [(vec![], [1, 2, 3]), (vec![3, 1, 2], [3, 1, 2]), (vec![2], [2, 1, 3])] {
            let forest = Forest::new(vec![0; 4], leaves).unwrap();
            let scoring = Scoring { formula: Formula::Ucb1, c: 1.0, offset: 0.0, loss: 0.0 };
            let mut search = Search::new(forest, vec![0; 4], vec![0.0; 4], vec![0; 4], scoring).unwrap();
            assert_eq!(search.descend(0, &[0, 1, 1, 1], 3).unwrap(), expected);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let text = search().descend(6, &[1; 6], 1).unwrap_err().to_string();
        assert_eq!(text, "the start of the search is 6 of 6 nodes; it must be one of them");
        let text = search().descend(0, &[u32::MAX; 6], 4097).unwrap_err().to_string();
        assert_eq!(text, "k is 4097; it must be 4096 or less");
        assert_eq!(search().descend(0, &[1; 6], usize::MAX).unwrap().len(), 6);
        let text = search().descend(0, &[1; 5], 1).unwrap_err().to_string();
        assert_eq!(text, "5 numbers of children to come where 6 are needed");
    }

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
        let text = Formula::from_word("greedy").unwrap_err().to_string();
        assert_eq!(text, "the formula is \"greedy\"; it must be \"uct\" or \"ucb1\"");
    }
}
