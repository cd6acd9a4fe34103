//! Requests that the driver of a turn engine answers itself: it is given their bodies and brings the bytes of the replies.

use super::{Flight, FlightKey, FlightView, NotLanded, Place, SharedTree, TurnEngine, TurnsLanded, unknown};
use crate::error::Result;
use crate::http::Micros;

/// A request that the driver is to answer, or to let go of.
#[derive(Debug)]
pub struct Handed {
    /// The request.
    pub flight: FlightKey,
    /// What it is for.
    pub view: FlightView,
    /// What names its tree to servers.
    pub key: u32,
    /// Its body.
    pub body: Vec<u8>,
}

impl<T: SharedTree, W> TurnEngine<T, W> {
    /// Hand all requests that wait for a model to the driver.
    ///
    /// # Errors
    /// If there is no such model, or a tree is not to be used any more.
    pub fn hand(&mut self, model: u32) -> Result<Vec<Handed>> {
        let mut handed = Vec::new();
        while let Some(flight) = self.next(model)? {
            let view = self.view(flight)?;
            let mut body = Vec::new();
            self.body(flight, &mut body)?;
            handed.push(Handed { flight, view, key: self.entry(view.tree)?.key, body });
        }
        Ok(handed)
    }

    /// What waits for the draws of a request, in order.
    ///
    /// # Errors
    /// If there is no such request.
    pub fn waiters(&self, flight: FlightKey) -> Result<Vec<&W>> {
        Ok(self.flight(flight)?.asks.iter().map(|&key| &self.asks[key].waiter).collect())
    }

    /// Make the first draws of a request that was handed out one of its own.
    ///
    /// # Errors
    /// If there is no such request, it was not handed out, or it has not more draws.
    pub fn split(&mut self, flight: FlightKey, draws: usize) -> Result<FlightKey> {
        let Flight { asks, asked, place, .. } =
            self.flights.get_mut(flight).ok_or_else(|| unknown("request", flight))?;
        if *place != Place::Taken || draws == 0 || draws >= asks.len() {
            return Err(unknown("request", flight));
        }
        let (place, asked) = (*place, *asked);
        let rest = asks.split_off(draws);
        let asks = std::mem::replace(asks, rest);
        let first = self.flights.vacant_key();
        for &key in &asks {
            self.asks[key].flight = Some(first);
        }
        self.flights.insert(Flight { asks, asked, place, sharing: Vec::new(), print: None });
        Ok(first)
    }

    /// Make turns of the bytes that answer a request which was handed out; they were asked of a server at `sent`.
    ///
    /// # Errors
    /// If they are of no use. The request is still there, for [`TurnEngine::release`].
    pub fn answer(
        &mut self,
        flight: FlightKey,
        body: &[u8],
        sent: Micros,
        now: Micros,
    ) -> std::result::Result<Vec<TurnsLanded<W>>, NotLanded> {
        self.turned(flight, body, 0, sent, now)
    }
}
