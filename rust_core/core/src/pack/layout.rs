//! The order in which a tree's nodes stand in a row, its parts where it does not fit, and which parts share a row.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::pack::Oversize;
use crate::pack::tokens::ForestTokens;

/// Where every node of a forest stands depth first: every tree in one piece, every node before what is below it, children
/// by number.
#[derive(Clone, Debug)]
pub(super) struct Places {
    /// Per node its place.
    at: Vec<u32>,
    /// Per node how many nodes its subtree has.
    sizes: Vec<u32>,
}

impl Places {
    pub(super) fn new(parents: &[u32]) -> Self {
        let mut sizes = vec![1u32; parents.len()];
        for (node, &parent) in parents.iter().enumerate().rev() {
            if node != parent as usize {
                sizes[parent as usize] += sizes[node];
            }
        }
        // Where the next child of a node goes, and the next root.
        let (mut at, mut next, mut root) = (vec![0; parents.len()], vec![0; parents.len()], 0);
        for (node, &parent) in parents.iter().enumerate() {
            let place = if node == parent as usize { &mut root } else { &mut next[parent as usize] };
            at[node] = *place;
            *place += sizes[node];
            next[node] = at[node] + 1;
        }
        Self { at, sizes }
    }

    /// Whether there is a node `above`, and the path to `node` goes through it or ends there.
    pub(super) fn is_above(&self, above: u32, node: u32) -> bool {
        let (above, node) = (above as usize, node as usize);
        self.at.get(above).is_some_and(|&from| (from..from + self.sizes[above]).contains(&self.at[node]))
    }

    /// The nodes in this order.
    pub(super) fn order(&self) -> Vec<u32> {
        let mut order = vec![0; self.at.len()];
        for (node, &place) in (0u32..).zip(&self.at) {
            order[place as usize] = node;
        }
        order
    }
}

/// A tree, or a part of one with the ancestors of its first node repeated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TreePart {
    /// Ancestors, root first, that another part has too.
    pub repeated: Vec<u32>,
    /// What of the preorder is in this part.
    pub nodes: Range<usize>,
    /// Tokens of all of them.
    pub tokens: usize,
}

/// The trees of an order of nodes with tokens, split where they exceed `max` tokens.
///
/// A part is a stretch of the order. Whatever is above one of its nodes is in the stretch, or above its first node; so
/// repeating the ancestors of the first node completes every path.
pub(super) fn parts(
    runs: &ForestTokens<'_>,
    roots: &[u32],
    order: &[u32],
    max: usize,
    oversize: Oversize,
) -> Result<Vec<TreePart>> {
    let mut parts: Vec<TreePart> = Vec::new();
    let mut tree = None;
    for (at, &node) in order.iter().enumerate() {
        let (root, len, end) = (roots[node as usize], runs.run(node).len(), runs.end(node) as usize);
        if end > max {
            let value = format!("the path to node {node} has {end} tokens where {max} fit in a row");
            return Err(Error::conflict(value, "shorter, because a path is never split"));
        }
        match parts.last_mut().filter(|part| tree == Some(root) && part.tokens + len <= max) {
            Some(part) => {
                part.nodes.end = at + 1;
                part.tokens += len;
            }
            None if tree == Some(root) && oversize == Oversize::Error => {
                let value = format!("the tree of root {root} has more than the {max} tokens that fit in a row");
                return Err(Error::conflict(value, "smaller, or split by option"));
            }
            None => {
                let mut repeated: Vec<u32> = runs.up(node).skip(1).collect();
                repeated.reverse();
                // Above the first node of a whole tree there is none with tokens.
                parts.push(TreePart { repeated, nodes: at..at + 1, tokens: end });
            }
        }
        tree = Some(root);
    }
    Ok(parts)
}

/// The items of each bin of `max`. Items go in from the largest to the smallest (equal ones by number), each into the
/// first bin that has room for it. At most 11/9 of the fewest possible bins, and 2/3 of a bin, are used (Dósa 2007).
///
/// No item is larger than `max`.
pub(super) fn first_fit_decreasing(sizes: &[usize], max: usize) -> Vec<Vec<usize>> {
    let mut items: Vec<usize> = (0..sizes.len()).collect();
    items.sort_by_key(|&item| std::cmp::Reverse(sizes[item]));
    let (mut room, mut bins) = (Room::new(items.len(), max), Vec::new());
    for item in items {
        let bin = room.take(sizes[item]);
        if bin == bins.len() {
            bins.push(Vec::new());
        }
        bins[bin].push(item);
    }
    bins
}

/// What is left in every bin, as a tournament: place 1 has the most of all, and places 2i and 2i + 1 are the halves of
/// place i. So the first bin with room is found in as many steps as the number of bins has digits.
struct Room {
    left: Vec<usize>,
    first: usize,
}

impl Room {
    /// As many empty bins as there are items.
    fn new(items: usize, max: usize) -> Self {
        let first = items.next_power_of_two();
        Self { left: vec![max; 2 * first], first }
    }

    /// Take room from the first bin that has it.
    fn take(&mut self, size: usize) -> usize {
        let mut place = 1;
        while place < self.first {
            place = 2 * place + usize::from(self.left[2 * place] < size);
        }
        let bin = place - self.first;
        self.left[place] -= size;
        while place > 1 {
            place /= 2;
            self.left[place] = self.left[2 * place].max(self.left[2 * place + 1]);
        }
        bin
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::first_fit_decreasing;

    #[test]
    fn the_largest_item_goes_first_and_each_into_the_first_bin_with_room() {
        assert_eq!(first_fit_decreasing(&[4, 8, 1, 4, 2, 1], 10), [vec![1, 4], vec![0, 3, 2, 5]]);
        assert_eq!(first_fit_decreasing(&[5, 5, 5], 10), [vec![0, 1], vec![2]]);
        assert_eq!(first_fit_decreasing(&[], 10), Vec::<Vec<usize>>::new());
        assert_eq!(first_fit_decreasing(&[0, 0], 0), [vec![0, 1]]);
    }

    proptest! {
        #[test]
        fn the_first_bin_with_room_is_the_one_that_a_search_from_the_left_finds(
            sizes in prop::collection::vec(0usize..20, 0..70),
            more in 0usize..30,
        ) {
            let max = sizes.iter().max().map_or(0, |most| most + more);
            let mut order: Vec<(usize, usize)> = sizes.iter().copied().enumerate().collect();
            order.sort_by_key(|&(item, size)| (max - size, item));
            let mut bins: Vec<Vec<usize>> = Vec::new();
            for (item, size) in order {
                let full = |bin: &Vec<usize>| bin.iter().map(|&item| sizes[item]).sum::<usize>() + size > max;
                let place = bins.iter().take_while(|bin| full(bin)).count();
                bins.resize(bins.len().max(place + 1), Vec::new());
                bins[place].push(item);
            }
            prop_assert_eq!(first_fit_decreasing(&sizes, max), bins);
        }
    }
}
