//! The connections to one origin: which are idle, which requests wait for one, and which make way for others.

use std::collections::VecDeque;

use super::traffic::Micros;

/// The connections to one host and port. A slot is held from before a connection is made until it is closed.
#[derive(Debug, Default)]
pub struct Pool {
    /// Whether a connection that is made has been accepted by the server, as the handshake of TLS shows.
    pub encrypted: bool,
    /// Connections that are there, being made or being closed.
    pub held: usize,
    /// Those without a request, the one that was used last at the end.
    pub idle: Vec<u32>,
    /// Requests for which there is no connection, in order.
    pub waiting: VecDeque<u64>,
    /// Connections whose first request has no answer, and none that was sent after it on another new one has.
    pub unserved: Vec<u32>,
    /// Until when connections are not kept while others are unserved.
    pub crowded: Micros,
    /// Whether idle connections are looked at in a while.
    pub looking: bool,
}

impl Pool {
    /// Forget a connection that takes no request any more.
    pub fn forget(&mut self, slot: u32) {
        self.idle.retain(|&idle| idle != slot);
        self.unserved.retain(|&unserved| unserved != slot);
    }

    /// Note that a connection was served. Where a new connection is answered before another one that was used earlier, the
    /// server does take new ones and is slow: those are not unserved.
    pub fn served(&mut self, slot: u32) -> bool {
        let place = self.unserved.iter().position(|&unserved| unserved == slot);
        if let Some(place) = place {
            self.unserved.drain(..=place);
        }
        place.is_some()
    }
}
