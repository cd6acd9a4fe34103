//! The bytes of a delta's operations: variable-width numbers and what is built from them.
//!
//! A missing number or text is 0, a present one is its value or length plus one. Tokens are columns of fixed width.

use crate::storage::tokens::{TokenBuffer, TokenSlice};

/// Why bytes cannot be read; the reader knows where.
pub(crate) type Reason = &'static str;

/// Bytes of a token: id, log-probability, weight version, flags.
pub(crate) const TOKEN: usize = 13;

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

/// Append columns of tokens, one after the other.
pub(crate) fn put_tokens(out: &mut Vec<u8>, tokens: &TokenSlice<'_>) {
    put_cells(out, tokens.ids, u32::to_le_bytes);
    put_cells(out, tokens.logprobs, f32::to_le_bytes);
    put_cells(out, tokens.versions, i32::to_le_bytes);
    out.extend_from_slice(tokens.flags);
}

fn put_cells<T: Copy, const N: usize>(out: &mut Vec<u8>, cells: &[T], bytes: impl Fn(T) -> [u8; N]) {
    let start = out.len();
    out.resize(start + N * cells.len(), 0);
    for (slot, &cell) in out[start..].as_chunks_mut().0.iter_mut().zip(cells) {
        *slot = bytes(cell);
    }
}

fn cells<T, const N: usize>(bytes: &[u8], cell: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks().0.iter().map(|&bytes| cell(bytes)).collect()
}

/// Reads what the functions above wrote. Never panics and never reserves more than the input could fill.
pub(crate) struct ByteReader<'a> {
    rest: &'a [u8],
}

impl<'a> ByteReader<'a> {
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
        self.chunk().map(f64::from_le_bytes)
    }

    pub(crate) fn single(&mut self) -> Result<f32, Reason> {
        self.chunk().map(f32::from_le_bytes)
    }

    fn chunk<const N: usize>(&mut self) -> Result<[u8; N], Reason> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(ENDS)?;
        self.rest = rest;
        Ok(*bytes)
    }

    pub(crate) fn tokens(&mut self) -> Result<TokenBuffer, Reason> {
        let count = self.number()?;
        // Nothing is reserved for tokens that are not there.
        if count > (self.left() / TOKEN) as u64 {
            return Err(ENDS);
        }
        Ok(TokenBuffer {
            ids: cells(self.take(4 * count)?, u32::from_le_bytes),
            logprobs: cells(self.take(4 * count)?, f32::from_le_bytes),
            versions: cells(self.take(4 * count)?, i32::from_le_bytes),
            flags: self.take(count)?.to_vec(),
        })
    }
}
