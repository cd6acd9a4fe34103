//! Which connections make way for others, against a model that looks at all connections each time.

use std::collections::HashSet;

use proptest::collection::vec;
use proptest::prelude::*;
use trunkline_core::http::{ExchangeTable, HttpLimits, Micros, request_head};

const SECOND: Micros = 1_000_000;
const FOREVER: Micros = 1 << 50;

#[derive(Clone, Copy, Debug)]
enum Event {
    New,
    Answered(usize),
    Wait(Micros),
}

fn event() -> impl Strategy<Value = Event> {
    let wait = prop::sample::select(&[100_000, 300_000, 1_200_000, 70 * SECOND][..]);
    prop_oneof![Just(Event::New), (0usize..30).prop_map(Event::Answered), wait.prop_map(Event::Wait)]
}

/// A connection with a request, as the model sees it.
#[derive(Clone, Copy, Debug)]
struct Seen {
    slot: u32,
    number: usize,
    sent: Micros,
    first: bool,
}

proptest! {
    #[test]
    fn connections_make_way_as_the_model_says(events in vec(event(), 0..60)) {
        let limits = HttpLimits {
            size: 99, largest: 1000, connect: FOREVER, accepted: FOREVER, keep: FOREVER, idle: FOREVER,
            patience: SECOND, crowded: 60 * SECOND,
        };
        let mut table = ExchangeTable::new(limits);
        table.add_origin(false).unwrap();
        let head = request_head("/", "h", &[]).unwrap();
        let (mut now, mut crowded, mut token) = (1, 0, 0);
        let mut there: Vec<Seen> = Vec::new();
        let mut overtaken = HashSet::new();
        for event in events {
            now += 1000;
            match event {
                Event::Wait(micros) => now += micros,
                Event::New => {
                    token += 1;
                    table.send(token, 0, head.clone(), 0, FOREVER, now).unwrap();
                    let slot = table.take_actions().opens[0].0;
                    table.opened(slot, now);
                    prop_assert_eq!(table.take_actions().writes.len(), 1);
                    there.push(Seen { slot, number: usize::try_from(token).unwrap(), sent: now, first: true });
                }
                Event::Answered(which) if !there.is_empty() => {
                    let place = which % there.len();
                    let one = there[place];
                    let unserved = |there: &[Seen], overtaken: &HashSet<usize>| -> Vec<Seen> {
                        there.iter().copied().filter(|one| one.first && !overtaken.contains(&one.number)).collect()
                    };
                    let before = unserved(&there, &overtaken);
                    if one.first {
                        there[place].first = false;
                        if before.iter().any(|other| other.number == one.number) {
                            overtaken.extend(before.iter().filter(|other| other.sent < one.sent).map(|other| other.number));
                        }
                    } else if before.first().is_some_and(|oldest| now - oldest.sent > SECOND && one.sent > oldest.sent) {
                        crowded = now + 60 * SECOND;
                    }
                    let closes = !unserved(&there, &overtaken).is_empty() && now < crowded;
                    table.feed(one.slot, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", now);
                    table.settle(now);
                    prop_assert_eq!(table.take_landed().len(), 1);
                    prop_assert_eq!(table.take_actions().closes.contains(&one.slot), closes);
                    if closes {
                        table.lost(one.slot, None, now);
                        there.remove(place);
                    } else {
                        token += 1;
                        table.send(token, 0, head.clone(), 0, FOREVER, now).unwrap();
                        prop_assert_eq!(table.take_actions().writes[0].slot, one.slot);
                        there[place].sent = now;
                    }
                }
                Event::Answered(_) => {}
            }
        }
    }
}
