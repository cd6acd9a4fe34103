//! One walk over JSON text: every value is read or skipped where it stands, and no tree of values is made.

use super::number::Number;
use super::string::plain;
use super::{ReplyResult, fail};

/// Objects and lists may lie this deep in one another.
const DEPTH: u32 = 256;

/// A place in a JSON text.
pub struct Scanner<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
    depth: u32,
    pub(super) strict: bool,
}

impl<'a> Scanner<'a> {
    /// Start at the beginning of a text; a byte order mark is passed over.
    pub fn new(data: &'a [u8]) -> ReplyResult<Self> {
        let text = match std::str::from_utf8(data) {
            Ok(text) => text,
            Err(error) => return fail(error.valid_up_to(), "the bytes are not UTF-8"),
        };
        let at = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
        Ok(Self { text, at, depth: 0, strict: false })
    }

    /// Start at the beginning of a part of what another one walks over.
    pub const fn part(text: &'a str) -> Self {
        Self { text, at: 0, depth: 0, strict: false }
    }

    /// Start at the beginning of a text in which half a surrogate pair is an error instead of U+FFFD.
    pub const fn strict(text: &'a str) -> Self {
        Self { text, at: 0, depth: 0, strict: true }
    }

    /// The byte at the start of the next value or sign, after white space; 0 at the end.
    pub fn peek(&mut self) -> u8 {
        let bytes = self.text.as_bytes();
        while let Some(&byte) = bytes.get(self.at) {
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return byte;
            }
            self.at += 1;
        }
        0
    }

    /// Where the next value starts.
    pub fn offset(&mut self) -> usize {
        self.peek();
        self.at
    }

    /// The error that something else was needed here.
    pub fn wrong<T>(&mut self, want: &str) -> ReplyResult<T> {
        let found = match self.peek() {
            0 if self.at >= self.text.len() => return fail(self.at, format!("it ends where {want} is needed")),
            b'"' => "a string".to_owned(),
            b'{' => "an object".to_owned(),
            b'[' => "a list".to_owned(),
            b'-' | b'0'..=b'9' => "a number".to_owned(),
            _ => match self.text[self.at..].split(|c: char| !c.is_ascii_alphabetic()).next() {
                Some(word) if matches!(word, "true" | "false" | "null" | "NaN" | "Infinity") => word.to_owned(),
                _ => format!("{:?}", self.text[self.at..].chars().next().unwrap_or_default()),
            },
        };
        fail(self.at, format!("{want} is needed, not {found}"))
    }

    /// Whether nothing but white space follows.
    pub fn is_done(&mut self) -> bool {
        self.offset() >= self.text.len()
    }

    /// Nothing but white space may follow.
    pub fn end(&mut self) -> ReplyResult<()> {
        if self.is_done() { Ok(()) } else { self.wrong("the end") }
    }

    /// Read an object. `member` is called at the value of every member whose name is among `names` (at most 32) and must
    /// read it; all others are skipped.
    ///
    /// A member that is read must not be there twice: no reading of it would be more right than another.
    pub fn object(
        &mut self,
        names: &[&'static str],
        mut member: impl FnMut(&mut Self, &'static str) -> ReplyResult<()>,
    ) -> ReplyResult<()> {
        let mut seen = 0u32;
        let mut more = self.enter(b'{', b'}', "an object")?;
        while more {
            let start = self.offset();
            let known = self.key(names)?;
            if let Some(place) = known {
                let name = names[place];
                if seen & (1 << place) != 0 {
                    return fail(start, format!("the member {name:?} is there twice"));
                }
                seen |= 1 << place;
                member(self, name).map_err(|mut error| {
                    error.nest(name);
                    error
                })?;
            } else {
                self.skip()?;
            }
            more = self.another(b'}', "a comma or the end of the object")?;
        }
        Ok(())
    }

    /// Read an object whose names do not matter: `value` is called at every value and must read it.
    pub fn values(&mut self, mut value: impl FnMut(&mut Self) -> ReplyResult<()>) -> ReplyResult<()> {
        let mut more = self.enter(b'{', b'}', "an object")?;
        while more {
            self.key(&[])?;
            value(self)?;
            more = self.another(b'}', "a comma or the end of the object")?;
        }
        Ok(())
    }

    /// Pass over the name of a member and its colon, and return its place among `names`.
    fn key(&mut self, names: &[&'static str]) -> ReplyResult<Option<usize>> {
        if self.peek() != b'"' {
            return self.wrong("a string");
        }
        let bytes = self.text.as_bytes();
        let start = self.at + 1;
        let end = plain(bytes, start);
        let place = if bytes.get(end) == Some(&b'"') {
            self.at = end + 1;
            names.iter().position(|name| name.as_bytes() == &bytes[start..end])
        } else {
            let decoded = self.string()?;
            names.iter().position(|name| *name == decoded)
        };
        if self.peek() != b':' {
            return self.wrong("a colon");
        }
        self.at += 1;
        Ok(place)
    }

    /// Read a list: `item` is called at every element and must read it.
    pub fn list(&mut self, mut item: impl FnMut(&mut Self) -> ReplyResult<()>) -> ReplyResult<()> {
        let mut count = 0usize;
        let mut more = self.enter(b'[', b']', "a list")?;
        while more {
            item(self).map_err(|mut error| {
                error.nest(&format!("[{count}]"));
                error
            })?;
            count += 1;
            more = self.another(b']', "a comma or the end of the list")?;
        }
        Ok(())
    }

    fn enter(&mut self, open: u8, close: u8, want: &str) -> ReplyResult<bool> {
        if self.peek() != open {
            return self.wrong(want);
        }
        if self.depth == DEPTH {
            return fail(self.at, format!("more than {DEPTH} objects and lists lie in one another"));
        }
        self.at += 1;
        if self.peek() == close {
            self.at += 1;
            return Ok(false);
        }
        self.depth += 1;
        Ok(true)
    }

    fn another(&mut self, close: u8, want: &str) -> ReplyResult<bool> {
        match self.peek() {
            b',' => {
                self.at += 1;
                Ok(true)
            }
            byte if byte == close => {
                self.at += 1;
                self.depth -= 1;
                Ok(false)
            }
            _ => self.wrong(want),
        }
    }

    /// Read a value, or None for `null`.
    pub fn optional<T>(&mut self, read: impl FnOnce(&mut Self) -> ReplyResult<T>) -> ReplyResult<Option<T>> {
        if self.peek() == b'n' {
            return self.word("null").map(|()| None);
        }
        read(self).map(Some)
    }

    /// Read a literal.
    pub fn word(&mut self, word: &str) -> ReplyResult<()> {
        if !self.text[self.offset()..].starts_with(word) {
            return self.wrong("a value");
        }
        self.at += word.len();
        Ok(())
    }

    /// Read a number.
    #[inline]
    pub fn number(&mut self) -> ReplyResult<Number<'a>> {
        if !matches!(self.peek(), b'-' | b'0'..=b'9') {
            return self.wrong("a number");
        }
        let Some(number) = Number::at(self.text, self.at) else {
            return fail(self.at, "this is no number that JSON knows");
        };
        self.at += number.text.len();
        Ok(number)
    }

    /// Whether this text stands here.
    pub fn sees(&mut self, text: &str) -> bool {
        self.text[self.offset()..].starts_with(text)
    }

    /// Pass over one value, checking that it is one.
    pub fn skip(&mut self) -> ReplyResult<()> {
        match self.peek() {
            b'"' => self.walk(None),
            b'{' => self.object(&[], |_, _| Ok(())),
            b'[' => match integers(self.text.as_bytes(), self.at) {
                Some(end) => {
                    self.at = end;
                    Ok(())
                }
                // A place inside of what has no name here would mislead.
                None => self.list(Self::skip).map_err(|mut error| {
                    error.place.clear();
                    error
                }),
            },
            b'-' | b'0'..=b'9' => self.number().map(|_| ()),
            b't' => self.word("true"),
            b'f' => self.word("false"),
            b'n' => self.word("null"),
            _ => self.wrong("a value"),
        }
    }

    /// Pass over one value and return its text as it stands.
    pub fn raw(&mut self) -> ReplyResult<&'a str> {
        let start = self.offset();
        self.skip()?;
        Ok(&self.text[start..self.at])
    }
}

/// Where the list that starts at `at` ends, if it is one of plain integers above 0, as the bytes of tokens are: much of a
/// reply with log-probabilities; walking over it value by value costs a fifth of the time.
#[inline]
pub(super) fn integers(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at += 1;
        while bytes.get(at) == Some(&b' ') {
            at += 1;
        }
        if !matches!(bytes.get(at), Some(b'1'..=b'9')) {
            return None;
        }
        while bytes.get(at).is_some_and(u8::is_ascii_digit) {
            at += 1;
        }
        match bytes.get(at) {
            Some(b',') => (),
            Some(b']') => return Some(at + 1),
            _ => return None,
        }
    }
}

/// Whether a text is one JSON object that holds no half surrogate pair.
pub fn is_object(text: &str) -> bool {
    let mut scan = Scanner::strict(text);
    scan.object(&[], |_, _| Ok(())).and_then(|()| scan.end()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::{DEPTH, is_object};

    #[test]
    fn only_objects_are_objects() {
        for text in ["{}", " {\"a\": [1, -2.5e+3, true, false, null, {\"b\": \"\\u00e9\"}]}\n", "{\"a\":1,\"a\":2}"] {
            assert!(is_object(text), "{text}");
        }
        let faults = "[] 1 {} {\"a\":01} {\"a\":1.} {\"a\":-} {\"a\":.5} {\"a\":1e} {\"a\":+1} {\"a\":[1,]} {\"a\":[1,02]} {\"a\":[1;2]} {\"a\":[1 {\"a\":1,} {\"a\"} \
             {\"a\":NaN} {\"a\":tru} {\"a\":[1} {\"\\ud800\":1} {\"a\":\"\\ud800\"} {,} {a:1}";
        for text in faults.split(' ').filter(|text| *text != "{}") {
            assert!(!is_object(text), "{text}");
        }
        assert!(!is_object("{} x"));
    }

    #[test]
    fn nesting_has_a_limit() {
        let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert!(is_object(&nested(DEPTH as usize - 1)));
        assert!(!is_object(&nested(DEPTH as usize)));
        assert!(!is_object(&"[".repeat(1 << 20)));
    }
}
