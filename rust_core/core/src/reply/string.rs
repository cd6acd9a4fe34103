//! Strings as JSON writes them.

use std::borrow::Cow;

use super::scanner::Scanner;
use super::{ReplyResult, fail};

/// What takes the place of half a surrogate pair, which UTF-8 cannot hold.
const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

impl<'a> Scanner<'a> {
    /// Read a string, decoded.
    pub fn string(&mut self) -> ReplyResult<Cow<'a, str>> {
        if self.peek() != b'"' {
            return self.wrong("a string");
        }
        let start = self.at + 1;
        let end = plain(self.text.as_bytes(), start);
        if self.text.as_bytes().get(end) == Some(&b'"') {
            self.at = end + 1;
            return Ok(Cow::Borrowed(&self.text[start..end]));
        }
        let mut decoded = String::new();
        self.walk(Some(&mut decoded))?;
        Ok(Cow::Owned(decoded))
    }

    /// Walk over a string, and append what it says to `decoded`.
    pub(super) fn walk(&mut self, mut decoded: Option<&mut String>) -> ReplyResult<()> {
        let bytes = self.text.as_bytes();
        let open = self.at;
        self.at += 1;
        loop {
            let end = plain(bytes, self.at);
            if let Some(decoded) = &mut decoded {
                decoded.push_str(&self.text[self.at..end]);
            }
            self.at = end;
            match bytes.get(end) {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => {
                    let escaped = self.escape()?;
                    if let Some(decoded) = &mut decoded {
                        decoded.push(escaped);
                    }
                }
                Some(control) => return fail(end, format!("a string holds the bare control character {control:#04x}")),
                None => return fail(open, "a string that starts here has no end"),
            }
        }
    }

    fn escape(&mut self) -> ReplyResult<char> {
        let start = self.at;
        self.at += 2;
        Ok(match self.text.as_bytes().get(start + 1) {
            Some(b'n') => '\n',
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b't') => '\t',
            Some(b'r') => '\r',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'u') => {
                let unit = self.hex(start)?;
                return self.scalar(start, unit);
            }
            _ => return fail(start, "a string holds an escape that JSON does not know"),
        })
    }

    /// The four hex digits after the `\u` at `start`.
    fn hex(&mut self, start: usize) -> ReplyResult<u32> {
        let digits = self.text.as_bytes().get(start + 2..start + 6).unwrap_or_default();
        let unit = digits.iter().try_fold(0, |unit, &digit| Some(unit << 4 | char::from(digit).to_digit(16)?));
        let Some(unit) = unit.filter(|_| digits.len() == 4) else {
            return fail(start, "an escape needs four hex digits after \\u");
        };
        self.at = start + 6;
        Ok(unit)
    }

    /// The character of a UTF-16 unit and, where it is the first half of a pair, of the escape after it.
    fn scalar(&mut self, start: usize, unit: u32) -> ReplyResult<char> {
        if let Some(scalar) = char::from_u32(unit) {
            return Ok(scalar);
        }
        let next = self.at;
        if unit < 0xdc00 && self.text[next..].starts_with("\\u") {
            let low = self.hex(next)?;
            if (0xdc00..0xe000).contains(&low) {
                return Ok(char::from_u32(0x1_0000 + ((unit - 0xd800) << 10) + (low - 0xdc00)).unwrap_or(REPLACEMENT));
            }
            // It is a character of its own, or the first half of another pair.
            self.at = next;
        }
        if self.strict { fail(start, "half a surrogate pair") } else { Ok(REPLACEMENT) }
    }
}

/// Where the string whose first character is at `at` ends, if it is a string whose escapes are known.
#[inline]
pub fn closed(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at = plain(bytes, at);
        match bytes.get(at..)? {
            [b'"', ..] => return Some(at),
            [b'\\', b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', ..] => at += 2,
            [b'\\', b'u', digits @ ..] if digits.len() > 4 && digits[..4].iter().all(u8::is_ascii_hexdigit) => at += 6,
            _ => return None,
        }
    }
}

/// Where the run of plain characters that starts at `at` ends: at a quote, a backslash, a control character or the end.
pub fn plain(bytes: &[u8], mut at: usize) -> usize {
    const ONES: u64 = u64::MAX / 255;
    const HIGHS: u64 = ONES << 7;
    // Eight bytes at a time; the lowest bit found is right, those above it may be carried over from it.
    let below = |word: u64, limit: u64| word.wrapping_sub(ONES * limit) & !word;
    while let Some(&chunk) = bytes[at.min(bytes.len())..].first_chunk::<8>() {
        let word = u64::from_le_bytes(chunk);
        let quote = word ^ (ONES * u64::from(b'"'));
        let slash = word ^ (ONES * u64::from(b'\\'));
        let found = (below(word, 0x20) | below(quote, 1) | below(slash, 1)) & HIGHS;
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let special = |byte: &u8| *byte < 0x20 || matches!(byte, b'"' | b'\\');
    bytes[at.min(bytes.len())..].iter().position(special).map_or(bytes.len(), |rest| at + rest)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::{Scanner, plain};

    fn string(json: &str) -> Result<String, usize> {
        Scanner::new(json.as_bytes()).and_then(|mut scan| scan.string()).map(Into::into).map_err(|error| error.offset)
    }

    #[test]
    fn strings_are_decoded() {
        let json = r#""a\"\\\/\b\f\n\r\t\u00e9\u20ac\ud83d\ude00 é€😀""#;
        assert_eq!(string(json).unwrap(), "a\"\\/\u{8}\u{c}\n\r\té€😀 é€😀");
        assert_eq!(string(r#""""#).unwrap(), "");
    }

    #[test]
    fn halves_of_pairs_become_one_replacement_each() {
        assert_eq!(string(r#""\ud800""#).unwrap(), "\u{fffd}");
        assert_eq!(string(r#""\ud800\ud800\udc00\udc00""#).unwrap(), "\u{fffd}\u{10000}\u{fffd}");
        assert_eq!(string(r#""\udc00\udc00\udfff\ud800""#).unwrap(), "\u{fffd}\u{fffd}\u{fffd}\u{fffd}");
        assert_eq!(string(r#""\ud800\u0041\ud83dx""#).unwrap(), "\u{fffd}A\u{fffd}x");
        assert!(Scanner::strict(r#""\ud800""#).string().is_err());
    }

    #[test]
    fn broken_strings_say_where() {
        assert_eq!(string(r#"  "abc"#), Err(2));
        assert_eq!(string(r#""abc\q""#), Err(4));
        assert_eq!(string(r#""ab\u12g4""#), Err(3));
        assert_eq!(string(r#""ab\u12"#), Err(3));
        assert_eq!(string("\"ab\u{1}\""), Err(3));
        assert_eq!(string("\"\\"), Err(1));
        assert_eq!(Scanner::new(b"\"ab\xff\"").err().map(|error| error.offset), Some(3));
    }

    #[test]
    fn runs_end_at_the_first_special_byte() {
        for special in ['"', '\\', '\n', '\0', '\u{1f}'] {
            for before in 0..20 {
                let text = format!(
                    "{}{special}é\u{7f}\u{80}",
                    "é~\u{20}\u{80}x".repeat(4).chars().take(before).collect::<String>()
                );
                assert_eq!(plain(text.as_bytes(), 0), text.find(special).unwrap());
            }
        }
        assert_eq!(plain(b"abc", 0), 3);
        assert_eq!(plain(b"abc", 9), 3);
    }
}
