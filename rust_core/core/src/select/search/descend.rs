//! From a root down to what should be expanded next.

use crate::error::Result;
use crate::select::option::few;

use super::Search;

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
    /// parallel picks spread and a further call goes on from there. Fewer come back where there is no room for more.
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

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use crate::forest::Forest;
    use crate::select::{Formula, Scoring, Search};

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
}
