//! Reading the requests that one connection of a server brings.

use httparse::Status;

use super::answer::HEAD_LIMIT;
use super::chunks::{ChunkReader, Piece};
use super::fault::Fault;
use super::framing::{Framing, Misframed};
use super::headers::Headers;
use super::section::{Outcome, Section, with_room};

/// Most bytes of empty lines before a request.
const BLANK: usize = 8;

/// A request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The method, as it was sent.
    pub method: String,
    /// The target, as it was sent: printable ASCII.
    pub target: String,
    /// The headers; trailers are passed over.
    pub headers: Headers,
    /// The body, compressed if Content-Encoding says so.
    pub body: Vec<u8>,
    /// Whether the connection may bring another request after it: one of HTTP/1.0 may not.
    pub stays: bool,
}

/// Why bytes are no request that is served: the status to answer with, and words without any of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The status, 400 or more.
    pub status: u16,
    /// What is wrong.
    pub text: &'static str,
}

/// What there is of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestState {
    /// No whole head.
    Headless,
    /// The head, but not all of the body.
    Headed,
    /// All of it.
    Whole,
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
    /// It has ended.
    Whole,
}

/// Reads one request after the other, in whatever pieces they come.
#[derive(Debug)]
pub struct RequestReader {
    largest: usize,
    request: Request,
    body: Body,
    /// The length that the head announces, unless the body comes in chunks.
    size: Option<usize>,
    expects: bool,
    /// Bytes of empty lines before the request.
    blank: usize,
    /// Bytes behind a whole request, from `start` on.
    rest: Vec<u8>,
    start: usize,
    refused: Option<Refused>,
}

impl RequestReader {
    /// A reader of requests with bodies of at most `largest` bytes.
    #[must_use]
    pub fn new(largest: usize) -> Self {
        Self {
            largest,
            request: Request::default(),
            body: Body::Unknown(Section::default()),
            size: Some(0),
            expects: false,
            blank: 0,
            rest: Vec::new(),
            start: 0,
            refused: None,
        }
    }

    /// Take bytes, and say what there is of a request; what comes behind a whole one is kept for the next.
    ///
    /// # Errors
    /// If they are no request, ambiguous, or too many; from then on always the same.
    pub fn feed(&mut self, data: &[u8]) -> Result<RequestState, Refused> {
        if let Some(refused) = self.refused {
            return Err(refused);
        }
        let read = if self.start < self.rest.len() {
            self.keep(data);
            let rest = std::mem::take(&mut self.rest);
            let read = self.read(&rest[self.start..]);
            self.rest = rest;
            read
        } else {
            self.rest.clear();
            self.start = 0;
            self.read(data).inspect(|&used| self.rest.extend_from_slice(&data[used..])).map(|_| 0)
        };
        match read {
            Ok(used) => self.start += used,
            Err(refused) => {
                *self = Self { refused: Some(refused), ..Self::new(self.largest) };
                return Err(refused);
            }
        }
        if self.start == self.rest.len() {
            (self.rest, self.start) = (Vec::new(), 0);
        }
        Ok(self.state())
    }

    /// Give the request, if it is whole, and begin the next.
    pub fn take(&mut self) -> Option<Request> {
        if !matches!(self.body, Body::Whole) {
            return None;
        }
        (self.body, self.size, self.expects, self.blank) = (Body::Unknown(Section::default()), Some(0), false, 0);
        Some(std::mem::take(&mut self.request))
    }

    /// Whether the sender of a head waits for an answer 100 (Continue), and has sent nothing of the body.
    #[must_use]
    pub const fn expects(&self) -> bool {
        self.expects && self.request.body.is_empty() && matches!(self.state(), RequestState::Headed)
    }

    /// The target, as soon as the head is whole; empty before.
    #[must_use]
    pub fn target(&self) -> &str {
        &self.request.target
    }

    /// The length of the body that the head announces; nothing if it comes in chunks.
    #[must_use]
    pub const fn size(&self) -> Option<usize> {
        self.size
    }

    /// Bytes of a request that is not whole, and those behind a whole one.
    #[must_use]
    pub const fn held(&self) -> usize {
        let begun = match &self.body {
            Body::Unknown(section) => section.len(),
            Body::Whole => 0,
            Body::Length(_) | Body::Chunks(_) => self.request.body.len(),
        };
        begun + self.rest.len() - self.start
    }

    const fn state(&self) -> RequestState {
        match &self.body {
            Body::Unknown(_) => RequestState::Headless,
            Body::Whole => RequestState::Whole,
            Body::Length(_) | Body::Chunks(_) => RequestState::Headed,
        }
    }

    /// Keep bytes behind those that wait; what was read before them is moved away when it is most of the memory.
    fn keep(&mut self, data: &[u8]) {
        if !data.is_empty() && self.start > self.rest.len() / 2 {
            self.rest.drain(..self.start);
            self.start = 0;
        }
        self.rest.extend_from_slice(data);
    }

    /// Read up to the end of the request: how many bytes belong to it.
    fn read(&mut self, bytes: &[u8]) -> Result<usize, Refused> {
        let mut data = bytes;
        while let Some(&first) = data.first() {
            data = match &mut self.body {
                Body::Unknown(section) if section.len() == 0 && first == b"\r\n"[self.blank % 2] => {
                    self.blank += 1;
                    if self.blank > BLANK {
                        return Err(Refused::head("too many empty lines before a request"));
                    }
                    &data[1..]
                }
                Body::Unknown(_) if self.blank % 2 == 1 => return Err(Refused::head(MALFORMED)),
                Body::Unknown(section) => {
                    let found = section.feed(data, HEAD_LIMIT, head)?;
                    let Some((length, head)) = found else { return Ok(bytes.len()) };
                    self.open(head)?;
                    &data[length..]
                }
                Body::Length(missing) => {
                    let (piece, rest) = data.split_at(data.len().min(*missing));
                    let body = &mut self.request.body;
                    // Memory follows what has come, and is never more than the body needs.
                    if body.capacity() - body.len() < piece.len() {
                        body.reserve_exact((*missing).min(piece.len().max(body.len())));
                    }
                    body.extend_from_slice(piece);
                    *missing -= piece.len();
                    if *missing == 0 {
                        self.body = Body::Whole;
                    }
                    rest
                }
                Body::Chunks(reader) => {
                    let room = self.largest - self.request.body.len();
                    match reader.next(data, HEAD_LIMIT, room).map_err(|fault| chunk(&fault))? {
                        Piece::Partial => return Ok(bytes.len()),
                        Piece::Data(piece, rest) => {
                            self.request.body.extend_from_slice(piece);
                            rest
                        }
                        Piece::End(rest) => {
                            self.body = Body::Whole;
                            rest
                        }
                    }
                }
                Body::Whole => break,
            };
        }
        Ok(bytes.len() - data.len())
    }

    /// Go on behind a head.
    fn open(&mut self, Head { modern, request }: Head) -> Result<(), Refused> {
        let framing = Framing::of(&request.headers, modern)?;
        if framing.chunked && !modern {
            return Err(Refused::head("HTTP/1.0 has no Transfer-Encoding"));
        }
        for (_, value) in request.headers.iter().filter(|(name, _)| name == b"expect") {
            if !value.trim_ascii().eq_ignore_ascii_case(b"100-continue") {
                return Err(Refused { status: 417, text: "Expect is known with 100-continue alone" });
            }
            self.expects = modern;
        }
        self.request = Request { stays: framing.stays && modern, ..request };
        (self.body, self.size) = if framing.chunked {
            (Body::Chunks(ChunkReader::new()), None)
        } else {
            let length = usize::try_from(framing.length.unwrap_or_default()).unwrap_or(usize::MAX);
            if length > self.largest {
                return Err(LARGE);
            }
            (if length == 0 { Body::Whole } else { Body::Length(length) }, Some(length))
        };
        Ok(())
    }
}

const MALFORMED: &str = "the head of the request is malformed";

const LARGE: Refused = Refused { status: 413, text: "the body is larger than allowed" };

impl Refused {
    const fn head(text: &'static str) -> Self {
        Self { status: 400, text }
    }
}

impl From<Fault> for Refused {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::HeadTooLarge => Self { status: 431, text: "the head of the request is too large" },
            _ => Self::head(MALFORMED),
        }
    }
}

impl From<Misframed> for Refused {
    fn from(misframed: Misframed) -> Self {
        match misframed {
            Misframed::BadLength => Self::head("Content-Length is no number"),
            Misframed::Twice => Self::head("Content-Length or Transfer-Encoding is there twice"),
            Misframed::Both => Self::head("Content-Length and Transfer-Encoding are both there"),
            Misframed::UnknownCoding => Self { status: 501, text: "Transfer-Encoding is known with chunked alone" },
        }
    }
}

/// What is wrong with a chunked body.
const fn chunk(fault: &Fault) -> Refused {
    match fault {
        Fault::TooLarge(_) => LARGE,
        Fault::HeadTooLarge => Refused { status: 431, text: "extensions of chunks or trailers are too large" },
        _ => Refused::head("the chunked body is malformed"),
    }
}

/// The head of a request, without its body.
struct Head {
    /// Whether it is HTTP/1.1, not 1.0.
    modern: bool,
    request: Request,
}

/// Read the head of a request.
fn head(data: &[u8]) -> Outcome<Head, Refused> {
    let found = with_room(data, |fields| {
        let mut asked = httparse::Request::new(fields);
        let Status::Complete(length) = asked.parse(data)? else { return Ok(None) };
        let mut headers = Headers::with_capacity(asked.headers.len(), length);
        for field in &*asked.headers {
            headers.push(field.name, field.value);
        }
        let (method, target) = (asked.method.unwrap_or_default().into(), asked.path.unwrap_or_default().into());
        let request = Request { method, target, headers, ..Request::default() };
        Ok(Some((length, Head { modern: asked.version == Some(1), request })))
    });
    match found {
        Ok(Some((_, Head { request, .. }))) if !request.target.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Err(Refused::head("the target holds bytes that are not printable ASCII"))
        }
        // Whether it is another version is said by the whole line.
        Err(httparse::Error::Version) => match data.iter().position(|byte| b"\r\n".contains(byte)) {
            Some(end) if is_versioned(&data[..end]) => {
                Err(Refused { status: 505, text: "the version is neither HTTP/1.1 nor HTTP/1.0" })
            }
            Some(_) => Err(Refused::head(MALFORMED)),
            None => Ok(None),
        },
        found => found.map_err(|_| Refused::head(MALFORMED)),
    }
}

/// Whether a line is the first of a request in any version of HTTP.
fn is_versioned(line: &[u8]) -> bool {
    let mut words = line.split(|&byte| byte == b' ').skip(2);
    let version = words.next().and_then(|word| word.strip_prefix(b"HTTP/"));
    let digits = version.is_some_and(
        |version| matches!(version, [major, b'.', minor] if major.is_ascii_digit() && minor.is_ascii_digit()),
    );
    digits && words.next().is_none()
}
