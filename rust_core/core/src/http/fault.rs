//! Why an exchange brought no answer.

/// Why an exchange brought no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The answer is not HTTP, or HTTP that readers could understand in two ways.
    NotHttp,
    /// More bytes of headers than [`super::HEAD_LIMIT`].
    HeadTooLarge,
    /// The body is larger than allowed; how large it says it is, if it says so.
    TooLarge(Option<u64>),
    /// The answer ended before it was whole.
    BrokeOff,
    /// The connection was closed before any byte of the answer.
    NoAnswer,
    /// The connection broke before any byte of the answer, for the reason that the transport gave.
    ConnectionBroke(String),
    /// The connection was not established in time, or the server did not accept it.
    ConnectLate,
    /// The time of the exchange is over.
    Late,
    /// Nothing came for too long in the middle of the answer.
    Silent,
    /// The table was closed.
    Closed,
}

impl Fault {
    /// Its name.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::NotHttp => "not_http",
            Self::HeadTooLarge => "head_too_large",
            Self::TooLarge(_) => "too_large",
            Self::BrokeOff => "broke_off",
            Self::NoAnswer => "no_answer",
            Self::ConnectionBroke(_) => "connection_broke",
            Self::ConnectLate => "connect_late",
            Self::Late => "late",
            Self::Silent => "silent",
            Self::Closed => "closed",
        }
    }
}
