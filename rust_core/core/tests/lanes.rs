//! Lanes against sets; what lanes do, and rows that wait for batches, against lists.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use proptest::prelude::*;
use trunkline_core::{ActivityCounter, BatchQueue, BatchRules, Error, Lanes};

proptest! {
    #[test]
    fn lanes_are_a_set_that_grows_at_its_end_and_else_shrinks(script in prop::collection::vec(0usize..300, 0..300)) {
        let (mut lanes, mut set, mut len) = (Lanes::default(), BTreeSet::new(), 0);
        for lane in script {
            if lane % 2 == 0 {
                prop_assert_eq!(lanes.push(), len);
                set.insert(u32::try_from(len).unwrap());
                len += 1;
            } else if lane >= len {
                prop_assert_eq!(lanes.finish(lane), Err(Error::Lane { lane, count: len }));
            } else if set.remove(&u32::try_from(lane).unwrap()) {
                prop_assert_eq!(lanes.finish(lane), Ok(()));
            } else {
                prop_assert_eq!(lanes.finish(lane), Err(Error::LaneFinished { lane }));
            }
        }
        let mut ones = vec![7];
        lanes.ones_into(&mut ones);
        prop_assert_eq!(&ones[1..], set.iter().copied().collect::<Vec<_>>());
        prop_assert_eq!((lanes.count(), lanes.len(), lanes.is_empty()), (set.len(), len, len == 0));
        for lane in 0..len {
            prop_assert_eq!(lanes.active(lane), Ok(set.contains(&u32::try_from(lane).unwrap())));
        }
        prop_assert_eq!(lanes.active(len), Err(Error::Lane { lane: len, count: len }));
    }
}

/// What a lane does, as a list of all lanes that ever were says it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Doing {
    Runs,
    Asks,
    Away,
    Ended,
}

proptest! {
    #[test]
    fn a_counter_says_what_a_list_of_all_lanes_says(script in prop::collection::vec((0usize..12, 0u16..8), 0..120)) {
        let mut counter = ActivityCounter::default();
        let mut model: Vec<(u64, Doing)> = Vec::new();
        for (which, what) in script {
            if model.is_empty() || what == 7 {
                let lane = counter.open().unwrap();
                prop_assert!(model.iter().all(|(known, _)| *known != lane), "a lane is given twice");
                model.push((lane, Doing::Runs));
            } else {
                let which = which % model.len();
                let (lane, before) = model[which];
                let (after, last) = match what {
                    0 | 1 => (Doing::Runs, counter.run(lane).map(|()| false)),
                    2 | 3 => (Doing::Away, counter.leave(lane)),
                    4 => (Doing::Ended, counter.end(lane)),
                    _ => (Doing::Asks, counter.ask(lane)),
                };
                let changed = before != Doing::Ended && before != after;
                if changed {
                    model[which].1 = after;
                }
                let still = model.iter().all(|(_, doing)| *doing != Doing::Runs);
                let told = changed && still && (before == Doing::Runs || after == Doing::Ended);
                prop_assert_eq!(last, Ok(told));
            }
            let count = |wanted: Doing| model.iter().filter(|(_, doing)| *doing == wanted).count();
            prop_assert_eq!(counter.running(), count(Doing::Runs));
            prop_assert_eq!(counter.away(), count(Doing::Away));
            prop_assert_eq!(counter.asking(), count(Doing::Asks));
        }
    }
}

#[test]
fn a_lane_that_was_never_opened_is_refused() {
    let mut counter = ActivityCounter::default();
    let lane = counter.open().unwrap();
    for unknown in [lane + 1, lane + (1 << 32), u64::MAX] {
        let text = format!("lane {unknown} was never opened; it must be one that open() gave");
        assert_eq!(counter.end(unknown).unwrap_err().to_string(), text);
        assert!(counter.ask(unknown).is_err() && counter.leave(unknown).is_err() && counter.run(unknown).is_err());
    }
    assert_eq!((counter.running(), counter.asking()), (1, 0));
}

/// A row of the model: its number, what it must share with others, its weight, when it came, and whether it is called.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    number: u64,
    key: (String, String, (u32, u32)),
    weight: u32,
    arrived: f64,
    called: bool,
}

/// The queue as one list, which is looked through for everything.
struct Model {
    rules: BatchRules,
    rows: Vec<Row>,
    free_since: f64,
}

impl Model {
    fn same(&self, one: &Row) -> Vec<Row> {
        self.rows.iter().filter(|row| row.key == one.key).cloned().collect()
    }

    fn full(&self, row: &Row) -> bool {
        self.same(row).iter().map(|row| u64::from(row.weight)).sum::<u64>() >= self.rules.most
    }

    fn due(&self, first: &Row, running: usize, away: usize) -> f64 {
        let since = first.arrived.max(self.free_since);
        match (first.called || self.full(first), running, away) {
            (true, ..) | (false, 0, 0) => since,
            (false, 0, _) => since + self.rules.away_wait.min(self.rules.max_wait),
            (false, ..) => since + self.rules.max_wait,
        }
    }

    fn next(&mut self, now: f64, calls: usize, running: usize, away: usize) -> (Vec<Vec<u64>>, Option<f64>) {
        let mut batches = Vec::new();
        while batches.len() < calls {
            let firsts = self.rows.iter().filter(|row| self.same(row)[0].number == row.number);
            let due = firsts.map(|row| (self.due(row, running, away), row.number, row.clone()));
            let Some((due, _, first)) =
                due.min_by(|left, right| (left.0, left.1).partial_cmp(&(right.0, right.1)).unwrap())
            else {
                break;
            };
            if due > now {
                return (batches, Some(due));
            }
            if running == 0 {
                let called: Vec<bool> =
                    self.rows.iter().map(|row| self.due(&self.same(row)[0], running, away) <= now).collect();
                self.rows.iter_mut().zip(called).for_each(|(row, called)| row.called = called);
            }
            let mut weight = 0;
            let same = self.same(&first);
            let batch: Vec<u64> = same
                .iter()
                .take_while(|row| {
                    weight += u64::from(row.weight);
                    weight <= self.rules.most || row.number == first.number
                })
                .map(|row| row.number)
                .collect();
            self.rows.retain(|row| !batch.contains(&row.number));
            self.rows.iter_mut().filter(|row| row.key == first.key).for_each(|row| row.called = false);
            batches.push(batch);
        }
        (batches, None)
    }
}

proptest! {
    #[test]
    fn batches_leave_as_a_list_of_rows_says(
        rules in (1u64..6, 0u8..4, 0u8..4, any::<bool>(), any::<bool>()),
        script in prop::collection::vec((0u8..8, 0u32..8, 0u32..4), 0..80),
    ) {
        let (most, max_wait, away_wait, fuse, regroup) = rules;
        let rules = BatchRules { most, max_wait: f64::from(max_wait), away_wait: f64::from(away_wait), fuse, regroup };
        let mut queue = BatchQueue::new(rules);
        let mut model = Model { rules, rows: Vec::new(), free_since: 0.0 };
        let (mut now, mut seen) = (0.0, BTreeSet::new());
        for (what, one, two) in script {
            match what {
                0..=3 => {
                    let (name, role, step) = (format!("m{}", one % 2), format!("r{}", one / 2 % 2), (one / 4, two % 2));
                    let number = u64::try_from(seen.len() + model.rows.len()).unwrap();
                    let key = (
                        name.clone(),
                        if fuse { String::new() } else { role.clone() },
                        if regroup { (0, 0) } else { step },
                    );
                    let called = model.rows.iter().any(|row| row.key == key && row.called);
                    model.rows.push(Row { number, key, weight: two, arrived: now, called });
                    prop_assert_eq!(queue.add(number, &name, &role, step, two, now), number);
                }
                4 => {
                    let numbers: Vec<u64> = (0..u64::from(two)).map(|more| u64::from(one) + more).collect();
                    let dropped: BTreeSet<u64> = queue.drop_rows(&numbers).into_iter().collect();
                    let known = model.rows.iter().map(|row| row.number).filter(|number| numbers.contains(number));
                    prop_assert_eq!(&dropped, &known.collect());
                    model.rows.retain(|row| !dropped.contains(&row.number));
                    seen.extend(dropped);
                }
                5 => {
                    queue.freed(now);
                    model.free_since = now;
                }
                _ => {
                    now += f64::from(one % 3);
                    let (calls, running, away) = (two as usize, (one as usize) / 4, (one as usize) % 2);
                    let found = queue.next(now, calls, running, away);
                    prop_assert_eq!(&found, &model.next(now, calls, running, away));
                    for number in found.0.into_iter().flatten() {
                        prop_assert!(seen.insert(number), "a row leaves twice");
                    }
                }
            }
            prop_assert_eq!(queue.is_empty(), model.rows.is_empty());
            prop_assert_eq!(queue.full(), model.rows.iter().any(|row| model.full(row)));
        }
        let rest: BTreeSet<u64> = queue.clear().into_iter().collect();
        prop_assert_eq!(rest, model.rows.iter().map(|row| row.number).collect());
        prop_assert!(queue.is_empty());
    }
}
