//! Requests whose draws are equal, as their sampling is greedy: one is sent, and its reply is for all.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::{Ask, AskKey, Flight, FlightKey, FlightView, Landed, NotLanded, Place, SharedTree, State, TurnEngine};
use crate::error::Result;
use crate::http::Micros;

/// What is quick to compare of a request: its length, and a hash of bytes of its middle, as all requests of an agent begin
/// and end alike.
pub(super) type Print = (usize, u64);

/// Bytes of a request that are hashed.
const SAMPLE: usize = 256;

/// A wish without a request.
#[derive(Debug)]
pub struct Unsent<W> {
    /// What it is for.
    pub view: FlightView,
    /// Who waits for it.
    pub waiter: W,
    /// When it was asked for.
    pub asked: Micros,
}

impl<T: SharedTree, W> TurnEngine<T, W> {
    /// What the request for a wish is looked up by; None where equal requests are sent all the same.
    pub(super) fn print(&self, key: AskKey) -> Option<Print> {
        let state = self.asks[key].state;
        self.plan(state.agent).ok().filter(|plan| plan.greedy)?;
        let body = self.common(state).ok()?;
        let mut hasher = DefaultHasher::new();
        let middle = body.len() / 2;
        body[middle..body.len().min(middle + SAMPLE)].hash(&mut hasher);
        Some((body.len(), hasher.finish()))
    }

    /// The body of a request for a wish, up to what depends on the draw.
    fn common(&self, State { tree, agent, source, .. }: State) -> Result<Vec<u8>> {
        let plan = self.plan(agent)?;
        let mut body = Vec::new();
        self.entry(tree)?.tree.with(|tree| tree.body_onto(source, &plan.head, &plan.constant, &mut body))?;
        Ok(body)
    }

    /// Let a wish share a request that is equal and not over; whether there is one.
    pub(super) fn share(&mut self, key: AskKey, print: Print, now: Micros) -> bool {
        let equal = self.equal.get(&print).into_iter().flatten().copied();
        let Some(flight) = equal.into_iter().find(|&flight| self.is_equal(key, flight).unwrap_or(false)) else {
            return false;
        };
        self.asks[key].flight = Some(flight);
        self.flights[flight].sharing.push((key, now));
        true
    }

    fn is_equal(&self, key: AskKey, flight: FlightKey) -> Result<bool> {
        let (one, other) = (self.asks[key].state, self.asks[self.flight(flight)?.asks[0]].state);
        let (plan, known) = (self.plan(one.agent)?, self.plan(other.agent)?);
        // The namespace names the version of the weights as well.
        let alike = plan.model == known.model && plan.namespace == known.namespace;
        Ok(alike && self.common(one)? == self.common(other)?)
    }

    /// Take a wish that is given up out of a request that goes on for others: its tree may be gone when the reply comes.
    pub(super) fn withdraw(&mut self, key: AskKey, flight: FlightKey) {
        let Flight { asks, sharing, place, .. } = &mut self.flights[flight];
        let found = sharing.iter().position(|&(other, _)| other == key);
        let (next, _) = sharing.remove(found.unwrap_or(0));
        if found.is_some() {
            return;
        }
        asks[0] = next;
        if matches!(place, Place::Sent(..) | Place::Taken) {
            // A request that is on its way may be written yet, with the seed that it was measured with.
            self.asks[next].state.seed = self.asks[key].state.seed;
        }
    }

    /// Forget a request.
    pub(super) fn remove(&mut self, flight: FlightKey) -> Flight {
        let found = self.flights.remove(flight);
        if let Some(print) = found.print
            && let Some(equal) = self.equal.get_mut(&print)
        {
            equal.retain(|&other| other != flight);
            if equal.is_empty() {
                self.equal.remove(&print);
            }
        }
        found
    }

    /// Put the reply to an equal request on the tree for a wish that shared it; nothing was sent for it. A wish that cannot
    /// read it is taken by [`TurnEngine::take_unsent`].
    pub(super) fn land_shared(&mut self, key: AskKey, asked: Micros, body: &[u8], ended: Micros) -> Option<Landed<W>> {
        let appended: std::result::Result<_, NotLanded> = self.append(&[key], body, 0, ended.saturating_sub(asked));
        let Ok((reply, appended)) = appended else {
            self.leave(key, asked);
            return None;
        };
        Some(self.landed(reply, vec![key], appended))
    }

    /// Take a wish out of a request that brings it no turn; until it is taken, it can be given up.
    pub(super) fn leave(&mut self, key: AskKey, asked: Micros) {
        self.asks[key].flight = None;
        self.unsent.push((key, asked));
    }

    /// Take the wishes that shared a request which brought no turns.
    pub fn take_unsent(&mut self) -> Vec<Unsent<W>> {
        let unsent = std::mem::take(&mut self.unsent).into_iter().map(|(key, asked)| {
            let Ask { state, waiter, .. } = self.asks.remove(key);
            Unsent { view: FlightView::of(state, 1), waiter, asked }
        });
        unsent.collect()
    }
}
