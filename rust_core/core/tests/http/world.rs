//! The table in a world where anything happens in any order: each request ends once, with the answer to it or a fault.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use trunkline_core::http::{ExchangeTable, Fault, HttpLimits, Micros, Write, request_head};

const SIZE: usize = 3;
const LIMITS: HttpLimits = HttpLimits {
    size: SIZE,
    largest: 1000,
    connect: 5_000,
    accepted: 3_000,
    keep: 15_000,
    idle: 60_000,
    patience: 1_000,
    crowded: 60_000,
};

#[derive(Clone, Copy, Debug)]
enum Event {
    Send(usize, Micros),
    Cancel(usize),
    Open(usize),
    Refuse(usize),
    Answer(usize),
    AnswerAndClose(usize),
    Begin(usize),
    Nonsense(usize),
    Unasked(usize),
    End(usize),
    Lose(usize),
    Unsent(usize),
    Wait(Micros),
    Pass,
    ReadableInThePass,
    Close,
}

fn event() -> impl Strategy<Value = Event> {
    let n = || 0usize..8;
    prop_oneof![
        6 => (0usize..2, prop::sample::select(&[500, 20_000, 1_000_000][..])).prop_map(|(origin, limit)| Event::Send(origin, limit)),
        1 => n().prop_map(Event::Cancel),
        5 => n().prop_map(Event::Open),
        1 => n().prop_map(Event::Refuse),
        8 => n().prop_map(Event::Answer),
        1 => n().prop_map(Event::AnswerAndClose),
        1 => n().prop_map(Event::Begin),
        1 => n().prop_map(Event::Nonsense),
        1 => n().prop_map(Event::Unasked),
        1 => n().prop_map(Event::End),
        2 => n().prop_map(Event::Lose),
        1 => n().prop_map(Event::Unsent),
        3 => prop::sample::select(&[1, 700, 4_000, 16_000, 70_000][..]).prop_map(Event::Wait),
        10 => Just(Event::Pass),
        1 => Just(Event::ReadableInThePass),
    ]
}

/// What sockets there are.
#[derive(Default)]
struct World {
    now: Micros,
    opening: Vec<(u32, u32)>,
    /// Open connections: their origin, and the request that the server has and has not answered.
    open: Vec<(u32, u32, Option<u64>)>,
    closing: HashSet<u32>,
    /// Open connections that no request may be written to any more.
    spoiled: HashSet<u32>,
    alive: HashSet<u64>,
    tries: HashMap<u64, usize>,
    ended: HashMap<u64, Option<Fault>>,
    token: u64,
}

impl World {
    fn end(&mut self, token: u64, fault: Option<Fault>) {
        assert!(self.alive.remove(&token), "{token} has ended before");
        self.ended.insert(token, fault);
    }

    /// Take out what is to be done, do it, and see what has come.
    fn pass(&mut self, table: &mut ExchangeTable, readable: bool) {
        table.settle(self.now);
        for landed in table.take_landed() {
            assert_eq!(landed.answer.body, landed.token.to_string().into_bytes(), "the answer to another request");
            self.end(landed.token, None);
        }
        for failed in table.take_failed() {
            self.end(failed.token, Some(failed.fault));
        }
        let actions = table.take_actions();
        for Write { slot, token, used } in actions.writes {
            assert!(self.alive.contains(&token));
            let mut head = Vec::new();
            table.head_onto(token, &mut head);
            assert!(head.ends_with(b"\r\n\r\n") && head.len() <= table.room(token));
            assert!(!self.spoiled.contains(&slot), "something is on its way there already");
            let there = self.open.iter_mut().find(|(open, ..)| *open == slot).unwrap();
            if readable && used {
                table.unasked(slot, self.now);
                continue;
            }
            assert_eq!(there.2, None, "it has a request");
            there.2 = Some(token);
            let tries = self.tries.entry(token).or_default();
            *tries += 1;
            assert!(*tries <= 2, "sent three times");
        }
        for (slot, origin) in actions.opens {
            assert!(!self.open.iter().any(|(open, ..)| *open == slot));
            self.opening.push((slot, origin));
        }
        for slot in actions.checks {
            table.unacknowledged(slot, if slot % 2 == 0 { 1 << 20 } else { 0 }, self.now);
        }
        for slot in actions.closes {
            self.closing.insert(slot);
        }
        for origin in 0..2 {
            assert!(table.held(origin) <= SIZE);
            let open = self.open.iter().filter(|(_, other, _)| *other == origin).count();
            assert!(open <= SIZE);
        }
        if !readable {
            assert!(table.due().is_none_or(|due| due > self.now));
        }
    }

    fn close(&mut self, place: usize, table: &mut ExchangeTable, reason: Option<&str>) {
        let (slot, ..) = self.open.remove(place);
        self.closing.remove(&slot);
        self.spoiled.remove(&slot);
        table.lost(slot, reason, self.now);
    }

    fn step(&mut self, event: Event, table: &mut ExchangeTable, head: &Arc<[u8]>) {
        let now = self.now;
        let count = self.open.len();
        let answer = |token: u64| {
            let body = token.to_string();
            format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
        };
        match event {
            Event::Send(origin, limit) => {
                self.token += 1;
                self.alive.insert(self.token);
                table.send(self.token, u32::try_from(origin).unwrap(), head.clone(), 10, limit, now).unwrap();
            }
            Event::Cancel(which) => {
                let mut alive: Vec<u64> = self.alive.iter().copied().collect();
                alive.sort_unstable();
                if let Some(&token) = alive.get(which) {
                    table.cancel(token, now);
                    self.end(token, None);
                }
            }
            Event::Open(which) if which < self.opening.len() => {
                let (slot, origin) = self.opening.remove(which);
                self.open.push((slot, origin, None));
                table.opened(slot, now);
            }
            Event::Refuse(which) if which < self.opening.len() => {
                let (slot, _) = self.opening.remove(which);
                self.closing.remove(&slot);
                if let Some(token) = table.unopened(slot, now) {
                    self.end(token, Some(Fault::ConnectLate));
                }
            }
            Event::Answer(which) | Event::AnswerAndClose(which) if which < count => {
                let (slot, _, asked) = self.open[which];
                if let Some(token) = asked {
                    self.open[which].2 = None;
                    table.feed(slot, &answer(token), now);
                    if matches!(event, Event::AnswerAndClose(_)) {
                        self.spoiled.insert(slot);
                        table.eof(slot, now);
                    }
                }
            }
            Event::Begin(which) if which < count && self.open[which].2.is_some() => {
                table.feed(self.open[which].0, b"HTTP/1.1 200 OK\r\n", now);
            }
            Event::Nonsense(which) if which < count => {
                self.spoiled.insert(self.open[which].0);
                table.feed(self.open[which].0, b"\x00\x01", now);
            }
            // Only where it cannot be the answer to what was written.
            Event::Unasked(which) if which < count && self.open[which].2.is_none() => {
                self.spoiled.insert(self.open[which].0);
                table.feed(self.open[which].0, &answer(0), now);
            }
            Event::End(which) if which < count => {
                self.spoiled.insert(self.open[which].0);
                table.eof(self.open[which].0, now);
            }
            Event::Lose(which) if which < count => {
                self.close(which, table, (which % 2 == 0).then_some("Reset"));
            }
            Event::Unsent(which) if which < count => table.unsent(self.open[which].0),
            Event::Wait(micros) => self.now += micros,
            Event::Pass => self.pass(table, false),
            Event::ReadableInThePass => self.pass(table, true),
            Event::Close => table.close(now),
            _ => {}
        }
    }

    /// Do what the table asks for until nothing is left.
    fn settle(&mut self, table: &mut ExchangeTable) {
        for _ in 0..4 {
            self.pass(table, false);
            while let Some(slot) = self.closing.iter().next().copied() {
                self.closing.remove(&slot);
                if let Some(place) = self.open.iter().position(|(open, ..)| *open == slot) {
                    self.close(place, table, None);
                } else if let Some(place) = self.opening.iter().position(|(open, _)| *open == slot) {
                    self.opening.remove(place);
                    assert_eq!(table.unopened(slot, self.now), None);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn each_request_ends_once_with_its_own_answer(events in vec(event(), 0..120), closes in any::<bool>()) {
        let mut table = ExchangeTable::new(LIMITS);
        for _ in 0..2 {
            table.add_origin(false).unwrap();
        }
        let head = request_head("/", "h", &[]).unwrap();
        let mut world = World::default();
        for event in events {
            world.step(event, &mut table, &head);
        }
        if closes {
            // All that is left fails, and nothing stays.
            world.step(Event::Close, &mut table, &head);
            world.settle(&mut table);
            prop_assert!(world.open.is_empty() && world.opening.is_empty());
            prop_assert_eq!((table.held(0), table.held(1), table.due()), (0, 0, None));
        } else {
            // From here on servers answer, and time passes.
            for _ in 0..world.token * 6 + 20 {
                world.settle(&mut table);
                world.step(Event::Open(0), &mut table, &head);
                world.pass(&mut table, false);
                for which in 0..world.open.len() {
                    world.step(Event::Answer(which), &mut table, &head);
                }
                world.now += 10;
            }
            world.settle(&mut table);
            prop_assert!(table.is_empty(), "{:?}", table);
        }
        prop_assert!(world.alive.is_empty(), "{:?}", world.alive);
        prop_assert_eq!(world.ended.len() as u64, world.token);
        prop_assert!(!table.is_pending());
    }
}

#[test]
fn requests_are_refused_that_the_table_cannot_tell_apart() {
    let mut table = ExchangeTable::new(LIMITS);
    let head = request_head("/", "h", &[]).unwrap();
    assert!(table.send(1, 0, head.clone(), 0, 1, 0).unwrap_err().to_string().contains("origin 0 does not exist"));
    table.add_origin(false).unwrap();
    table.send(1, 0, head.clone(), 0, 1, 0).unwrap();
    assert!(table.send(1, 0, head, 0, 1, 0).unwrap_err().to_string().contains("token 1 has no answer yet"));
    // What is told of connections that do not exist means nothing.
    for slot in [7, u32::MAX] {
        table.opened(slot, 0);
        table.feed(slot, b"x", 0);
        table.eof(slot, 0);
        table.lost(slot, None, 0);
        table.unsent(slot);
        table.unasked(slot, 0);
        table.unacknowledged(slot, 1, 0);
        assert_eq!(table.unopened(slot, 0), None);
    }
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

#[test]
fn a_request_is_sent_twice_at_most() {
    let mut table = ExchangeTable::new(HttpLimits { size: 2, ..LIMITS });
    table.add_origin(false).unwrap();
    let head = request_head("/", "h", &[]).unwrap();
    let send = |table: &mut ExchangeTable, token| table.send(token, 0, head.clone(), 0, 1000, 0).unwrap();
    for token in [1, 2] {
        send(&mut table, token);
    }
    let slots: Vec<u32> = table.take_actions().opens.iter().map(|(slot, _)| *slot).collect();
    for &slot in &slots {
        table.opened(slot, 0);
    }
    table.take_actions();
    for &slot in &slots {
        table.feed(slot, OK, 0);
    }
    table.settle(0);
    // Both connections are used now. Token 3 loses one, waits, and is sent on the other when that is free: again in vain.
    send(&mut table, 3);
    send(&mut table, 4);
    let writes = table.take_actions().writes;
    assert!(writes.iter().all(|write| write.used));
    table.eof(writes[0].slot, 0);
    assert!(table.take_failed().is_empty());
    table.feed(writes[1].slot, OK, 0);
    table.settle(0);
    assert_eq!(table.take_actions().writes, [Write { token: 3, ..writes[1] }]);
    table.eof(writes[1].slot, 0);
    let failed = table.take_failed();
    assert_eq!((failed[0].token, &failed[0].fault), (3, &Fault::NoAnswer));
    assert!(table.is_empty());
}

#[test]
fn what_nothing_asked_for_costs_the_connection() {
    let head = request_head("/", "h", &[]).unwrap();
    let more = [OK, b"x"].concat();
    for (first, later) in [(&more[..], None), (OK, Some(OK)), (OK, Some(&b"x"[..]))] {
        let mut table = ExchangeTable::new(LIMITS);
        table.add_origin(false).unwrap();
        table.send(1, 0, head.clone(), 0, 1000, 0).unwrap();
        let (slot, _) = table.take_actions().opens[0];
        table.opened(slot, 0);
        table.take_actions();
        table.feed(slot, first, 0);
        table.settle(0);
        assert_eq!(table.take_landed().len(), 1);
        if let Some(later) = later {
            assert!(table.take_actions().closes.is_empty());
            table.feed(slot, later, 0);
        }
        table.send(2, 0, head.clone(), 0, 1000, 0).unwrap();
        let actions = table.take_actions();
        assert_eq!((actions.closes, actions.writes.len(), actions.opens.len()), (vec![slot], 0, 1));
    }
}

#[test]
fn the_memory_of_an_answer_that_was_read_is_that_of_a_later_one() {
    let mut table = ExchangeTable::new(HttpLimits { largest: 1 << 20, ..LIMITS });
    table.add_origin(false).unwrap();
    let head = request_head("/", "h", &[]).unwrap();
    let mut places = Vec::new();
    for (token, len) in [(1, 200_000), (2, 60_000), (3, 300), (4, 90_000)] {
        table.send(token, 0, head.clone(), 0, 1000, 0).unwrap();
        if let Some(&(slot, _)) = table.take_actions().opens.first() {
            table.opened(slot, 0);
            table.take_actions();
        }
        let body = vec![b'0' + u8::try_from(token).unwrap(); len];
        let answer = [format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n").as_bytes(), &body].concat();
        let (first, rest) = answer.split_at(len / 3 * 2);
        table.feed(0, first, 0);
        table.feed(0, rest, 0);
        table.settle(0);
        let landed = table.take_landed().remove(0).answer.body;
        assert!(landed == body, "the answer to {token} has other bytes");
        places.push(landed.as_ptr());
        if token != 3 {
            table.recycle(landed);
        }
    }
    assert_eq!((places[1], places[3]), (places[0], places[0]));
}
