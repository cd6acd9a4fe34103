//! Spaces: what must never share. Each has a name, a root of its own and its own count of tokens, which says what
//! sharing saves.

use hashbrown::HashTable;

use crate::error::{Error, Result};
use crate::id::{self, PrefixId, SpaceId};
use crate::storage::hash::{fingerprint, half};

/// One space.
#[derive(Clone, Debug)]
pub(super) struct Space {
    pub(super) name: Box<str>,
    pub(super) root: PrefixId,
    pub(super) reuse: Reuse,
}

/// All spaces of an index.
#[derive(Clone, Debug, Default)]
pub(super) struct Spaces {
    list: Vec<Space>,
    index: HashTable<u32>,
}

impl Spaces {
    /// The space of this name, if there is one.
    pub(super) fn find(&self, name: &str) -> Option<SpaceId> {
        let same = |&id: &u32| &*self.list[id as usize].name == name;
        self.index.find(hash(name), same).copied().map(SpaceId::new)
    }

    /// Make a space that [`Spaces::find`] does not know.
    pub(super) fn insert(&mut self, name: &str, root: PrefixId) -> Result<SpaceId> {
        let id = id::next(self.list.len(), "space")?;
        self.list.push(Space { name: name.into(), root, reuse: Reuse::default() });
        let list = &self.list;
        self.index.insert_unique(hash(name), id, |&other| hash(&list[other as usize].name));
        Ok(SpaceId::new(id))
    }

    /// A space by its id.
    pub(super) fn get(&self, id: SpaceId) -> Result<&Space> {
        let unknown = || Error::Unknown { what: "space", id: id.get(), count: id::count(self.list.len()) };
        self.list.get(id.index()).ok_or_else(unknown)
    }

    /// The count of a space that exists.
    pub(super) fn reuse_mut(&mut self, id: SpaceId) -> &mut Reuse {
        &mut self.list[id.index()].reuse
    }

    /// Every space, in the order they were made.
    pub(super) fn iter(&self) -> impl Iterator<Item = (SpaceId, &Space)> {
        (0..).map(SpaceId::new).zip(&self.list)
    }

    /// How many there are.
    pub(super) const fn len(&self) -> usize {
        self.list.len()
    }

    /// Bytes that memory is held for.
    pub(super) fn memory(&self) -> usize {
        let names: usize = self.list.iter().map(|space| space.name.len()).sum();
        names + self.list.capacity() * size_of::<Space>() + self.index.allocation_size()
    }

    /// Forget every space and keep the memory of all but names.
    pub(super) fn reset(&mut self) {
        self.list.clear();
        self.index.clear();
    }
}

fn hash(name: &str) -> u64 {
    half(fingerprint(name.as_bytes()))
}

/// Tokens of all paths, shared ones counted for every path and counted once. `flat >= unique >= longest` always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reuse {
    /// Paths counted: inserted or forked.
    pub paths: u64,
    /// Tokens of every path, as if each were stored for itself.
    pub flat: u64,
    /// Tokens stored.
    pub unique: u64,
    /// Of `flat`, what was sampled.
    pub flat_generated: u64,
    /// Of `unique`, what was sampled.
    pub unique_generated: u64,
    /// Tokens of the longest path.
    pub longest: u64,
}

impl Reuse {
    /// The share of `flat` that did not have to be stored, `1 - unique / flat`; 0 where nothing is.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        1.0 - 1.0 / self.ideal()
    }

    /// How many times over the stored tokens are used, `flat / unique`: the most that work proportional to tokens can gain
    /// by sharing; 1 where nothing is stored.
    #[must_use]
    pub fn ideal(&self) -> f64 {
        quotient(self.flat, self.unique)
    }

    /// The same of sampled tokens only, which is what decoding costs.
    #[must_use]
    pub fn ideal_generated(&self) -> f64 {
        quotient(self.flat_generated, self.unique_generated)
    }

    /// The counts of two spaces as one.
    pub(super) fn plus(self, other: &Self) -> Self {
        Self {
            paths: self.paths + other.paths,
            flat: self.flat + other.flat,
            unique: self.unique + other.unique,
            flat_generated: self.flat_generated + other.flat_generated,
            unique_generated: self.unique_generated + other.unique_generated,
            longest: self.longest.max(other.longest),
        }
    }

    /// Count tokens that were stored.
    pub(super) const fn store(&mut self, run: RunTokens) {
        self.unique += run.tokens;
        self.unique_generated += run.generated;
    }

    /// Count tokens that a path passes, and how deep it is now.
    pub(super) fn pass(&mut self, run: RunTokens, depth: u64) {
        self.flat += run.tokens;
        self.flat_generated += run.generated;
        self.longest = self.longest.max(depth);
    }
}

#[expect(clippy::cast_precision_loss, reason = "a ratio")]
fn quotient(flat: u64, unique: u64) -> f64 {
    if unique == 0 { 1.0 } else { flat as f64 / unique as f64 }
}

/// Tokens of a run, and how many of them were sampled.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RunTokens {
    pub(super) tokens: u64,
    pub(super) generated: u64,
}

impl RunTokens {
    /// Both together.
    pub(super) const fn plus(self, other: Self) -> Self {
        Self { tokens: self.tokens + other.tokens, generated: self.generated + other.generated }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::Spaces;
    use crate::id::PrefixId;

    #[test]
    fn every_space_is_found_under_its_own_name() {
        let mut spaces = Spaces::default();
        let names: Vec<String> = (0..3000).map(|number| format!("task {number}")).collect();
        for name in &names {
            assert_eq!(spaces.find(name), None);
            let space = spaces.insert(name, PrefixId::new(7)).unwrap();
            assert_eq!(spaces.find(name), Some(space));
        }
        for (name, (space, found)) in names.iter().zip(spaces.iter()) {
            assert_eq!((spaces.find(name), &*found.name), (Some(space), name.as_str()));
        }
    }
}
