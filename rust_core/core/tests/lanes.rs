//! Lanes against sets; gather and scatter against loops over rows; waiting lanes against lists.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::collections::BTreeSet;

use proptest::prelude::*;
use trunkline_core::{ActivityCounter, Error, LaneQueue, Lanes};

fn sorted(set: &BTreeSet<u32>) -> Vec<u32> {
    set.iter().copied().collect()
}

/// Lanes of a size with some finished, and the set they stand for.
fn lanes(len: u32, out: &[u32]) -> (Lanes, BTreeSet<u32>) {
    let (mut lanes, mut set) = (Lanes::new(len as usize).unwrap(), (0..len).collect::<BTreeSet<_>>());
    for &lane in out {
        let outcome = lanes.finish(lane as usize);
        if lane >= len {
            assert_eq!(outcome, Err(Error::Lane { lane: lane as usize, count: len as usize }));
        } else if set.remove(&lane) {
            assert_eq!(outcome, Ok(()));
        } else {
            assert_eq!(outcome, Err(Error::LaneFinished { lane: lane as usize }));
        }
    }
    (lanes, set)
}

fn numbers(bound: u32) -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0..bound, 0..250)
}

proptest! {
    #[test]
    fn lanes_are_a_set(len in 0u32..200, left in numbers(210), right in numbers(210)) {
        let ((one, ones), (two, twos)) = (lanes(len, &left), lanes(len, &right));
        prop_assert_eq!(one.ones(), sorted(&ones));
        prop_assert_eq!((one.count(), one.any(), one.len()), (ones.len(), !ones.is_empty(), len as usize));
        for lane in 0..len {
            prop_assert_eq!(one.active(lane as usize), Ok(ones.contains(&lane)));
        }
        prop_assert_eq!(one.and(&two).unwrap().ones(), sorted(&(&ones & &twos)));
        prop_assert_eq!(one.and_not(&two).unwrap().ones(), sorted(&(&ones - &twos)));
        prop_assert!(!one.and_not(&one).unwrap().any());
        prop_assert_eq!(one.and(&one).unwrap(), one.clone());
        let sizes = Error::LaneSizes { left: len as usize, right: len as usize + 1 };
        prop_assert_eq!(one.and(&Lanes::new(len as usize + 1).unwrap()), Err(sizes));
    }

    #[test]
    fn pushed_lanes_are_active(len in 0usize..200) {
        let mut grown = Lanes::default();
        for lane in 0..len {
            prop_assert_eq!(grown.push(), lane);
        }
        prop_assert_eq!(grown, Lanes::new(len).unwrap());
    }

    #[test]
    fn lanes_that_finish_together_do_so_all_or_none(len in 0u32..100, out in numbers(100), more in numbers(104)) {
        let (mut one, ones) = lanes(len, &out);
        let more = &more[..more.len().min(4)];
        let (mut each, mut outcome) = (one.clone(), Ok(()));
        for &lane in more {
            outcome = outcome.and_then(|()| each.finish(lane as usize));
        }
        let expected = if outcome.is_ok() { each } else { one.clone() };
        prop_assert_eq!(one.finish_all(more), outcome);
        prop_assert_eq!(&one, &expected);
        let mask: Vec<u8> = (0..len).map(|lane| u8::from(lane % 3 == 0) * 7).collect();
        let left: BTreeSet<u32> = sorted(&ones).into_iter().filter(|lane| lane % 3 != 0).collect();
        let (mut masked, _) = lanes(len, &out);
        prop_assert_eq!(masked.finish_where(&mask), Ok(ones.len() - left.len()));
        prop_assert_eq!(masked.ones(), sorted(&left));
        prop_assert_eq!(masked.finish_where(&mask), Ok(0));
        prop_assert!(masked.finish_where(&vec![0; len as usize + 1]).is_err());
    }

    #[test]
    fn what_is_gathered_scatters_back_and_nothing_else_is_read(
        len in 0u32..70,
        width in 0usize..5,
        out in numbers(70),
        fill in any::<i64>(),
    ) {
        let (lanes, set) = lanes(len, &out);
        let plan = lanes.plan().unwrap();
        let rows: Vec<Cell<u32>> = (0..len * u32::try_from(width).unwrap()).map(|_| Cell::new(0)).collect();
        let cell = |lane: u32, column: usize| i64::from(lane) * 100 + i64::try_from(column).unwrap();
        let source: Vec<(&Cell<u32>, i64)> =
            rows.iter().enumerate().map(|(i, seen)| (seen, cell(u32::try_from(i / width).unwrap(), i % width))).collect();
        let mut some = vec![0; set.len() * width];
        plan.gather(&source, &mut some, |(seen, cell)| {
            seen.set(seen.get() + 1);
            *cell
        }).unwrap();
        let expected: Vec<i64> = set.iter().flat_map(|&lane| (0..width).map(move |column| cell(lane, column))).collect();
        prop_assert_eq!(&some, &expected);
        for (i, seen) in rows.iter().enumerate() {
            prop_assert_eq!(seen.get(), u32::from(set.contains(&u32::try_from(i / width).unwrap())));
        }
        let mut all = vec![0; rows.len()];
        plan.scatter(&some, Some(fill), &mut all, |cell| *cell).unwrap();
        for (i, &found) in all.iter().enumerate() {
            let lane = u32::try_from(i / width).unwrap();
            prop_assert_eq!(found, if set.contains(&lane) { cell(lane, i % width) } else { fill });
            prop_assert_eq!(plan.valid().unwrap()[lane as usize], u8::from(set.contains(&lane)));
        }
    }

    #[test]
    fn waiting_lanes_are_flushed_as_a_list_says(
        len in 1usize..9,
        limits in prop::collection::vec(0u32..4, 1..4),
        script in prop::collection::vec((0usize..9, 0u32..6), 0..60),
    ) {
        let mut waiting = LaneQueue::new(len, &limits).unwrap();
        let mut model = vec![Place::Runs; len];
        for (lane, what) in script {
            let place = model.get(lane).copied().unwrap_or(Place::Out);
            if what == 5 {
                prop_assert_eq!(waiting.finish(lane).is_ok(), place != Place::Out);
                model.iter_mut().skip(lane).take(1).for_each(|place| *place = Place::Out);
            } else {
                let free = place == Place::Runs && (what as usize) < limits.len();
                prop_assert_eq!(waiting.wait(lane, what).is_ok(), free);
                if free {
                    model[lane] = Place::Waits(what);
                }
            }
            let found: Vec<(u32, Vec<u32>)> =
                waiting.flush().into_iter().map(|batch| (batch.queue, batch.plan.lanes().to_vec())).collect();
            prop_assert_eq!(found, flush(&mut model, &limits));
            prop_assert_eq!(waiting.running(), model.iter().filter(|place| **place == Place::Runs).count());
        }
    }
}

/// What a lane does, as a list of all lanes that ever were says it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Doing {
    Runs,
    Asks(u16),
    Away,
    Ended,
}

proptest! {
    #[test]
    fn a_roster_counts_what_a_list_of_all_lanes_says(script in prop::collection::vec((0usize..12, 0u16..8), 0..120)) {
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
                    queue => (Doing::Asks(queue), counter.ask(lane, queue)),
                };
                let changed = before != Doing::Ended && before != after;
                if changed {
                    model[which].1 = after;
                }
                let still = model.iter().all(|(_, doing)| *doing != Doing::Runs);
                let told = changed && still && (before == Doing::Runs || after == Doing::Ended);
                prop_assert_eq!(last, Ok(told));
            }
            let count = |wanted: fn(Doing) -> bool| model.iter().filter(|(_, doing)| wanted(*doing)).count();
            prop_assert_eq!(counter.running(), count(|doing| doing == Doing::Runs));
            prop_assert_eq!(counter.away(), count(|doing| doing == Doing::Away));
            prop_assert_eq!(counter.asking(), count(|doing| matches!(doing, Doing::Asks(_))));
            prop_assert_eq!(counter.asking_of(5), count(|doing| doing == Doing::Asks(5)));
            prop_assert_eq!(counter.asking_of(6), count(|doing| doing == Doing::Asks(6)));
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
        assert!(counter.ask(unknown, 0).is_err() && counter.leave(unknown).is_err() && counter.run(unknown).is_err());
    }
    assert_eq!((counter.running(), counter.asking_of(u16::MAX)), (1, 0));
}

#[derive(Clone, Copy, PartialEq)]
enum Place {
    Runs,
    Waits(u32),
    Out,
}

fn flush(model: &mut [Place], limits: &[u32]) -> Vec<(u32, Vec<u32>)> {
    let mut batches = Vec::new();
    let stuck = !model.contains(&Place::Runs);
    for (queue, &limit) in (0u32..).zip(limits) {
        let here = (0u32..).zip(model.iter()).filter(|(_, place)| **place == Place::Waits(queue));
        let lanes: Vec<u32> = here.map(|(lane, _)| lane).collect();
        let size = if limit == 0 { lanes.len().max(1) } else { limit as usize };
        let due = lanes.chunks(size).filter(|batch| stuck || batch.len() == limit as usize);
        batches.extend(due.map(|batch| (queue, batch.to_vec())));
    }
    for &lane in batches.iter().flat_map(|(_, lanes)| lanes) {
        model[lane as usize] = Place::Runs;
    }
    batches
}

#[test]
fn more_lanes_than_memory_is_an_error() {
    assert_eq!(Lanes::new(usize::MAX), Err(Error::Memory { len: usize::MAX }));
    assert_eq!(LaneQueue::new(usize::MAX, &[0]).unwrap_err(), Error::Memory { len: usize::MAX });
}
