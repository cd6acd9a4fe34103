//! Reading the answers that one connection brings.

use super::chunks::{ChunkReader, Piece};
use super::fault::Fault;
use super::framing::Framing;
use super::headers::Headers;
use super::section::{Head, Section, head};

/// Most bytes of a head, with all interim answers before it, and most that may come between two pieces of a body.
pub const HEAD_LIMIT: usize = 64 << 10;

/// Most bytes that are set aside for a body because it announces them; beyond, room grows with what came.
const AHEAD: usize = 1 << 20;

/// An answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status, 200 or more.
    pub status: u16,
    /// The headers; trailers are passed over.
    pub headers: Headers,
    /// The body, compressed if Content-Encoding says so.
    pub body: Vec<u8>,
}

/// How a body ends.
#[derive(Debug)]
enum Body {
    /// There is no head yet.
    Unknown(Section),
    /// After so many bytes more.
    Length(usize),
    /// With its last chunk.
    Chunks(ChunkReader),
    /// With the connection.
    Close,
    /// It has ended.
    Whole,
}

/// Reads one answer after the other, in whatever pieces they come.
#[derive(Debug)]
pub struct AnswerReader {
    largest: usize,
    answer: Answer,
    body: Body,
    /// Bytes of interim answers.
    dry: usize,
    begun: bool,
    stays: bool,
}

impl AnswerReader {
    /// A reader of bodies of at most `largest` bytes.
    #[must_use]
    pub fn new(largest: usize) -> Self {
        let body = Body::Unknown(Section::default());
        Self { largest, answer: Answer::default(), body, dry: 0, begun: false, stays: false }
    }

    /// Expect the next answer.
    pub fn start(&mut self) {
        *self = Self::new(self.largest);
    }

    /// Use memory that held another body, if there is no body yet.
    pub fn lend(&mut self, buffer: Vec<u8>) {
        if self.answer.body.capacity() == 0 {
            self.answer.body = buffer;
        }
    }

    /// Give the answer, or what there is of it.
    pub fn give(&mut self) -> Answer {
        std::mem::take(&mut self.answer)
    }

    /// Whether any byte of the answer is there.
    #[must_use]
    pub const fn begun(&self) -> bool {
        self.begun
    }

    /// Whether the head is there; interim answers (1xx) do not count.
    #[must_use]
    pub const fn headed(&self) -> bool {
        self.answer.status != 0
    }

    /// Whether another answer may follow on the connection, once this one is whole.
    #[must_use]
    pub const fn reusable(&self) -> bool {
        self.stays && matches!(self.body, Body::Whole)
    }

    /// Take bytes, and say whether the answer is whole.
    ///
    /// # Errors
    /// If they are no HTTP, ambiguous, or too many. What is fed after an error has no meaning.
    pub fn feed(&mut self, mut data: &[u8]) -> Result<bool, Fault> {
        self.begun |= !data.is_empty();
        while !data.is_empty() {
            data = match &mut self.body {
                Body::Unknown(section) => match section.feed(data, HEAD_LIMIT.saturating_sub(self.dry), head)? {
                    None => return Ok(false),
                    Some((length, head)) => {
                        self.open(length, head)?;
                        &data[length..]
                    }
                },
                Body::Length(missing) => {
                    let (piece, rest) = data.split_at(data.len().min(*missing));
                    *missing -= piece.len();
                    if *missing == 0 {
                        self.body = Body::Whole;
                    }
                    self.answer.body.extend_from_slice(piece);
                    rest
                }
                Body::Chunks(reader) => match reader.next(data, HEAD_LIMIT, self.largest - self.answer.body.len())? {
                    Piece::Partial => return Ok(false),
                    Piece::Data(piece, rest) => {
                        self.answer.body.extend_from_slice(piece);
                        rest
                    }
                    Piece::End(rest) => {
                        self.body = Body::Whole;
                        rest
                    }
                },
                Body::Close => {
                    if data.len() > self.largest - self.answer.body.len() {
                        return Err(Fault::TooLarge(None));
                    }
                    self.answer.body.extend_from_slice(data);
                    return Ok(false);
                }
                // What follows the answer was not asked for.
                Body::Whole => {
                    self.stays = false;
                    return Ok(true);
                }
            };
        }
        Ok(matches!(self.body, Body::Whole))
    }

    /// The other side sends nothing more; whether the answer is whole, as it is if its head leaves its length open.
    pub fn end(&mut self) -> bool {
        self.stays = false;
        if matches!(self.body, Body::Close) {
            self.body = Body::Whole;
        }
        matches!(self.body, Body::Whole)
    }

    /// Go on behind a head.
    fn open(&mut self, length: usize, head: Head) -> Result<(), Fault> {
        let framing = Framing::of(&head.headers, head.modern)?;
        if head.status < 200 {
            // Nothing is switched to another protocol, and an interim answer has no body.
            if head.status < 100 || head.status == 101 || framing.chunked || framing.length.unwrap_or_default() > 0 {
                return Err(Fault::NotHttp);
            }
            self.dry += length;
            return Ok(());
        }
        self.stays = framing.stays;
        self.answer.status = head.status;
        self.answer.headers = head.headers;
        self.body = if matches!(head.status, 204 | 304) {
            self.stays &= !framing.chunked && framing.length.unwrap_or_default() == 0;
            Body::Whole
        } else if framing.chunked {
            Body::Chunks(ChunkReader::new())
        } else if let Some(length) = framing.length {
            let fits = usize::try_from(length).ok().filter(|&length| length <= self.largest);
            let length = fits.ok_or(Fault::TooLarge(Some(length)))?;
            self.answer.body.reserve_exact(length.min(AHEAD));
            if length == 0 { Body::Whole } else { Body::Length(length) }
        } else {
            self.stays = false;
            Body::Close
        };
        Ok(())
    }
}
