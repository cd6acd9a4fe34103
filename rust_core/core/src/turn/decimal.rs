//! Numbers as decimal text, for bodies that are full of them.

/// How many digits all numbers have together.
pub(crate) fn widths(values: &[u32]) -> usize {
    // Comparisons without a branch, which the compiler does several at a time; signed ones, which every machine can.
    let longer = |values: &[u32], power: u32| -> usize {
        let power = power.cast_signed();
        values.iter().map(|value| u32::from(value.cast_signed() >= power)).sum::<u32>() as usize
    };
    let block = |values: &[u32]| {
        let most = values.iter().copied().max().unwrap_or_default();
        if most.cast_signed() < 0 {
            let digits = |value: &u32| value.checked_ilog10().unwrap_or_default() as usize + 1;
            return values.iter().map(digits).sum();
        }
        let powers = (1..10).map(|power| 10u32.pow(power)).take_while(|&power| power <= most);
        values.len() + powers.map(|power| longer(values, power)).sum::<usize>()
    };
    values.chunks(1 << 12).map(block).sum()
}

/// Write a number at a place and return where it ends, if there is room for it.
pub(crate) fn write(out: &mut [u8], at: usize, value: u32) -> Option<usize> {
    if value < 100_000_000
        && let Some(room) = out.get_mut(at..at + 8)
    {
        let digits = digits(value);
        // Leading zeros are the low bytes; of 0 itself one stays. What is written beyond the number is written over later.
        let zeros = (digits.trailing_zeros() / 8).min(7);
        room.copy_from_slice(&((digits | ASCII) >> (8 * zeros)).to_le_bytes());
        return Some(at + 8 - zeros as usize);
    }
    let end = at + value.checked_ilog10().unwrap_or_default() as usize + 1;
    let mut rest = value;
    for slot in out.get_mut(at..end)?.iter_mut().rev() {
        *slot = b'0' + (rest % 10).to_le_bytes()[0];
        rest /= 10;
    }
    Some(end)
}

const ASCII: u64 = 0x3030_3030_3030_3030;

/// The eight digits of a number below 100,000,000, one a byte, the first in the lowest: each step divides all parts of
/// the number at once, by multiplying with a reciprocal that is exact for parts so small.
const fn digits(value: u32) -> u64 {
    let value = value as u64;
    let fours = (value / 10_000) | ((value % 10_000) << 32);
    let hundreds = ((fours * 10_486) >> 20) & 0x7f_0000_007f;
    let pairs = hundreds | ((fours - 100 * hundreds) << 16);
    let tens = ((pairs * 103) >> 10) & 0x000f_000f_000f_000f;
    tens | ((pairs - 10 * tens) << 8)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use proptest::prelude::*;

    use super::{widths, write};

    fn text(value: u32) -> String {
        // With much room after it, and with none.
        let (mut long, mut short) = ([b'x'; 24], vec![b'x'; widths(&[value]) + 1]);
        let (end, close) = (write(&mut long, 3, value).unwrap(), write(&mut short, 1, value).unwrap());
        assert_eq!(write(&mut short, 2, value), None);
        assert_eq!((long[3..end].to_vec(), end - 3), (short[1..].to_vec(), close - 1));
        assert_eq!((&long[..3], short[0]), (&b"xxx"[..], b'x'));
        String::from_utf8_lossy(&short[1..]).into_owned()
    }

    #[test]
    fn numbers_of_every_width_are_written() {
        for power in 0..10 {
            let value = 10u32.pow(power);
            for value in [value - 1, value, value + 1, value.saturating_mul(9), u32::MAX] {
                assert_eq!(text(value), value.to_string());
            }
        }
    }

    proptest! {
        #[test]
        fn numbers_are_those_of_the_standard_library(values in prop::collection::vec(any::<u32>(), 0..50)) {
            let expected: Vec<String> = values.iter().map(u32::to_string).collect();
            prop_assert_eq!(values.iter().map(|&value| text(value)).collect::<Vec<_>>(), expected.clone());
            prop_assert_eq!(widths(&values), expected.concat().len());
        }
    }
}
