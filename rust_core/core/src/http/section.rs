//! Header sections that may come in pieces: of an answer, of a request, and behind a chunked body.

use httparse::Status;

use super::fault::Fault;
use super::headers::Headers;

/// Headers for which there is room without an allocation.
const USUAL: usize = 64;

/// The bytes of a section that is not whole yet.
#[derive(Debug, Default)]
pub struct Section {
    held: Vec<u8>,
    /// How many of them were there when it was last read.
    tried: usize,
}

/// What reading a section gives: how long it is and what it says, or nothing while it is not whole.
pub type Outcome<T, E = Fault> = Result<Option<(usize, T)>, E>;

impl Section {
    /// How many bytes it holds.
    pub const fn len(&self) -> usize {
        self.held.len()
    }

    /// Take bytes of it, `room` of them at most, and read it once it is whole: how many of `data` belong to it, and what it says.
    ///
    /// It is read when it ends, and whenever it has doubled since: what cannot become a section is refused soon, and the
    /// work is in proportion to its length however it is cut.
    pub fn feed<T, E: From<Fault>>(
        &mut self,
        data: &[u8],
        room: usize,
        read: impl Fn(&[u8]) -> Outcome<T, E>,
    ) -> Outcome<T, E> {
        let before = self.held.len();
        let taken = &data[..data.len().min(room.saturating_sub(before))];
        let found = if before == 0 {
            read(taken)?
        } else {
            self.held.extend_from_slice(taken);
            let ended =
                self.held[before.saturating_sub(2)..].windows(3).any(|end| end == b"\n\r\n" || end[1..] == *b"\n\n");
            // What is too long is read as far as there is room, as it is where it comes at once.
            let full = taken.len() < data.len();
            if ended || full || self.held.len() >= 2 * self.tried { read(&self.held)? } else { None }
        };
        if let Some((length, said)) = found {
            *self = Self::default();
            return length.checked_sub(before).map(|length| Some((length, said))).ok_or(Fault::NotHttp.into());
        }
        if taken.len() < data.len() {
            return Err(Fault::HeadTooLarge.into());
        }
        if before == 0 {
            self.held.extend_from_slice(taken);
            self.tried = taken.len();
        } else if self.held.len() >= 2 * self.tried {
            self.tried = self.held.len();
        }
        Ok(None)
    }
}

/// The head of an answer.
pub struct Head {
    pub status: u16,
    /// Whether it is HTTP/1.1, not 1.0.
    pub modern: bool,
    pub headers: Headers,
}

/// Read the head of an answer.
pub fn head(data: &[u8]) -> Outcome<Head> {
    // A line end before the status line is left from something else.
    if data.first().is_some_and(|&byte| byte != b'H') {
        return Err(Fault::NotHttp);
    }
    let found = with_room(data, |fields| {
        let mut response = httparse::Response::new(fields);
        let Status::Complete(length) = response.parse(data)? else { return Ok(None) };
        let mut headers = Headers::with_capacity(response.headers.len(), length);
        for field in &*response.headers {
            headers.push(field.name, field.value);
        }
        let status = response.code.unwrap_or_default();
        Ok(Some((length, Head { status, modern: response.version == Some(1), headers })))
    });
    found.map_err(|_| Fault::NotHttp)
}

/// Read trailers, which are checked and passed over.
pub fn trailers(data: &[u8]) -> Outcome<()> {
    let found = with_room(data, |fields| {
        Ok(match httparse::parse_headers(data, fields)? {
            Status::Complete((length, _)) => Some((length, ())),
            Status::Partial => None,
        })
    });
    found.map_err(|_| Fault::NotHttp)
}

/// Read a section with as many headers as its length has room for.
pub fn with_room<'d, T>(
    data: &'d [u8],
    read: impl Fn(&mut [httparse::Header<'d>]) -> Outcome<T, httparse::Error>,
) -> Outcome<T, httparse::Error> {
    let found = match read(&mut [httparse::EMPTY_HEADER; USUAL]) {
        Err(httparse::Error::TooManyHeaders) => read(&mut vec![httparse::EMPTY_HEADER; data.len() / 4 + 1]),
        found => found,
    }?;
    // Lines end in CRLF: a reader that takes LF alone and one that does not see different headers.
    let section = found.as_ref().map_or(data, |(length, _)| &data[..*length]);
    let bare = |(place, &byte): (usize, &u8)| byte == b'\n' && (place == 0 || section[place - 1] != b'\r');
    if section.iter().enumerate().any(bare) {
        return Err(httparse::Error::NewLine);
    }
    Ok(found)
}
