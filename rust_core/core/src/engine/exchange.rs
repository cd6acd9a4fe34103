//! The requests of a turn engine over an exchange table: out in one step for all, and back in one.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{
    Flight, FlightKey, FlightView, GivenUp, Landed, NotLanded, Place, SharedTree, TurnEngine, Unsent, unknown,
};
use crate::error::Result;
use crate::http::{Answer, ExchangeTable, Fault, Headers, Micros, request_head};

/// The bit by which the tokens of a turn engine's requests are told from others in the same table.
const OURS: u64 = 1 << 63;

/// Whether a token is of a turn engine's request.
#[must_use]
pub const fn is_ours(token: u64) -> bool {
    token & OURS != 0
}

#[allow(clippy::cast_possible_truncation, reason = "it was a flight's key")]
const fn flight_of(token: u64) -> FlightKey {
    (token & !OURS) as FlightKey
}

const fn token_of(flight: FlightKey) -> u64 {
    flight as u64 | OURS
}

/// Number of a target.
pub type TargetKey = u32;

/// Where requests of a model can be sent.
#[derive(Clone, Debug)]
pub struct TargetPlan {
    /// The origin's number in the exchange table.
    pub origin: u32,
    /// The path.
    pub path: String,
    /// The value of `Host`.
    pub host: String,
    /// Other headers.
    pub headers: Vec<(String, String)>,
    /// Names of headers that say the tree's key.
    pub session: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Target {
    origin: u32,
    /// The head of its requests, and where a tree's key stands in it.
    head: Arc<[u8]>,
    keys: Vec<usize>,
    pub(super) waiting: VecDeque<FlightKey>,
}

/// Turns that came of one request, or of a reply to an equal one.
#[derive(Debug)]
pub struct TurnsLanded<W> {
    /// Where it had been sent.
    pub target: TargetKey,
    /// Whether it was sent; else the reply is that to an equal request.
    pub sent: bool,
    /// Who was asked.
    pub agent: u32,
    /// From asking to sending.
    pub queued: Micros,
    /// From sending to the head of the answer.
    pub first: Micros,
    /// From asking to the end of the answer.
    pub took: Micros,
    /// The headers of the answer.
    pub headers: Headers,
    /// The reply, and what became of its draws.
    pub landed: Landed<W>,
}

/// What a request ended with that brought no turns.
#[derive(Debug)]
pub enum Outcome {
    /// An answer that is no reply, or not the one that was asked for.
    Answer(Answer),
    /// No answer.
    Fault(Fault),
}

/// A request that brought no turns.
#[derive(Debug)]
pub struct Faulted<W> {
    /// What it was for.
    pub view: FlightView,
    /// Where it had been sent.
    pub target: TargetKey,
    /// From asking to sending.
    pub queued: Micros,
    /// From sending to the end of the answer, or to the fault.
    pub took: Micros,
    /// From sending to the head of the answer, if one came.
    pub first: Micros,
    /// What it ended with.
    pub outcome: Outcome,
    /// Who waits for its draws, and whether that was given up.
    pub waiters: Vec<(W, bool)>,
}

/// Who waited for a request that was given up; the target that it was at, and whether it was sent.
pub type Abandoned<W> = (Vec<W>, Option<(TargetKey, bool)>);

/// What a pass brought.
#[derive(Debug)]
pub struct Passed<W> {
    /// Requests whose choices are turns now.
    pub landed: Vec<TurnsLanded<W>>,
    /// Requests that brought no turns.
    pub faulted: Vec<Faulted<W>>,
    /// Wishes that shared requests which brought no turns.
    pub unsent: Vec<Unsent<W>>,
}

impl<T: SharedTree, W> TurnEngine<T, W> {
    /// Register where requests can be sent.
    ///
    /// # Errors
    /// If a header holds a character that no header can carry.
    pub fn target(&mut self, plan: &TargetPlan) -> Result<TargetKey> {
        let (head, other) = (head(plan, 0)?, head(plan, u32::MAX)?);
        let keys = (0..head.len()).filter(|&at| head[at] != other[at]).step_by(DIGITS).collect();
        self.targets.push(Target { origin: plan.origin, head, keys, waiting: VecDeque::new() });
        Ok(crate::id::count(self.targets.len() - 1))
    }

    /// Move the requests of a model that wait longest, at most so many, behind those that wait for a target.
    ///
    /// # Errors
    /// If there is no such model or target.
    pub fn route(&mut self, model: u32, target: TargetKey, most: usize) -> Result<()> {
        self.aim(target)?;
        for _ in 0..most {
            let Some(flight) = self.next(model)? else { break };
            self.flights[flight].place = Place::Target(target);
            self.aim(target)?.waiting.push_back(flight);
        }
        Ok(())
    }

    /// Send the requests that wait longest for a target, at most so many; how many were sent.
    ///
    /// # Errors
    /// If there is no such target, or the table refuses a request.
    pub fn send(
        &mut self,
        target: TargetKey,
        most: usize,
        table: &mut ExchangeTable,
        limit: Micros,
        now: Micros,
    ) -> Result<usize> {
        for sent in 0..most {
            let Some(flight) = self.next_for(target)? else { return Ok(sent) };
            let view = self.view(flight)?;
            let head = self.head(target, view.tree)?;
            let size = self.size(view)?;
            let origin = self.aim(target)?.origin;
            table.send(token_of(flight), origin, head, size, limit, now)?;
            self.flights[flight].place = Place::Sent(target, now);
        }
        Ok(most)
    }

    /// Take the request that waits longest for a target out of its queue.
    ///
    /// # Errors
    /// If there is no such target.
    pub fn next_for(&mut self, target: TargetKey) -> Result<Option<FlightKey>> {
        let next = self.aim(target)?.waiting.pop_front();
        if let Some(flight) = next.and_then(|key| self.flights.get_mut(key)) {
            flight.place = Place::Taken;
        }
        Ok(next)
    }

    pub(super) fn aim(&mut self, target: TargetKey) -> Result<&mut Target> {
        self.targets.get_mut(target as usize).ok_or_else(|| unknown("target", target as usize))
    }

    /// The head of a tree's requests to a target.
    fn head(&mut self, target: TargetKey, tree: usize) -> Result<Arc<[u8]>> {
        let key = target;
        let target = self.targets.get(key as usize).ok_or_else(|| unknown("target", key as usize))?;
        if target.keys.is_empty() {
            return Ok(Arc::clone(&target.head));
        }
        let entry = self.trees.get_mut(tree).ok_or_else(|| unknown("tree", tree))?;
        if let Some((_, head)) = entry.heads.iter().find(|&&(known, _)| known == key) {
            return Ok(Arc::clone(head));
        }
        let mut head = Arc::clone(&target.head);
        for &at in &target.keys {
            Arc::make_mut(&mut head)[at..at + DIGITS].copy_from_slice(&hex(entry.key));
        }
        entry.heads.push((key, Arc::clone(&head)));
        Ok(head)
    }

    /// Write head and body of a request behind what `out` has.
    ///
    /// # Errors
    /// If there is no such request.
    pub fn request(&self, token: u64, table: &ExchangeTable, out: &mut Vec<u8>) -> Result<()> {
        table.head_onto(token, out);
        self.body(flight_of(token), out)
    }

    /// Take out of a table what became of this engine's requests.
    ///
    /// # Errors
    /// If the table has a request that this engine does not know.
    pub fn pass(&mut self, table: &mut ExchangeTable) -> Result<Passed<W>> {
        let (mut landed, mut faulted) = (Vec::new(), Vec::new());
        for answered in table.take_landed_of(is_ours) {
            let flight = flight_of(answered.token);
            let (target, _, sent) = self.sent(flight)?;
            let ended = sent + answered.took;
            let plain = answered.answer.status == 200 && answered.answer.headers.get(b"content-encoding").is_none();
            if plain && let Ok(mut turns) = self.turned(flight, &answered.answer.body, target, sent, ended) {
                let Answer { headers, body, .. } = answered.answer;
                table.recycle(body);
                if let Some(led) = turns.first_mut() {
                    (led.first, led.headers) = (answered.first, headers);
                }
                landed.append(&mut turns);
                continue;
            }
            faulted.push(self.faulted(flight, answered.took, answered.first, Outcome::Answer(answered.answer))?);
        }
        for failed in table.take_failed_of(is_ours) {
            faulted.push(self.faulted(flight_of(failed.token), failed.took, 0, Outcome::Fault(failed.fault))?);
        }
        Ok(Passed { landed, faulted, unsent: self.take_unsent() })
    }

    /// Make turns of the reply to a request, and to those that share it.
    pub(super) fn turned(
        &mut self,
        flight: FlightKey,
        body: &[u8],
        target: TargetKey,
        sent: Micros,
        ended: Micros,
    ) -> std::result::Result<Vec<TurnsLanded<W>>, NotLanded> {
        let asked = self.asked(flight).map_err(NotLanded::Refused)?;
        let agent = self.view(flight).map_err(NotLanded::Refused)?.agent;
        let (queued, took) = (sent.saturating_sub(asked), ended.saturating_sub(asked));
        let mut led = self.land(flight, body, 0, took)?;
        let sharing = std::mem::take(&mut led.sharing);
        let mut turns = vec![TurnsLanded {
            target,
            sent: true,
            agent,
            queued,
            first: 0,
            took,
            headers: Headers::default(),
            landed: led,
        }];
        for (key, asked) in sharing {
            let (agent, took) = (self.asks[key].state.agent, ended.saturating_sub(asked));
            if let Some(landed) = self.land_shared(key, asked, body, ended) {
                let (sent, queued, first, headers) = (false, 0, 0, Headers::default());
                turns.push(TurnsLanded { target, sent, agent, queued, first, took, headers, landed });
            }
        }
        Ok(turns)
    }

    /// A request whose connection could not be made.
    ///
    /// # Errors
    /// If there is no such request.
    pub fn refused(&mut self, token: u64, now: Micros) -> Result<Faulted<W>> {
        let flight = flight_of(token);
        let (_, _, sent) = self.sent(flight)?;
        self.faulted(flight, now.saturating_sub(sent), 0, Outcome::Fault(Fault::NoAnswer))
    }

    fn sent(&self, flight: FlightKey) -> Result<(TargetKey, Micros, Micros)> {
        match *self.flight(flight)? {
            Flight { place: Place::Sent(target, sent), asked, .. } => Ok((target, asked, sent)),
            _ => Err(unknown("request", flight)),
        }
    }

    fn faulted(&mut self, flight: FlightKey, took: Micros, first: Micros, outcome: Outcome) -> Result<Faulted<W>> {
        let (target, asked, sent) = self.sent(flight)?;
        let view = self.view(flight)?;
        let waiters = self.release(flight)?;
        Ok(Faulted { view, target, queued: sent.saturating_sub(asked), took, first, outcome, waiters })
    }

    /// A rollout does not wait for its turn any more; a request that nothing waits for is given up, also where it was sent.
    ///
    /// # Errors
    /// If there is no such wish.
    pub fn abandon(&mut self, ask: usize, table: &mut ExchangeTable, now: Micros) -> Result<Abandoned<W>> {
        match self.give_up(ask)? {
            GivenUp::Alone => Ok((Vec::new(), None)),
            GivenUp::Unsent(waiters, target) => Ok((waiters, target.map(|target| (target, false)))),
            GivenUp::Sent(flight) => {
                let (target, ..) = self.sent(flight)?;
                table.cancel(token_of(flight), now);
                let waiters = self.release(flight)?.into_iter().map(|(waiter, _)| waiter).collect();
                Ok((waiters, Some((target, true))))
            }
        }
    }

    /// Give up all requests of a model that were sent: their wishes, as of requests that brought nothing.
    ///
    /// # Errors
    /// If there is no such model.
    pub fn recall(&mut self, model: u32, table: &mut ExchangeTable, now: Micros) -> Result<Vec<Faulted<W>>> {
        let sent =
            self.flights.iter().filter(|(_, flight)| matches!(flight.place, Place::Sent(..))).map(|(key, _)| key);
        let mut recalled = Vec::new();
        for flight in sent.collect::<Vec<_>>() {
            if self.plan(self.view(flight)?.agent)?.model == model {
                let (_, _, sent) = self.sent(flight)?;
                table.cancel(token_of(flight), now);
                recalled.push(self.faulted(flight, now.saturating_sub(sent), 0, Outcome::Fault(Fault::Closed))?);
            }
        }
        Ok(recalled)
    }
}

/// Digits of a tree's key.
const DIGITS: usize = 8;

fn hex(key: u32) -> [u8; DIGITS] {
    std::array::from_fn(|place| b"0123456789abcdef"[(key >> (28 - 4 * place)) as usize & 15])
}

/// The head of requests to a target, with the key of a tree.
fn head(plan: &TargetPlan, key: u32) -> Result<Arc<[u8]>> {
    let key = hex(key).map(char::from).iter().collect::<String>();
    let session = plan.session.iter().map(|name| (&**name, &*key));
    let headers = session.chain(plan.headers.iter().map(|(name, value)| (&**name, &**value)));
    request_head(&plan.path, &plan.host, &headers.collect::<Vec<_>>())
}
