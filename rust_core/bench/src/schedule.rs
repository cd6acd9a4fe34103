//! The ledger.

use std::hint::black_box;

use trunkline_core::{Amount, Bounds, Currency, Ledger};

use crate::case::Case;

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
    Case {
        item: "reservation",
        items: 1,
        floor: "its amounts added and taken off",
        kernel: Box::new(kernel),
        baseline: Box::new(baseline),
    }
}

fn budget() -> Ledger {
    Ledger::new(Amount::ZERO.with(Currency::Calls, u64::MAX).with(Currency::Generated, u64::MAX).into())
}

fn call() -> Bounds {
    Amount::ZERO.with(Currency::Calls, 1).with(Currency::Generated, 512).into()
}
