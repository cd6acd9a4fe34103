//! Chunked bodies: sizes, extensions, data and trailers.

use super::fault::Fault;
use super::section::{Section, trailers};

/// Where a reader is in a chunked body.
#[derive(Debug)]
enum Place {
    /// In the size of a chunk; whether it has a digit, and the size so far.
    Size(bool, u64),
    /// In the extensions of a chunk of this size.
    Extension(u64, Quoting),
    /// Before the LF behind the size.
    SizeEnd(u64),
    /// In the data, with so much missing.
    Data(u64),
    /// Before the CR behind the data.
    DataCr,
    /// Before the LF behind the data.
    DataLf,
    /// Behind the last chunk.
    Trailers(Section),
}

/// Where in the extensions of a chunk.
#[derive(Clone, Copy, Debug)]
enum Quoting {
    None,
    Quoted,
    Escaped,
}

/// Reads a chunked body.
#[derive(Debug)]
pub struct ChunkReader {
    place: Place,
    /// Bytes since the last one of data.
    dry: usize,
}

/// What a piece of a chunked body was.
pub enum Piece<'d> {
    /// Data, and what is behind it.
    Data(&'d [u8], &'d [u8]),
    /// The end; what is behind it.
    End(&'d [u8]),
    /// The beginning of something.
    Partial,
}

impl ChunkReader {
    pub const fn new() -> Self {
        Self { place: Place::Size(false, 0), dry: 0 }
    }

    /// Read up to the next data, with at most `limit` bytes before it and at most `largest` bytes of it.
    pub fn next<'d>(&mut self, mut data: &'d [u8], limit: usize, largest: usize) -> Result<Piece<'d>, Fault> {
        loop {
            if let Place::Trailers(section) = &mut self.place {
                let found = section.feed(data, limit.saturating_sub(self.dry), trailers)?;
                return Ok(found.map_or(Piece::Partial, |(length, ())| Piece::End(&data[length..])));
            }
            if let Place::Data(missing) = self.place {
                if data.is_empty() {
                    return Ok(Piece::Partial);
                }
                let here = usize::try_from(missing).map_or(data.len(), |missing| missing.min(data.len()));
                let (piece, rest) = data.split_at(here);
                let missing = missing - here as u64;
                self.place = if missing == 0 { Place::DataCr } else { Place::Data(missing) };
                self.dry = 0;
                return Ok(Piece::Data(piece, rest));
            }
            let Some((&byte, rest)) = data.split_first() else { return Ok(Piece::Partial) };
            self.step(byte)?;
            data = rest;
            self.dry += 1;
            if self.dry > limit {
                return Err(Fault::HeadTooLarge);
            }
            if let Place::Data(missing) = self.place
                && missing > largest as u64
            {
                return Err(Fault::TooLarge(None));
            }
        }
    }

    /// Read a byte that is no data.
    fn step(&mut self, byte: u8) -> Result<(), Fault> {
        self.place = match (&self.place, byte) {
            (Place::Size(_, size), digit) if digit.is_ascii_hexdigit() => {
                let digit = (digit as char).to_digit(16).unwrap_or_default();
                let larger = size.checked_mul(16).and_then(|size| size.checked_add(digit.into()));
                Place::Size(true, larger.ok_or(Fault::NotHttp)?)
            }
            (&Place::Size(true, size), b';') => Place::Extension(size, Quoting::None),
            (&(Place::Size(true, size) | Place::Extension(size, Quoting::None)), b'\r') => Place::SizeEnd(size),
            (&Place::Extension(size, quoting), byte) => Place::Extension(size, quoting.step(byte)?),
            (Place::SizeEnd(0), b'\n') => Place::Trailers(Section::default()),
            (&Place::SizeEnd(size), b'\n') => Place::Data(size),
            (Place::DataCr, b'\r') => Place::DataLf,
            (Place::DataLf, b'\n') => Place::Size(false, 0),
            _ => return Err(Fault::NotHttp),
        };
        Ok(())
    }
}

impl Quoting {
    fn step(self, byte: u8) -> Result<Self, Fault> {
        let text = byte == b'\t' || byte >= b' ' && byte != 0x7f;
        match (self, byte) {
            (Self::None, b'"') | (Self::Escaped, _) if text => Ok(Self::Quoted),
            (Self::None, b'=' | b';') | (Self::Quoted, b'"') => Ok(Self::None),
            (Self::None, byte) if token(byte) => Ok(Self::None),
            (Self::Quoted, b'\\') => Ok(Self::Escaped),
            (Self::Quoted, _) if text => Ok(Self::Quoted),
            _ => Err(Fault::NotHttp),
        }
    }
}

/// Whether a byte may stand in a name (RFC 9110, 5.6.2).
const fn token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~')
}
