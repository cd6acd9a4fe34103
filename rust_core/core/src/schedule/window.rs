//! Things with consecutive numbers, of which the old ones go.

use std::collections::VecDeque;

/// Things numbered 0, 1, 2, ... in the order in which they come. It holds places from the oldest that is still there, so
/// that it does not grow with those that are gone.
#[derive(Clone, Debug)]
pub(super) struct Window<T> {
    // The number of the first place.
    start: u64,
    places: VecDeque<Option<T>>,
    len: usize,
}

impl<T> Window<T> {
    pub(super) const fn new() -> Self {
        Self { start: 0, places: VecDeque::new(), len: 0 }
    }

    /// Add a thing and return its number. 2^64 are never added.
    pub(super) fn push(&mut self, thing: T) -> u64 {
        self.places.push_back(Some(thing));
        self.len += 1;
        self.added() - 1
    }

    /// How many things were ever added.
    pub(super) fn added(&self) -> u64 {
        self.start + self.places.len() as u64
    }

    /// How many things are there.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    fn place(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.start)?).ok()
    }

    pub(super) fn get(&self, number: u64) -> Option<&T> {
        self.places.get(self.place(number)?)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let place = self.place(number)?;
        self.places.get_mut(place)?.as_mut()
    }

    /// Take a thing out, if it is there.
    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        let place = self.place(number)?;
        let thing = self.places.get_mut(place)?.take()?;
        self.len -= 1;
        while let Some(None) = self.places.front() {
            self.places.pop_front();
            self.start += 1;
        }
        Some(thing)
    }
}

#[cfg(test)]
mod tests {
    use super::Window;

    #[test]
    fn numbers_go_on_and_what_is_gone_takes_no_place() {
        let mut window = Window::new();
        assert_eq!((window.push('a'), window.push('b'), window.push('c'), window.len()), (0, 1, 2, 3));
        assert_eq!((window.remove(1), window.remove(1), window.places.len()), (Some('b'), None, 3));
        assert_eq!((window.remove(0), window.places.len(), window.get(2)), (Some('a'), 1, Some(&'c')));
        assert_eq!((window.remove(2), window.places.len(), window.len()), (Some('c'), 0, 0));
        assert_eq!((window.push('d'), window.added(), window.get_mut(3).copied()), (3, 4, Some('d')));
        assert!(window.remove(4).is_none() && window.get(0).is_none() && window.get(u64::MAX).is_none());
    }
}
