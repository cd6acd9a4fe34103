//! Numbers as JSON writes them.

/// Powers of ten that an `f64` holds exactly.
const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
    1e21, 1e22,
];

/// Powers of ten that a `u64` holds.
const TENS: [u64; 20] = {
    let mut powers = [1; 20];
    let mut place = 1;
    while place < powers.len() {
        powers[place] = 10 * powers[place - 1];
        place += 1;
    }
    powers
};

/// As many digits fit into a `u64` whatever they are.
const DIGITS: usize = 19;

/// A number, taken apart.
#[derive(Clone, Copy, Debug)]
pub struct Number<'a> {
    /// As it stands.
    pub text: &'a str,
    /// Its digits without point; `u64::MAX` where they are too many.
    digits: u64,
    /// Which power of ten the digits are times.
    exponent: i32,
    /// Whether it has neither point nor exponent.
    whole: bool,
}

impl<'a> Number<'a> {
    /// The number that starts at a byte of a text, if one does.
    #[inline]
    pub fn at(text: &'a str, start: usize) -> Option<Self> {
        let bytes = text.as_bytes();
        let mut at = start + usize::from(bytes.get(start) == Some(&b'-'));
        let mut digits = 0;
        let first = at;
        at = few(bytes, at, &mut digits);
        if at == first || (bytes[first] == b'0' && at > first + 1) {
            return None;
        }
        let mut count = at - first;
        let mut whole = true;
        let mut exponent = 0;
        if bytes.get(at) == Some(&b'.') {
            whole = false;
            let fraction = at + 1;
            at = many(bytes, fraction, &mut digits);
            count += at - fraction;
            exponent = -i32::try_from(at - fraction).unwrap_or(i32::MAX);
            if at == fraction {
                return None;
            }
        }
        if let Some(b'e' | b'E') = bytes.get(at) {
            whole = false;
            let sign = bytes.get(at + 1);
            let power = at + 1 + usize::from(matches!(sign, Some(b'+' | b'-')));
            let mut size = 0;
            at = few(bytes, power, &mut size);
            if at == power {
                return None;
            }
            let size = i32::try_from(size).ok().filter(|_| at - power <= DIGITS).unwrap_or(i32::MAX);
            exponent = exponent.saturating_add(if sign == Some(&b'-') { -size } else { size });
        }
        let digits = if count > DIGITS { u64::MAX } else { digits };
        Some(Self { text: &text[start..at], digits, exponent, whole })
    }

    /// The nearest `f64`; infinite where it is beyond all of them.
    pub fn value(&self) -> f64 {
        // Both are exact, and one operation on exact numbers rounds once (W. Clinger, "How to read floating point numbers
        // accurately", 1990).
        if let Some(power) = POWERS.get(self.exponent.unsigned_abs() as usize)
            && self.digits < 1 << f64::MANTISSA_DIGITS
        {
            #[expect(clippy::cast_precision_loss, reason = "it has at most 53 bits")]
            let digits = self.digits as f64;
            let size = if self.exponent < 0 { digits / power } else { digits * power };
            return if self.text.starts_with('-') { -size } else { size };
        }
        if self.digits < u64::MAX
            && let Some(power) = self.exponent.checked_neg().and_then(|power| usize::try_from(power).ok())
            && let Some(size) = quotient(self.digits, power)
        {
            return if self.text.starts_with('-') { -size } else { size };
        }
        // Every number of JSON is one of Rust.
        self.text.parse().unwrap_or(f64::NAN)
    }

    /// The number as an integer below `limit`; None if it is negative, larger or no integer. JSON has one kind of number:
    /// `12.0` and `1.2e1` are integers.
    pub fn below(&self, limit: u64) -> Option<u32> {
        if self.whole {
            let sound = self.digits < limit && (self.digits == 0 || !self.text.starts_with('-'));
            return u32::try_from(self.digits).ok().filter(|_| sound);
        }
        let value = self.value();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is an integer that fits")]
        let integer = (value.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&value)).then_some(value as u32);
        integer.filter(|&integer| u64::from(integer) < limit)
    }

    /// Whether it has neither point nor exponent.
    pub const fn is_whole(&self) -> bool {
        self.whole
    }
}

/// The value and the end of the number below 0 that starts at a byte, if it is one as most log-probabilities are written:
/// digits, a point and digits, together at most 19. Others are None: numbers of another form, and what is no number.
#[inline]
pub fn fraction(bytes: &[u8], start: usize) -> Option<(f64, usize)> {
    let [b'-', first, ..] = bytes.get(start..)? else { return None };
    let mut digits = 0;
    let point = few(bytes, start + 1, &mut digits);
    let end = many(bytes, point + 1, &mut digits);
    let (whole, power) = (point - start - 1, end - point - 1);
    let zeros = *first == b'0' && whole > 1;
    let sound = !zeros && whole > 0 && power > 0 && whole + power <= DIGITS && bytes[point] == b'.';
    if !sound || matches!(bytes.get(end), Some(b'e' | b'E')) {
        return None;
    }
    Some((-over(digits, power)?, end))
}

/// The `f64` nearest to digits over a power of ten below 10^20.
#[inline]
fn over(digits: u64, power: usize) -> Option<f64> {
    if digits >> f64::MANTISSA_DIGITS == 0 {
        #[expect(clippy::cast_precision_loss, reason = "it has at most 53 bits")]
        return Some(digits as f64 / POWERS.get(power)?);
    }
    quotient(digits, power)
}

/// The `f64` nearest to digits of 54 bits and more over a power of ten; None where the power is no `u64`, or the digits are
/// those of another number.
fn quotient(digits: u64, power: usize) -> Option<f64> {
    let divisor = *TENS.get(power)?;
    // Both with their highest bit set, so that the quotient has 63 bits or 64: ten more than are kept. The remainder sets the
    // lowest of them, which tells a number above the middle of two neighbours from the middle.
    let (up, down) = (digits.leading_zeros(), divisor.leading_zeros());
    let (dividend, divisor) = (u128::from(digits << up) << 63, u128::from(divisor << down));
    let whole = dividend / divisor;
    let whole = u64::try_from(whole).ok()? | u64::from(whole * divisor != dividend);
    let scale = 1023 + u64::from(down) - u64::from(up) - 63;
    #[expect(clippy::cast_precision_loss, reason = "it rounds to the nearest")]
    let rounded = whole as f64;
    Some(rounded * f64::from_bits(scale << (f64::MANTISSA_DIGITS - 1)))
}

/// Pass over digits, putting them behind those of a number; it is right as long as there are [`DIGITS`] at most.
#[inline]
fn few(bytes: &[u8], mut at: usize, number: &mut u64) -> usize {
    while let Some(digit) = bytes.get(at).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit < 10) {
        *number = number.wrapping_mul(10).wrapping_add(u64::from(digit));
        at += 1;
    }
    at
}

/// The same where there are many.
#[inline]
fn many(bytes: &[u8], mut at: usize, number: &mut u64) -> usize {
    // Eight signs at a time; those that are no digits have their highest bit set, the first of them surely.
    while let Some(&chunk) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let digits = u64::from_le_bytes(chunk) ^ (ONES * u64::from(b'0'));
        let others = (digits.wrapping_add(ONES * 0x76) | digits) & (ONES * 0x80);
        if others != 0 {
            let count = others.trailing_zeros() / 8;
            if count > 0 {
                let digits = eight(digits << (64 - 8 * count));
                *number = number.wrapping_mul(TENS[count as usize]).wrapping_add(digits);
            }
            return at + count as usize;
        }
        *number = number.wrapping_mul(100_000_000).wrapping_add(eight(digits));
        at += 8;
    }
    few(bytes, at, number)
}

const ONES: u64 = u64::MAX / 255;

/// The number of eight digits, the first in the lowest byte: pairs of them, then fours, then all.
const fn eight(digits: u64) -> u64 {
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    let (first, second) = (pairs & 0xff_0000_00ff, (pairs >> 16) & 0xff_0000_00ff);
    first.wrapping_mul((1_000_000 << 32) + 100).wrapping_add(second.wrapping_mul((10_000 << 32) + 1)) >> 32
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use proptest::prelude::*;

    use super::Number;

    proptest! {
        #[test]
        fn numbers_of_every_length_are_those_of_the_standard_library(
            whole in "0|[1-9][0-9]{0,20}",
            fraction in "([.][0-9]{1,22})?",
            power in "([eE][+-]?[0-9]{1,3})?",
            behind in "[ ,}].{0,9}|",
        ) {
            let text = format!("-{whole}{fraction}{power}");
            let written = format!("{text}{behind}");
            let number = Number::at(&written, 0).unwrap();
            prop_assert_eq!(number.text, &text);
            prop_assert_eq!(number.value().to_bits(), text.parse::<f64>().unwrap().to_bits());
        }

        #[test]
        fn fractions_of_a_middle_of_two_neighbours_are_rounded_as_those_of_the_standard_library(
            bits in 1u64 << 52..1 << 53,
            zeros in 0usize..4,
            near in -1i64..=1,
        ) {
            let middle = (2 * bits + 1) * 5u64.pow(3);
            let digits = middle.checked_add_signed(near).unwrap().to_string();
            let (whole, fraction) = digits.split_at(digits.len() - 3);
            let text = format!("{whole}.{fraction}{}", "0".repeat(zeros));
            prop_assert_eq!(Number::at(&text, 0).unwrap().value().to_bits(), text.parse::<f64>().unwrap().to_bits());
        }
    }

    #[test]
    fn values_are_those_of_the_standard_library() {
        for text in [
            "0",
            "-0",
            "-0.0",
            "1",
            "-12.345678",
            "0.1",
            "-0.12345678901234567",
            "1e22",
            "1e23",
            "-1E-22",
            "1e-23",
            "9007199254740991",
            "9007199254740993",
            "18446744073709551615",
            "18446744073709551616",
            "123456789012345678901234567890",
            "1e308",
            "1e309",
            "-1e999999999999",
            "1e-999999999999",
            "5e-324",
            "2.2250738585072011e-308",
            "0.000056455336743965741",
            "1.7976931348623157e308",
        ] {
            let number = Number::at(text, 0).unwrap();
            assert_eq!(number.text, text);
            assert_eq!(number.value().to_bits(), text.parse::<f64>().unwrap().to_bits(), "{text}");
        }
    }

    #[test]
    fn a_number_ends_where_it_ends() {
        assert_eq!(Number::at("[-1.5e3,", 1).map(|number| number.text), Some("-1.5e3"));
        for text in ["", "-", "01", "-00", "1.", ".5", "1e", "1e+", "+1", "a"] {
            assert!(Number::at(text, 0).is_none(), "{text}");
        }
    }

    #[test]
    fn integers_have_a_range() {
        let below = |text| Number::at(text, 0).unwrap().below(100);
        assert_eq!(["0", "-0", "99"].map(below), [Some(0), Some(0), Some(99)]);
        assert_eq!(["12.0", "1.2e1", "1200E-2", "-0.0", "99.000"].map(below), [12, 12, 12, 0, 99].map(Some));
        assert_eq!(["100", "-1", "123456789012345678901234567890"].map(below), [None; 3]);
        assert_eq!(["12.5", "-1.0", "100.0", "1e2", "1e999", "5e-324", "4294967296.0"].map(below), [None; 7]);
        assert_eq!(Number::at("4294967295.0", 0).unwrap().below(1 << 32), Some(u32::MAX));
    }
}
