//! How a head says where its body ends, and whether the connection stays.

use super::fault::Fault;
use super::headers::Headers;

/// What a head says of the body and of the connection.
pub struct Framing {
    pub chunked: bool,
    pub length: Option<u64>,
    pub stays: bool,
}

/// Why a head is not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misframed {
    /// Content-Length is no number.
    BadLength,
    /// Content-Length or Transfer-Encoding is there twice.
    Twice,
    /// Content-Length and Transfer-Encoding are both there.
    Both,
    /// A transfer coding other than chunked.
    UnknownCoding,
}

impl Framing {
    /// Read it, and refuse what two readers could understand in two ways; `modern` is HTTP/1.1, not 1.0.
    pub fn of(headers: &Headers, modern: bool) -> Result<Self, Misframed> {
        let (mut chunked, mut length, mut close, mut keep) = (false, None, false, false);
        for (name, value) in headers.iter() {
            match name {
                b"content-length" => {
                    if length.is_some() {
                        return Err(Misframed::Twice);
                    }
                    length = Some(decimal(value.trim_ascii()).ok_or(Misframed::BadLength)?);
                }
                b"transfer-encoding" => {
                    if chunked {
                        return Err(Misframed::Twice);
                    }
                    if !value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                        return Err(Misframed::UnknownCoding);
                    }
                    chunked = true;
                }
                b"connection" => {
                    for option in value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
                        close |= option.eq_ignore_ascii_case(b"close");
                        keep |= option.eq_ignore_ascii_case(b"keep-alive");
                    }
                }
                _ => {}
            }
        }
        if chunked && length.is_some() {
            return Err(Misframed::Both);
        }
        // HTTP/1.0 has no chunks: who sends them all the same is read, and not asked again.
        let stays = !close && (modern || keep && !chunked);
        Ok(Self { chunked, length, stays })
    }
}

impl From<Misframed> for Fault {
    fn from(_: Misframed) -> Self {
        Self::NotHttp
    }
}

/// A number of decimal digits and nothing else.
fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}
