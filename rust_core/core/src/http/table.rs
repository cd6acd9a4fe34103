//! All requests of a client that have no answer yet, and its connections.

mod late;

use std::collections::{BTreeSet, HashMap};
use std::mem::take;
use std::sync::Arc;

use super::answer::AnswerReader;
use super::buffers::BufferPool;
use super::fault::Fault;
use super::pool::Pool;
use super::traffic::{Actions, Failed, HttpLimits, Landed, Micros, Write};
use crate::error::{Error, Result};

/// Bytes from which on the memory of a body is used again.
const LONG: usize = 16 << 10;

/// A request without an answer.
#[derive(Debug)]
struct Exchange {
    origin: u32,
    head: Arc<[u8]>,
    size: usize,
    begun: Micros,
    deadline: Micros,
    /// Where it is; it waits for a connection otherwise.
    slot: Option<u32>,
    /// Whether it was sent a second time, as the connection died under the first.
    again: bool,
}

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is being made.
    Opening,
    /// It has no request.
    Idle,
    /// It has a request that is not written.
    Taken,
    /// It has a request that is written.
    Sent,
    /// Its answer is whole; it takes another request at the end of this pass.
    Answered,
    /// It is to be closed.
    Closing,
}

#[derive(Debug)]
struct Connection {
    origin: u32,
    stage: Stage,
    token: u64,
    reader: AnswerReader,
    /// Whether it has brought an answer and may bring another.
    answered: bool,
    /// Bytes of the first request, until it is known that the server has accepted the connection.
    unproven: usize,
    /// When its last request was sent, or it was begun.
    sent: Micros,
    /// When something came last.
    moment: Micros,
    /// From `sent` to the head of the answer.
    first: Micros,
    /// When it is looked at.
    due: Option<Micros>,
}

/// What is looked at when its time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Connection(u32),
    Waiting(u64),
    Origin(u32),
}

/// All requests of a client that have no answer yet, and its connections; see the [module](super).
///
/// Requests have numbers (tokens) of their senders, connections have numbers (slots) of this table. Of a request it
/// holds the head and the length of the body: whoever sends keeps the body until it lands or fails, as a request is
/// written a second time where a kept connection dies under it before any byte of the answer.
#[derive(Debug)]
pub struct ExchangeTable {
    limits: HttpLimits,
    origins: Vec<Pool>,
    exchanges: HashMap<u64, Exchange>,
    connections: Vec<Option<Connection>>,
    free: Vec<u32>,
    /// When to look at what: for each connection at most one entry, before anything of it could be late.
    agenda: BTreeSet<(Micros, Due)>,
    finished: Vec<u32>,
    landed: Vec<Landed>,
    failed: Vec<Failed>,
    actions: Actions,
    bodies: BufferPool,
    closed: bool,
}

impl ExchangeTable {
    /// A table without origins.
    #[must_use]
    pub fn new(limits: HttpLimits) -> Self {
        Self {
            limits,
            origins: Vec::new(),
            exchanges: HashMap::new(),
            connections: Vec::new(),
            free: Vec::new(),
            agenda: BTreeSet::new(),
            finished: Vec::new(),
            landed: Vec::new(),
            failed: Vec::new(),
            actions: Actions::default(),
            bodies: BufferPool::default(),
            closed: false,
        }
    }

    /// Add somewhere to connect to, and give its number. Where connections are `encrypted`, one that is made has been
    /// accepted by the server.
    ///
    /// # Errors
    /// If there are too many.
    pub fn add_origin(&mut self, encrypted: bool) -> Result<u32> {
        let number = u32::try_from(self.origins.len()).map_err(|_| Error::Full { what: "origin" })?;
        self.origins.push(Pool { encrypted, ..Pool::default() });
        Ok(number)
    }

    /// Send a request: on the idle connection that was used last, on a new one, or when one is free.
    ///
    /// # Arguments
    /// * `token`: Its number, which no other request has that has no answer yet.
    /// * `origin`: Where to.
    /// * `head`: Its head, up to the value of Content-Length; see [`super::request_head`].
    /// * `size`: Bytes of its body.
    /// * `limit`: The time for all of it.
    /// * `now`: The present.
    ///
    /// # Errors
    /// If the origin does not exist, or another request has the token.
    pub fn send(
        &mut self,
        token: u64,
        origin: u32,
        head: Arc<[u8]>,
        size: usize,
        limit: Micros,
        now: Micros,
    ) -> Result<()> {
        if origin as usize >= self.origins.len() {
            return Err(Error::reference(format!("origin {origin} does not exist"), "a number that add_origin gave"));
        }
        if self.exchanges.contains_key(&token) {
            let fact = format!("the request with token {token} has no answer yet");
            return Err(Error::conflict(fact, "a token that no such request has"));
        }
        let deadline = now.saturating_add(limit);
        self.exchanges.insert(token, Exchange { origin, head, size, begun: now, deadline, slot: None, again: false });
        if self.closed {
            self.fail(token, Fault::Closed, now);
        } else {
            self.assign(token, true, now);
        }
        Ok(())
    }

    /// Forget a request: it neither lands nor fails. Nothing is written of one that was not written yet; otherwise
    /// its connection is closed.
    pub fn cancel(&mut self, token: u64, now: Micros) {
        let Some(exchange) = self.exchanges.remove(&token) else {
            self.landed.retain(|landed| landed.token != token);
            self.failed.retain(|failed| failed.token != token);
            return;
        };
        let Some(slot) = exchange.slot else {
            self.leave(&exchange, token);
            return;
        };
        if self.stage(slot) == Some(Stage::Taken) {
            self.actions.writes.retain(|write| write.token != token);
            if let Some(connection) = self.connection(slot) {
                connection.stage = Stage::Idle;
            }
            self.origins[exchange.origin as usize].unserved.retain(|&unserved| unserved != slot);
            self.keep(slot, now);
        } else {
            self.close_slot(slot);
        }
    }

    /// Fail every request, and close every connection.
    pub fn close(&mut self, now: Micros) {
        self.closed = true;
        let mut tokens: Vec<u64> = self.exchanges.keys().copied().collect();
        tokens.sort_unstable();
        for token in tokens {
            self.fail(token, Fault::Closed, now);
        }
        for origin in &mut self.origins {
            origin.waiting.clear();
            origin.looking = false;
        }
        self.agenda.clear();
        for slot in 0..self.connections.len() {
            self.close_slot(u32::try_from(slot).unwrap_or(u32::MAX));
        }
    }

    /// A connection was made.
    pub fn opened(&mut self, slot: u32, now: Micros) {
        let Some(connection) = self.connection(slot) else { return };
        match connection.stage {
            Stage::Opening => {
                let token = connection.token;
                connection.moment = now;
                self.put(slot, token, now);
            }
            Stage::Closing => self.actions.closes.push(slot),
            _ => {}
        }
    }

    /// A connection could not be made, or was not wanted any more; gives the request that fails with it.
    pub fn unopened(&mut self, slot: u32, now: Micros) -> Option<u64> {
        let connection = self.connection(slot)?;
        let token = (connection.stage == Stage::Opening).then_some(connection.token);
        let token = token.filter(|token| self.exchanges.remove(token).is_some());
        self.gone(slot, now);
        token
    }

    /// A connection brought bytes.
    pub fn feed(&mut self, slot: u32, data: &[u8], now: Micros) {
        let idle = self.limits.idle;
        if data.len() > LONG
            && let Some(connection) = self.connections.get_mut(slot as usize).and_then(Option::as_mut)
            && !connection.reader.begun()
        {
            connection.reader.lend(self.bodies.take(0));
        }
        let Some(connection) = self.connection(slot) else { return };
        match connection.stage {
            Stage::Sent => {}
            // Nothing was asked, or not this.
            Stage::Answered => {
                connection.reader.end();
                return;
            }
            Stage::Idle => return self.close_slot(slot),
            Stage::Taken => return self.unasked(slot, now),
            Stage::Opening | Stage::Closing => return,
        }
        let token = connection.token;
        let headed = connection.reader.headed();
        match connection.reader.feed(data) {
            Err(fault) => {
                self.close_slot(slot);
                self.fail(token, fault, now);
            }
            Ok(whole) => {
                connection.moment = now;
                if connection.reader.headed() && !headed {
                    connection.first = now.saturating_sub(connection.sent);
                }
                if whole {
                    self.finish(slot, now);
                } else if connection.reader.headed() {
                    self.watch(slot, now.saturating_add(idle), now);
                }
            }
        }
    }

    /// The other side sends nothing more, so nothing more is sent to it: it may have stopped reading too.
    pub fn eof(&mut self, slot: u32, now: Micros) {
        let Some(connection) = self.connection(slot) else { return };
        let whole = connection.reader.end();
        if whole && connection.stage == Stage::Sent {
            self.finish(slot, now);
        } else if !whole {
            self.broke(slot, None, now);
            self.close_slot(slot);
        }
    }

    /// A connection is closed, for the `reason` of the transport if there is one. Always the last word of one that was made.
    pub fn lost(&mut self, slot: u32, reason: Option<&str>, now: Micros) {
        self.broke(slot, reason, now);
        self.gone(slot, now);
    }

    /// Bytes of a request are still to be sent while its answer is whole: they would stand in the way of the next one.
    pub fn unsent(&mut self, slot: u32) {
        if let Some(connection) = self.connection(slot)
            && connection.stage == Stage::Answered
        {
            connection.reader.end();
        }
    }

    /// A connection has brought something, or is closed, before its request was written.
    pub fn unasked(&mut self, slot: u32, now: Micros) {
        let Some(connection) = self.connection(slot) else { return };
        if matches!(connection.stage, Stage::Taken | Stage::Sent) {
            let token = connection.token;
            self.close_slot(slot);
            self.repeat(token, false, Fault::NoAnswer, now);
        }
    }

    /// How many bytes of its request a connection has not acknowledged.
    pub fn unacknowledged(&mut self, slot: u32, bytes: usize, now: Micros) {
        let Some(connection) = self.connection(slot) else { return };
        if connection.stage != Stage::Sent || connection.unproven == 0 || connection.reader.begun() {
            return;
        }
        if bytes >= connection.unproven {
            let token = connection.token;
            self.close_slot(slot);
            self.repeat(token, true, Fault::ConnectLate, now);
        } else {
            connection.unproven = 0;
            self.look_at(slot, now);
        }
    }

    /// Let connections whose answers are whole take other requests, and see what is late.
    pub fn settle(&mut self, now: Micros) {
        for slot in take(&mut self.finished) {
            let Some(connection) = self.connection(slot) else { continue };
            if connection.stage != Stage::Answered {
                continue;
            }
            if connection.reader.reusable() {
                connection.reader.start();
                connection.answered = true;
                connection.stage = Stage::Idle;
                // It makes way where new ones are not served.
                if self.crowds(slot, now) { self.close_slot(slot) } else { self.keep(slot, now) }
            } else {
                self.close_slot(slot);
            }
        }
        while let Some(&(due, what)) = self.agenda.first()
            && due <= now
        {
            self.agenda.pop_first();
            match what {
                Due::Connection(slot) => {
                    if let Some(connection) = self.connection(slot) {
                        connection.due = None;
                    }
                    self.look_at(slot, now);
                }
                Due::Waiting(token) => {
                    if let Some(exchange) = self.exchanges.get(&token) {
                        self.origins[exchange.origin as usize].waiting.retain(|&waiting| waiting != token);
                    }
                    self.fail(token, Fault::Late, now);
                }
                Due::Origin(origin) => self.look_at_origin(origin, now),
            }
        }
    }

    /// Take out the answers that have come.
    pub fn take_landed(&mut self) -> Vec<Landed> {
        take(&mut self.landed)
    }

    /// Take out the requests that get no answer.
    pub fn take_failed(&mut self) -> Vec<Failed> {
        take(&mut self.failed)
    }

    /// Take out the answers to requests with tokens that `wanted` says yes to.
    pub fn take_landed_of(&mut self, wanted: impl Fn(u64) -> bool) -> Vec<Landed> {
        self.landed.extract_if(.., |landed| wanted(landed.token)).collect()
    }

    /// The same for those that get no answer.
    pub fn take_failed_of(&mut self, wanted: impl Fn(u64) -> bool) -> Vec<Failed> {
        self.failed.extract_if(.., |failed| wanted(failed.token)).collect()
    }

    /// Use the memory of a body for others.
    pub fn recycle(&mut self, body: Vec<u8>) {
        if body.capacity() > LONG {
            self.bodies.give(body);
        }
    }

    /// Bytes of the bodies that have come.
    #[must_use]
    pub fn landed_bytes(&self) -> usize {
        self.landed.iter().map(|landed| landed.answer.body.len()).sum()
    }

    /// Take out what is to be done with sockets.
    pub fn take_actions(&mut self) -> Actions {
        let actions = take(&mut self.actions);
        for write in &actions.writes {
            if let Some(connection) = self.connection(write.slot) {
                connection.stage = Stage::Sent;
            }
        }
        actions
    }

    /// Write the head of a request, to the end of its empty line, behind what `out` has; nothing where it is not known.
    pub fn head_onto(&self, token: u64, out: &mut Vec<u8>) {
        if let Some(exchange) = self.exchanges.get(&token) {
            out.extend_from_slice(&exchange.head);
            out.extend_from_slice(exchange.size.to_string().as_bytes());
            out.extend_from_slice(b"\r\n\r\n");
        }
    }

    /// Bytes that a request takes with its head, or a few more; 0 where it is not known.
    #[must_use]
    pub fn room(&self, token: u64) -> usize {
        self.exchanges
            .get(&token)
            .map_or(0, |exchange| exchange.head.len().saturating_add(exchange.size).saturating_add(32))
    }

    /// When to come back though nothing happens.
    #[must_use]
    pub fn due(&self) -> Option<Micros> {
        self.agenda.first().map(|&(due, _)| due)
    }

    /// Whether there is anything to take out.
    #[must_use]
    pub const fn is_pending(&self) -> bool {
        !(self.finished.is_empty() && self.landed.is_empty() && self.failed.is_empty() && self.actions.is_empty())
    }

    /// Requests that have no answer yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.exchanges.len()
    }

    /// Whether all requests have their answers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.exchanges.is_empty()
    }

    /// Connections to an origin that are there, being made or being closed.
    #[must_use]
    pub fn held(&self, origin: u32) -> usize {
        self.origins.get(origin as usize).map_or(0, |origin| origin.held)
    }

    fn connection(&mut self, slot: u32) -> Option<&mut Connection> {
        self.connections.get_mut(slot as usize)?.as_mut()
    }

    fn peek(&self, slot: u32) -> Option<&Connection> {
        self.connections.get(slot as usize)?.as_ref()
    }

    fn stage(&self, slot: u32) -> Option<Stage> {
        self.peek(slot).map(|connection| connection.stage)
    }

    /// Find a connection for a request: an idle one if it may be, a new one, or the next one.
    fn assign(&mut self, token: u64, idle: bool, now: Micros) {
        let Some(exchange) = self.exchanges.get_mut(&token) else { return };
        let (origin, deadline) = (exchange.origin, exchange.deadline);
        exchange.slot = None;
        while idle && let Some(slot) = self.origins[origin as usize].idle.pop() {
            // The server may have forgotten one that was idle for longer.
            if self.peek(slot).is_some_and(|kept| now < kept.moment.saturating_add(self.limits.keep)) {
                return self.put(slot, token, now);
            }
            self.close_slot(slot);
        }
        let pool = &mut self.origins[origin as usize];
        if pool.held >= self.limits.size {
            pool.waiting.push_back(token);
            self.agenda.insert((deadline, Due::Waiting(token)));
        } else {
            pool.held += 1;
            self.open(token, now);
        }
    }

    /// Begin to make a connection for a request, in a place that is held.
    fn open(&mut self, token: u64, now: Micros) {
        let Some(exchange) = self.exchanges.get_mut(&token) else { return };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            u32::try_from(self.connections.len() - 1).unwrap_or(u32::MAX)
        });
        exchange.slot = Some(slot);
        let (origin, deadline) = (exchange.origin, exchange.deadline);
        self.connections[slot as usize] = Some(Connection {
            origin,
            stage: Stage::Opening,
            token,
            reader: AnswerReader::new(self.limits.largest),
            answered: false,
            unproven: 0,
            sent: now,
            moment: now,
            first: 0,
            due: None,
        });
        self.actions.opens.push((slot, origin));
        self.watch(slot, deadline.min(now.saturating_add(self.limits.connect)), now);
    }

    /// Put a request on a connection.
    fn put(&mut self, slot: u32, token: u64, now: Micros) {
        let Some(Some(connection)) = self.connections.get_mut(slot as usize) else { return };
        let Some(exchange) = self.exchanges.get_mut(&token) else { return };
        exchange.slot = Some(slot);
        connection.stage = Stage::Taken;
        connection.token = token;
        connection.sent = now;
        let mut due = exchange.deadline;
        if !connection.answered {
            let pool = &mut self.origins[connection.origin as usize];
            pool.unserved.push(slot);
            if !pool.encrypted {
                connection.unproven = exchange.head.len() + exchange.size;
                due = due.min(now.saturating_add(self.limits.accepted));
            }
        }
        self.actions.writes.push(Write { slot, token, used: connection.answered });
        self.watch(slot, due, now);
    }

    /// Hand over the answer of a connection.
    fn finish(&mut self, slot: u32, now: Micros) {
        let Some(Some(connection)) = self.connections.get_mut(slot as usize) else { return };
        let Some(exchange) = self.exchanges.remove(&connection.token) else { return };
        connection.stage = Stage::Answered;
        self.finished.push(slot);
        self.landed.push(Landed {
            token: connection.token,
            answer: connection.reader.give(),
            first: connection.first,
            took: now.saturating_sub(exchange.begun),
        });
    }

    /// Give a connection to the request that waited longest, or keep it.
    fn keep(&mut self, slot: u32, now: Micros) {
        let Some(origin) = self.peek(slot).map(|connection| connection.origin) else { return };
        if let Some(token) = self.next(origin) {
            return self.put(slot, token, now);
        }
        let pool = &mut self.origins[origin as usize];
        pool.idle.push(slot);
        if !pool.unserved.is_empty() && !pool.looking {
            pool.looking = true;
            self.agenda.insert((now.saturating_add(self.limits.patience), Due::Origin(origin)));
        }
    }

    /// The request of an origin that waited longest.
    fn next(&mut self, origin: u32) -> Option<u64> {
        let token = self.origins[origin as usize].waiting.pop_front()?;
        if let Some(exchange) = self.exchanges.get(&token) {
            self.agenda.remove(&(exchange.deadline, Due::Waiting(token)));
        }
        Some(token)
    }

    /// The request of a connection that closes gets no answer from it.
    fn broke(&mut self, slot: u32, reason: Option<&str>, now: Micros) {
        let Some(connection) = self.connection(slot) else { return };
        if !matches!(connection.stage, Stage::Taken | Stage::Sent) {
            return;
        }
        let (token, begun, answered) = (connection.token, connection.reader.begun(), connection.answered);
        if begun {
            self.fail(token, Fault::BrokeOff, now);
        } else if answered {
            self.repeat(token, false, Fault::NoAnswer, now);
        } else {
            let fault = reason.map_or(Fault::NoAnswer, |reason| Fault::ConnectionBroke(reason.to_owned()));
            self.fail(token, fault, now);
        }
    }

    /// Send a request a second time, which may go to an `idle` connection or not; it fails after that.
    fn repeat(&mut self, token: u64, idle: bool, fault: Fault, now: Micros) {
        match self.exchanges.get_mut(&token) {
            Some(exchange) if !exchange.again && !self.closed => {
                exchange.again = true;
                self.assign(token, idle, now);
            }
            _ => self.fail(token, fault, now),
        }
    }

    fn fail(&mut self, token: u64, fault: Fault, now: Micros) {
        if let Some(exchange) = self.exchanges.remove(&token) {
            self.failed.push(Failed { token, fault, took: now.saturating_sub(exchange.begun) });
        }
    }

    /// Take a request out of the queue.
    fn leave(&mut self, exchange: &Exchange, token: u64) {
        self.agenda.remove(&(exchange.deadline, Due::Waiting(token)));
        self.origins[exchange.origin as usize].waiting.retain(|&waiting| waiting != token);
    }

    /// Have a connection closed.
    fn close_slot(&mut self, slot: u32) {
        let Some(Some(connection)) = self.connections.get_mut(slot as usize) else { return };
        match std::mem::replace(&mut connection.stage, Stage::Closing) {
            Stage::Closing => return,
            Stage::Taken => self.actions.writes.retain(|write| write.slot != slot),
            _ => {}
        }
        if let Some(due) = connection.due.take() {
            self.agenda.remove(&(due, Due::Connection(slot)));
        }
        self.origins[connection.origin as usize].forget(slot);
        self.actions.closes.push(slot);
    }

    /// A connection is no more: its place goes to the request that waited longest.
    fn gone(&mut self, slot: u32, now: Micros) {
        let Some(connection) = self.connections.get_mut(slot as usize).and_then(Option::take) else { return };
        if let Some(due) = connection.due {
            self.agenda.remove(&(due, Due::Connection(slot)));
        }
        self.free.push(slot);
        self.origins[connection.origin as usize].forget(slot);
        self.actions.writes.retain(|write| write.slot != slot);
        self.actions.closes.retain(|&closed| closed != slot);
        match self.next(connection.origin) {
            Some(token) => self.open(token, now),
            None => self.origins[connection.origin as usize].held -= 1,
        }
    }
}
