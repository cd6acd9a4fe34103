//! Group keys made dense.

use std::borrow::Cow;

use hashbrown::HashTable;

use crate::hash;
use crate::id;

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

    fn split(self, keys: &[u32]) -> Self {
        let width = width(keys);
        match self.count.checked_mul(width).filter(|count| *count <= room(keys)) {
            Some(count) => self.multiply(keys, id::count(width), count),
            None => self.number(keys),
        }
    }

    /// Where all combinations have room they need no table.
    fn multiply(self, keys: &[u32], width: u32, count: usize) -> Self {
        let of = self.of.iter().zip(keys).map(|(&group, &key)| group * width + key).collect();
        Self { of, count }
    }

    /// Sparse combinations are numbered in order of appearance.
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

/// How many groups there may be before a table is cheaper.
fn room(keys: &[u32]) -> usize {
    (4 * keys.len() + 64).min(u32::MAX as usize)
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
}
