//! Numbers as JSON writes them.

/// Powers of ten that an `f64` holds exactly.
const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
    1e21, 1e22,
];

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
        at = run(bytes, at, &mut digits);
        if at == first || (bytes[first] == b'0' && at > first + 1) {
            return None;
        }
        let mut count = at - first;
        let mut whole = true;
        let mut exponent = 0;
        if bytes.get(at) == Some(&b'.') {
            whole = false;
            let fraction = at + 1;
            at = run(bytes, fraction, &mut digits);
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
            at = run(bytes, power, &mut size);
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

/// Pass over digits, putting them behind those of a number; it is right as long as there are [`DIGITS`] at most.
fn run(bytes: &[u8], mut at: usize, number: &mut u64) -> usize {
    while let Some(digit) = bytes.get(at).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit < 10) {
        *number = number.wrapping_mul(10).wrapping_add(u64::from(digit));
        at += 1;
    }
    at
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::Number;

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
