//! The tokens that two runs share from their start.

/// Tokens compared at a time: wide enough for vector instructions, short enough to find the place of a difference.
const BLOCK: usize = 16;

/// How many tokens at the start of both runs are equal.
pub(super) fn common(left: &[u32], right: &[u32]) -> usize {
    let len = left.len().min(right.len());
    let (left, right) = (&left[..len], &right[..len]);
    let (blocks, others) = (left.as_chunks::<BLOCK>().0, right.as_chunks::<BLOCK>().0);
    let start = BLOCK * blocks.iter().zip(others).take_while(|(left, right)| left == right).count();
    let rest = left[start..].iter().zip(&right[start..]);
    start + rest.take_while(|(left, right)| left == right).count()
}

#[cfg(test)]
mod tests {
    use super::common;

    #[test]
    fn runs_are_compared_up_to_their_first_difference() {
        let run: Vec<u32> = (0..100).collect();
        for len in 0..100 {
            assert_eq!(common(&run[..len], &run), len);
            assert_eq!(common(&run, &run[..len]), len);
            let mut other = run.clone();
            other[len] = u32::MAX;
            assert_eq!(common(&run, &other), len);
        }
        assert_eq!(common(&run, &run), 100);
    }
}
