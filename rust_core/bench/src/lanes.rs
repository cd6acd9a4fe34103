//! Lanes.

use std::hint::black_box;

use trunkline_core::Lanes;

use crate::case::Case;

/// List the active lanes of 4,096 of which every other one has finished.
pub fn ones() -> Case {
    const LANES: usize = 4096;
    let mut lanes = Lanes::new(LANES).unwrap_or_default();
    for lane in (1..LANES).step_by(2) {
        let _ = lanes.finish(lane);
    }
    let items = lanes.count();
    let mut out = vec![0usize; items];
    let kernel = move || {
        black_box(black_box(&lanes).ones());
    };
    let baseline = move || {
        for (slot, lane) in black_box(&mut out).iter_mut().zip((0..).step_by(2)) {
            *slot = lane;
        }
        black_box(&out);
    };
    Case {
        item: "active lane",
        items,
        floor: "one store a lane",
        kernel: Box::new(kernel),
        baseline: Box::new(baseline),
    }
}
