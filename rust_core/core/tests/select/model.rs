//! Searches by their definitions, and what they are made of.

use proptest::prelude::*;
use trunkline_core::select::{Formula, Scoring, Search};
use trunkline_core::{Forest, Random};

/// Parents of a forest in which a node is a root where it drew itself.
pub fn parents(most: usize) -> impl Strategy<Value = Vec<u32>> {
    let draws = prop::collection::vec(any::<prop::sample::Index>(), 1..most);
    draws.prop_map(|draws| draws.iter().enumerate().map(|(node, draw)| draw.index(node + 1) as u32).collect())
}

/// From the root of a node to it.
pub fn path(parents: &[u32], node: u32) -> Vec<u32> {
    let parent = parents[node as usize];
    let mut path = if parent == node { vec![] } else { path(parents, parent) };
    path.push(node);
    path
}

/// Other numbers for all nodes, as if they had arrived in another order: a parent before its children, the first root first.
pub fn arrival(parents: &[u32], random: &mut Random) -> Vec<u32> {
    let mut numbers = vec![0; parents.len()];
    let mut waiting: Vec<usize> = (1..parents.len()).collect();
    for number in 1..parents.len() as u32 {
        let ready = |node: usize| !waiting.contains(&(parents[node] as usize)) || parents[node] as usize == node;
        let ready: Vec<usize> = waiting.iter().copied().filter(|&node| ready(node)).collect();
        let next = ready[random.index(ready.len())];
        numbers[next] = number;
        waiting.retain(|&node| node != next);
    }
    numbers
}

/// A column of nodes in the order of their other numbers.
pub fn moved<T: Copy>(numbers: &[u32], column: &[T]) -> Vec<T> {
    let mut order: Vec<usize> = (0..column.len()).collect();
    order.sort_by_key(|&node| numbers[node]);
    order.into_iter().map(|node| column[node]).collect()
}

#[derive(Clone, Debug)]
pub struct Known {
    pub parents: Vec<u32>,
    pub visits: Vec<u32>,
    pub values: Vec<f64>,
    pub in_flight: Vec<u32>,
    pub room: Vec<u32>,
}

pub fn known() -> impl Strategy<Value = Known> {
    parents(24).prop_flat_map(|parents| {
        let n = parents.len();
        // Often 0, so that there are ties between what was never visited.
        let column = |most: u32| prop::collection::vec(prop_oneof![Just(0), 0..most], n);
        let values = prop::collection::vec(prop_oneof![Just(0.0), Just(1.0), 0.0..1.0f64], n);
        (Just(parents), column(9), values, column(3), column(3))
            .prop_map(|(parents, visits, values, in_flight, room)| Known { parents, visits, values, in_flight, room })
    })
}

pub fn scorings() -> impl Strategy<Value = Scoring> {
    let formula = prop_oneof![Just(Formula::Uct), Just(Formula::Ucb1)];
    (formula, 0.0..2.0f64, 0.0..1.0f64, -1.0..0.5f64).prop_map(|(formula, c, offset, loss)| Scoring {
        formula,
        c,
        offset,
        loss,
    })
}

impl Known {
    pub fn search(&self, scoring: Scoring) -> Search {
        let forest = Forest::new(self.parents.clone(), vec![]).unwrap();
        Search::new(forest, self.visits.clone(), self.values.clone(), self.in_flight.clone(), scoring).unwrap()
    }

    pub fn count(&self, node: usize) -> f64 {
        f64::from(self.visits[node] + self.in_flight[node])
    }

    /// By definition: every visit in flight is one more visit that came back with the loss.
    pub fn score(&self, node: usize, scoring: Scoring) -> f64 {
        let parent = self.parents[node] as usize;
        if parent == node {
            return f64::INFINITY;
        }
        let mut returns = vec![self.values[node]; self.visits[node] as usize];
        returns.extend(vec![scoring.loss; self.in_flight[node] as usize]);
        let mean = if returns.is_empty() { 0.0 } else { returns.iter().sum::<f64>() / returns.len() as f64 };
        let (n, above) = (self.count(node), self.count(parent));
        match scoring.formula {
            Formula::Uct => {
                (mean + scoring.offset + 1e-8) / 2.0 + scoring.c * ((above + 1.0).ln() / (n + 1e-10)).sqrt()
            }
            Formula::Ucb1 if n == 0.0 => f64::INFINITY,
            Formula::Ucb1 => mean + scoring.c * (above.max(1.0).ln() / n).sqrt(),
        }
    }

    pub fn below(&self, node: usize) -> u32 {
        let children = (0..self.parents.len()).filter(|&child| child != node && self.parents[child] as usize == node);
        self.room[node] + children.map(|child| self.below(child)).sum::<u32>()
    }

    /// Whether a pick at `node` is what going down would give, within rounding; and count it.
    pub fn follows(&mut self, start: usize, pick: usize, scoring: Scoring) -> bool {
        let mut way = vec![pick];
        while *way.last().unwrap() != start {
            let node = *way.last().unwrap();
            if self.parents[node] as usize == node {
                return false;
            }
            way.push(self.parents[node] as usize);
        }
        way.reverse();
        let best = way.windows(2).all(|step| {
            let rivals = (0..self.parents.len()).filter(|&rival| {
                rival != step[0] && rival != step[1] && self.parents[rival] as usize == step[0] && self.below(rival) > 0
            });
            let chosen = self.score(step[1], scoring);
            let slack = if chosen.is_finite() { 1e-9 * (1.0 + chosen.abs()) } else { 0.0 };
            let worse = rivals.into_iter().all(|rival| {
                let score = self.score(rival, scoring);
                score <= chosen + slack && (score.is_finite() || rival > step[1])
            });
            worse && self.room[step[0]] == 0
        });
        let open = self.room[pick] > 0;
        self.room[pick] = self.room[pick].saturating_sub(1);
        for node in way {
            self.in_flight[node] += 1;
        }
        best && open
    }
}
