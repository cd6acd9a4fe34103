//! The bytes of a delta's operations: variable-width numbers and what is built from them.
//!
//! A missing number or text is 0, a present one is its value or length plus one.

/// Why bytes cannot be read; the reader knows where.
pub(crate) type Reason = &'static str;

const ENDS: Reason = "it ends too early";

/// Append a number, seven bits a byte, least significant first.
pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(0x80 | value.to_le_bytes()[0]);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

/// Append a number that may be missing.
pub(crate) fn put_option(out: &mut Vec<u8>, value: Option<u32>) {
    put(out, value.map_or(0, |value| u64::from(value) + 1));
}

/// Append bytes after their length.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Append a text that may be missing.
pub(crate) fn put_text(out: &mut Vec<u8>, text: Option<&str>) {
    put(out, text.map_or(0, |text| text.len() as u64 + 1));
    out.extend_from_slice(text.unwrap_or_default().as_bytes());
}

/// Append numbers after their count.
pub(crate) fn put_words(out: &mut Vec<u8>, words: &[u32]) {
    put(out, words.len() as u64);
    for &word in words {
        put(out, word.into());
    }
}

/// Reads what the functions above wrote. Never panics and never reserves more than the input could fill.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Bytes not read yet.
    pub(crate) const fn left(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Reason> {
        let (&byte, rest) = self.rest.split_first().ok_or(ENDS)?;
        self.rest = rest;
        Ok(byte)
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Reason> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err("a flag is neither 0 nor 1"),
        }
    }

    pub(crate) fn number(&mut self) -> Result<u64, Reason> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err("a number is too large");
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("a number is too long")
    }

    pub(crate) fn word(&mut self) -> Result<u32, Reason> {
        u32::try_from(self.number()?).map_err(|_| "an id or figure does not fit 32 bits")
    }

    pub(crate) fn option(&mut self) -> Result<Option<u32>, Reason> {
        match self.number()?.checked_sub(1) {
            None => Ok(None),
            Some(value) => u32::try_from(value).map(Some).map_err(|_| "an id or figure does not fit 32 bits"),
        }
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8], Reason> {
        let len = usize::try_from(len).map_err(|_| ENDS)?;
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(ENDS)?;
        self.rest = rest;
        Ok(bytes)
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Reason> {
        let len = self.number()?;
        self.take(len)
    }

    pub(crate) fn text(&mut self) -> Result<Option<&'a str>, Reason> {
        let Some(len) = self.number()?.checked_sub(1) else { return Ok(None) };
        std::str::from_utf8(self.take(len)?).map(Some).map_err(|_| "a text is not UTF-8")
    }

    pub(crate) fn words(&mut self) -> Result<Vec<u32>, Reason> {
        let count = self.number()?;
        // A number takes a byte at least, so a count beyond what is left is a lie.
        if count > self.left() as u64 {
            return Err(ENDS);
        }
        (0..count).map(|_| self.word()).collect()
    }

    pub(crate) fn float(&mut self) -> Result<f64, Reason> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(ENDS)?;
        self.rest = rest;
        Ok(f64::from_le_bytes(*bytes))
    }
}
