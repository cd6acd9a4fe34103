//! First-fit decreasing: many sizes into few bins.

/// The items of each bin of `max`. Items go in from the largest to the smallest (equal ones by number), each into the
/// first bin that has room for it. At most 11/9 of the fewest possible bins, and 2/3 of a bin, are used (Dósa 2007).
pub(super) fn first_fit_decreasing(sizes: &[usize], max: usize) -> Vec<Vec<usize>> {
    let mut items: Vec<usize> = (0..sizes.len()).collect();
    items.sort_by_key(|&item| std::cmp::Reverse(sizes[item]));
    let mut bins: Vec<(usize, Vec<usize>)> = Vec::new();
    for item in items {
        let size = sizes[item];
        match bins.iter_mut().find(|(left, _)| *left >= size) {
            Some((left, bin)) => {
                *left -= size;
                bin.push(item);
            }
            None => bins.push((max.saturating_sub(size), vec![item])),
        }
    }
    bins.into_iter().map(|(_, bin)| bin).collect()
}

#[cfg(test)]
mod tests {
    use super::first_fit_decreasing;

    #[test]
    fn the_largest_item_goes_first_and_each_into_the_first_bin_with_room() {
        assert_eq!(first_fit_decreasing(&[4, 8, 1, 4, 2, 1], 10), [vec![1, 4], vec![0, 3, 2, 5]]);
        assert_eq!(first_fit_decreasing(&[5, 5, 5], 10), [vec![0, 1], vec![2]]);
        assert_eq!(first_fit_decreasing(&[], 10), Vec::<Vec<usize>>::new());
    }
}
