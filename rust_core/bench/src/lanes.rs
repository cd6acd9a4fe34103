//! Lanes.

use std::hint::black_box;

use trunkline_core::Lanes;

use crate::case::Case;

/// List the active lanes of 4,096 of which every other one has finished.
pub fn ones() -> Case {
    let lanes = halved(4096);
    let items = lanes.count();
    let (mut list, mut out) = (Vec::new(), vec![0u32; items]);
    let kernel = move || {
        list.clear();
        black_box(&lanes).ones_into(&mut list);
        black_box(&list);
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

fn halved(len: usize) -> Lanes {
    let mut lanes = Lanes::default();
    for _ in 0..len {
        lanes.push();
    }
    for lane in (1..len).step_by(2) {
        let _ = lanes.finish(lane);
    }
    lanes
}
