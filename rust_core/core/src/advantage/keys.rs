//! Group keys made dense.

use hashbrown::HashTable;

use crate::hash;
use crate::id;

/// The group of each row, as numbers below `count`. Some of the groups may be empty.
pub(super) struct Groups {
    pub(super) of: Vec<u32>,
    pub(super) count: usize,
}

impl Groups {
    /// Rows are in one group if they agree in every column. Time and memory are linear in the rows, however large the keys.
    pub(super) fn new(columns: &[&[u32]], rows: usize) -> Self {
        let one = Self { of: vec![0; rows], count: 1 };
        columns.iter().fold(one, |groups, column| groups.split(column))
    }

    fn split(self, keys: &[u32]) -> Self {
        let width = keys.iter().max().map_or(1, |&max| max as usize + 1);
        let room = 4 * keys.len() + 64;
        match self.count.checked_mul(width).filter(|count| *count <= room).map(id::count) {
            Some(count) => self.multiply(keys, id::count(width), count),
            None => self.number(keys),
        }
    }

    /// Where all combinations have room they need no table.
    fn multiply(mut self, keys: &[u32], width: u32, count: u32) -> Self {
        for (group, &key) in self.of.iter_mut().zip(keys) {
            *group = *group * width + key;
        }
        Self { of: self.of, count: count as usize }
    }

    /// Sparse combinations are numbered in order of appearance.
    fn number(mut self, keys: &[u32]) -> Self {
        let mut table: HashTable<(u32, u32, u32)> = HashTable::with_capacity(keys.len() / 4);
        let hash = |group, key| hash::mix([group, key, 0, 0, 0, 0]);
        for (group, &key) in self.of.iter_mut().zip(keys) {
            let next = id::count(table.len());
            let entry = table.entry(hash(*group, key), |at| (at.0, at.1) == (*group, key), |at| hash(at.0, at.1));
            *group = entry.or_insert((*group, key, next)).get().2;
        }
        Self { of: self.of, count: table.len() }
    }
}

#[cfg(test)]
mod tests {
    use super::Groups;

    #[test]
    fn small_keys_are_taken_as_they_are_and_large_ones_are_numbered() {
        let small = Groups::new(&[&[2, 0, 2]], 3);
        assert_eq!((small.of, small.count), (vec![2, 0, 2], 3));
        let large = Groups::new(&[&[u32::MAX, 7, u32::MAX]], 3);
        assert_eq!((large.of, large.count), (vec![0, 1, 0], 2));
    }

    #[test]
    fn rows_must_agree_in_every_column() {
        let both = Groups::new(&[&[1, 1, 0, 1], &[0, 1, 0, 0]], 4);
        assert_eq!(both.of, [2, 3, 0, 2]);
        let sparse = Groups::new(&[&[1, 1, 0, 1], &[9_999, 1, 9_999, 9_999]], 4);
        assert_eq!((sparse.of, sparse.count), (vec![0, 1, 2, 0], 3));
        assert_eq!(Groups::new(&[], 2).of, [0, 0]);
    }
}
