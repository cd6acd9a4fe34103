//! The ready set and the ledger.

use std::collections::BTreeSet;
use std::hint::black_box;

use trunkline_core::{Amount, Bounds, Currency, Ledger, Scheduler, Work, WorkKind};

use crate::case::Case;

const TASKS: u32 = 1000;

/// Start one draw, settle it and end its rollout, with 1,000 tasks that always have more.
pub fn next() -> Case {
    let mut ledger = budget();
    let mut scheduler = busy();
    let mut step = move || {
        let scheduler = scheduler.as_mut()?;
        for start in scheduler.next(1, &mut ledger).starts {
            ledger.settle(start.reservation, &Amount::ZERO).ok()?;
            scheduler.done(start.rollout?).ok()?;
        }
        Some(())
    };
    let kernel = move || {
        black_box(step());
    };
    let mut queue: BTreeSet<(u128, u32)> = (0..TASKS).map(|task| (0, task)).collect();
    let baseline = move || {
        if let Some((start, task)) = queue.pop_first() {
            queue.insert((start + 1, task));
        }
    };
    case("start", "one step of an ordered set of the tasks", kernel, baseline)
}

fn busy() -> Option<Scheduler> {
    let mut scheduler = Scheduler::new(u32::MAX, 1).ok()?;
    for _ in 0..TASKS {
        let task = scheduler.add(1, u32::MAX).ok()?;
        let work = Work { kind: WorkKind::Draws, point: 0, first: 0, n: u32::MAX };
        scheduler.push(task, work, call()).ok()?;
    }
    Some(scheduler)
}

/// Reserve a call and settle it, with 512 in flight.
pub fn reserve() -> Case {
    let mut ledger = budget();
    for _ in 0..512 {
        let _ = ledger.reserve(&call());
    }
    let kernel = move || {
        if let Ok(reservation) = ledger.reserve(black_box(&call())) {
            let _ = ledger.settle(reservation, black_box(&Amount::ZERO));
        }
    };
    let mut held = Amount::ZERO;
    let baseline = move || {
        held = black_box(held).plus(&call().known());
        held = black_box(held).minus(&call().known());
    };
    case("reservation", "its amounts added and taken off", kernel, baseline)
}

fn budget() -> Ledger {
    Ledger::new(Amount::ZERO.with(Currency::Calls, u64::MAX).with(Currency::Generated, u64::MAX).into())
}

fn call() -> Bounds {
    Amount::ZERO.with(Currency::Calls, 1).with(Currency::Generated, 512).into()
}

fn case(
    item: &'static str,
    floor: &'static str,
    kernel: impl FnMut() + 'static,
    baseline: impl FnMut() + 'static,
) -> Case {
    Case { item, items: 1, floor, kernel: Box::new(kernel), baseline: Box::new(baseline) }
}
