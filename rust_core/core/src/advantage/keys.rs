//! Group keys made dense.

use std::borrow::Cow;

use hashbrown::HashTable;

use crate::id;
use crate::storage::hash;

/// The group of each row, as numbers below `count`. Some of the groups may be empty.
pub(super) struct Groups<'a> {
    pub(super) of: Cow<'a, [u32]>,
    pub(super) count: usize,
}

impl<'a> Groups<'a> {
    /// Rows are in one group if they agree in every column. Time and memory are linear in the rows, however large the
    /// keys.
    pub(super) fn new(columns: &[&'a [u32]], rows: usize) -> Self {
        match columns {
            [first, rest @ ..] => rest.iter().fold(Self::single(first), |groups, column| groups.split(column)),
            [] => Self { of: vec![0; rows].into(), count: 1 },
        }
    }

    /// Small keys are groups as they are.
    fn single(keys: &'a [u32]) -> Self {
        match width(keys) {
            count if count <= room(keys) => Self { of: Cow::Borrowed(keys), count },
            _ => Self { of: vec![0; keys.len()].into(), count: 1 }.number(keys),
        }
    }

    /// Only keys that are large need a table.
    fn split(self, keys: &[u32]) -> Self {
        let width = width(keys);
        match self.count.checked_mul(width) {
            Some(count) if count <= room(keys) => self.multiply(keys, id::count(width), count),
            _ if width <= room(keys) => self.stamp(keys, width),
            _ => self.number(keys),
        }
    }

    /// Where there is room for all combinations, they are numbers already.
    fn multiply(self, keys: &[u32], width: u32, count: usize) -> Self {
        let of = self.of.iter().zip(keys).map(|(&group, &key)| group * width + key).collect();
        Self { of, count }
    }

    /// Combinations are numbered group by group: a key remembers the last group it was met in, and the number it got.
    fn stamp(self, keys: &[u32], width: usize) -> Self {
        let mut met = vec![(id::NONE, 0); width];
        let mut count = 0;
        let mut of = vec![0; keys.len()];
        for row in self.order() {
            let (group, key) = (self.of[row as usize], keys[row as usize] as usize);
            if met[key].0 != group {
                met[key] = (group, count);
                count += 1;
            }
            of[row as usize] = met[key].1;
        }
        Self { of: of.into(), count: count as usize }
    }

    /// Rows in the order of their groups.
    fn order(&self) -> Vec<u32> {
        let rows = 0..id::count(self.of.len());
        if self.of.is_sorted() {
            return rows.collect();
        }
        let mut next = vec![0; self.count + 1];
        self.of.iter().for_each(|&group| next[group as usize + 1] += 1);
        for group in 0..self.count {
            next[group + 1] += next[group];
        }
        let mut order = vec![0; self.of.len()];
        for (row, &group) in rows.zip(&*self.of) {
            let place: &mut usize = &mut next[group as usize];
            order[*place] = row;
            *place += 1;
        }
        order
    }

    /// Combinations are numbered in order of appearance.
    fn number(self, keys: &[u32]) -> Self {
        let mut table: HashTable<(u32, u32, u32)> = HashTable::with_capacity(keys.len() / 4);
        let hash = |group, key| hash::mix([group, key, 0, 0, 0, 0]);
        let mut last = (0, 0, id::NONE);
        let number = |(&group, &key): (&u32, &u32)| {
            // Rows of one group mostly come together.
            if (last.0, last.1) != (group, key) || last.2 == id::NONE {
                let next = id::count(table.len());
                let entry = table.entry(hash(group, key), |at| (at.0, at.1) == (group, key), |at| hash(at.0, at.1));
                last = *entry.or_insert((group, key, next)).get();
            }
            last.2
        };
        let of = self.of.iter().zip(keys).map(number).collect();
        Self { of, count: table.len() }
    }
}

fn width(keys: &[u32]) -> usize {
    keys.iter().max().map_or(1, |&max| max as usize + 1)
}

/// How many groups there may be before something else is cheaper than room for all.
fn room(keys: &[u32]) -> usize {
    (2 * keys.len() + 64).min(id::NONE as usize)
}

#[cfg(test)]
mod tests {
    use super::Groups;

    #[test]
    fn small_keys_are_taken_as_they_are_and_large_ones_are_numbered() {
        let small = Groups::new(&[&[2, 0, 2]], 3);
        assert_eq!((&small.of[..], small.count), (&[2, 0, 2][..], 3));
        let large = Groups::new(&[&[u32::MAX, 7, u32::MAX]], 3);
        assert_eq!((&large.of[..], large.count), (&[0, 1, 0][..], 2));
    }

    #[test]
    fn rows_must_agree_in_every_column() {
        let both = Groups::new(&[&[1, 1, 0, 1], &[0, 1, 0, 0]], 4);
        assert_eq!(both.of[..], [2, 3, 0, 2]);
        let sparse = Groups::new(&[&[1, 1, 0, 1], &[9_999, 1, 9_999, 9_999]], 4);
        assert_eq!((&sparse.of[..], sparse.count), (&[0, 1, 2, 0][..], 3));
        assert_eq!(Groups::new(&[], 2).of[..], [0, 0]);
    }

    #[test]
    fn many_groups_may_have_the_same_large_key() {
        let group: Vec<u32> = (0..4000).map(|row| row % 1000).collect();
        let found = Groups::new(&[&group, &[u32::MAX; 4000]], 4000);
        assert_eq!((&found.of[..], found.count), (&group[..], 1000));
    }

    #[test]
    fn small_keys_with_too_many_combinations_are_numbered_group_by_group() {
        let (ascending, mixed) = ([0, 0, 40, 40, 40], [40, 0, 40, 0, 40]);
        let keys = [60, 60, 60, 1, 60];
        let found = Groups::new(&[&ascending, &keys], 5);
        assert_eq!((&found.of[..], found.count), (&[0, 0, 1, 2, 1][..], 3));
        let found = Groups::new(&[&mixed, &keys], 5);
        assert_eq!((&found.of[..], found.count), (&[2, 0, 2, 1, 2][..], 3));
    }
}
