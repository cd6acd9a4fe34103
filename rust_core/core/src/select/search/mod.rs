//! Tree search: what is known of every node, and where to expand next.

mod descend;
pub mod score;

use crate::error::{Result, length};
use crate::forest::Forest;
use score::{Logs, Scoring};

use super::option::{finite, need};
use super::order;

/// What a search knows of one node.
#[derive(Clone, Copy, Debug)]
struct Node {
    visits: u32,
    value: f64,
    in_flight: u32,
}

impl Node {
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
        let order = order::all(&forest);
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

    fn node(&self, node: u32) -> Node {
        let at = node as usize;
        Node { visits: self.visits[at], value: self.values[at], in_flight: self.in_flight[at] }
    }

    fn check_room(&self, room: &[u32]) -> Result<()> {
        length("numbers of children to come", self.visits.len(), room.len())
    }

    fn check_start(&self, start: u32) -> Result<()> {
        let count = self.visits.len();
        need((start as usize) < count, || format!("the start of the search is {start} of {count} nodes"), "one of them")
    }
}
