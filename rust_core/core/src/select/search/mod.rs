//! Tree search: what is known of every node, and where to expand next.

mod descend;
pub mod frontier;
pub mod score;

use crate::error::Result;
use crate::forest::Forest;
use score::{Logs, Scoring};

use super::option::{finite, length, need};

/// What a search knows of one node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Node {
    /// Rollouts that passed through it and have been scored.
    pub visits: u32,
    /// Their mean reward; not read where there are none.
    pub value: f64,
    /// Rollouts on their way through it that have not been scored yet.
    pub in_flight: u32,
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
                (self.value * f64::from(visits) + loss * f64::from(in_flight))
                    / (f64::from(visits) + f64::from(in_flight))
            }
        }
    }
}

/// A search over a forest, with the picks that are still in flight.
#[derive(Clone, Debug)]
pub struct Search {
    forest: Forest,
    nodes: Vec<Node>,
    scoring: Scoring,
}

impl Search {
    /// A search that knows `visits`, mean `values` and picks `in_flight` of every node.
    ///
    /// A value is NaN, or whatever else, where there are no visits.
    ///
    /// # Errors
    /// [`crate::Error::Length`] if a column does not have one number a node, [`crate::Error::Value`] naming a visited
    /// node whose value is not finite, or an option of `scoring` that is.
    pub fn new(forest: Forest, visits: &[u32], values: &[f64], in_flight: &[u32], scoring: Scoring) -> Result<Self> {
        let need_len = forest.parents().len();
        length("visits", need_len, visits.len())?;
        length("values", need_len, values.len())?;
        length("picks in flight", need_len, in_flight.len())?;
        scoring.check()?;
        let nodes: Vec<Node> = visits
            .iter()
            .zip(values)
            .zip(in_flight)
            .map(|((&visits, &value), &in_flight)| Node { visits, value, in_flight })
            .collect();
        if let Some((node, bad)) = nodes.iter().enumerate().find(|(_, node)| node.visits > 0 && !node.value.is_finite())
        {
            finite(&format!("the value of node {node}"), bad.value)?;
        }
        Ok(Self { forest, nodes, scoring })
    }

    /// How each node rates against its siblings, roots highest of all: infinity.
    #[must_use]
    pub fn scores(&self) -> Vec<f64> {
        let logs = Logs::new(&self.scoring);
        let score = |(node, (known, &parent)): (usize, (&Node, &u32))| {
            let parent = parent as usize;
            if parent == node {
                return f64::INFINITY;
            }
            self.scoring.score(logs.of(&self.nodes[parent]), known)
        };
        self.nodes.iter().zip(self.forest.parents()).enumerate().map(score).collect()
    }

    /// What is known of every node, picks in flight included.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    fn check_room(&self, room: &[u32]) -> Result<()> {
        length("numbers of children to come", self.nodes.len(), room.len())
    }

    fn check_start(&self, start: u32) -> Result<()> {
        let count = self.nodes.len();
        need((start as usize) < count, || format!("the start of the search is {start} of {count} nodes"), "one of them")
    }
}
