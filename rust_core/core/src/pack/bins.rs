//! First-fit decreasing: many sizes into few bins.

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
