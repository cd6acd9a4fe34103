//! What goes into an exchange table and what comes out of it.

use super::answer::Answer;
use super::fault::Fault;

/// Microseconds on any clock that never goes back.
pub type Micros = u64;

/// What connections and requests may do.
#[derive(Clone, Copy, Debug)]
pub struct HttpLimits {
    /// Most connections to one origin.
    pub size: usize,
    /// Most bytes of a body.
    pub largest: usize,
    /// Time to establish a connection.
    pub connect: Micros,
    /// Time until a new connection whose request was not even acknowledged is given up.
    pub accepted: Micros,
    /// Time that a connection is kept without a request.
    pub keep: Micros,
    /// Time of silence in the middle of an answer, and the longest time between two looks at a connection.
    pub idle: Micros,
    /// Time that a new connection may bring nothing while kept ones have nothing to do, or are served before it.
    pub patience: Micros,
    /// Time for which a server is believed to hold a thread for each kept connection, and to have too few of them.
    pub crowded: Micros,
}

/// An answer that has come.
#[derive(Debug)]
pub struct Landed {
    /// The number its request was sent with.
    pub token: u64,
    /// What came.
    pub answer: Answer,
    /// From the sending of the request to the head of the answer.
    pub first: Micros,
    /// From [`super::ExchangeTable::send`] to the end of the answer.
    pub took: Micros,
}

/// A request that gets no answer.
#[derive(Debug)]
pub struct Failed {
    /// The number it was sent with.
    pub token: u64,
    /// Why.
    pub fault: Fault,
    /// The time since [`super::ExchangeTable::send`].
    pub took: Micros,
}

/// A request to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// On which connection.
    pub slot: u32,
    /// Which request.
    pub token: u64,
    /// Whether the connection has brought an answer before; if its socket can be read by now, the request is not written
    /// and [`super::ExchangeTable::unasked`] is told.
    pub used: bool,
}

/// What is to be done with sockets.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Actions {
    /// Connections to be made, each to its origin; ends with `opened` or `unopened`, also where it is to be closed before.
    pub opens: Vec<(u32, u32)>,
    /// Requests to be written.
    pub writes: Vec<Write>,
    /// Connections that are to tell how many bytes of their request are not acknowledged.
    pub checks: Vec<u32>,
    /// Connections to be closed at once; ends with `lost`, or `unopened`.
    pub closes: Vec<u32>,
}

impl Actions {
    /// Whether there is nothing to do.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.opens.is_empty() && self.writes.is_empty() && self.checks.is_empty() && self.closes.is_empty()
    }
}
