//! Lanes.

use std::hint::black_box;

use trunkline_core::{LanePlan, Lanes};

use crate::case::Case;

/// List the active lanes of 4,096 of which every other one has finished.
pub fn ones() -> Case {
    let lanes = halved(4096);
    let items = lanes.count();
    let (mut list, mut out) = (Vec::new(), vec![0u32; items]);
    let kernel = move || {
        list.clear();
        let _ = black_box(&lanes).ones_into(&mut list);
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

/// Columns of a row: 512 tokens.
const WIDTH: usize = 512;

/// Gather the rows of 128 active lanes out of 256.
pub fn gather() -> Case {
    let (plan, rows, mut out) = batch();
    let kernel = move || {
        let _ = black_box(plan.gather(black_box(&rows), &mut out, |cell| *cell));
        black_box(&out);
    };
    moved("copied token", 128, kernel)
}

/// Scatter the rows of 128 active lanes into 256, half of which are filled.
pub fn scatter() -> Case {
    let (plan, mut all, rows) = batch();
    let kernel = move || {
        let _ = black_box(plan.scatter(black_box(&rows), Some(0), &mut all, |cell| *cell));
        black_box(&all);
    };
    moved("written token", 256, kernel)
}

fn halved(len: usize) -> Lanes {
    let mut lanes = Lanes::new(len).unwrap_or_default();
    for lane in (1..len).step_by(2) {
        let _ = lanes.finish(lane);
    }
    lanes
}

/// A plan for half of 256 lanes, all rows, and the rows of the plan.
fn batch() -> (LanePlan, Vec<i64>, Vec<i64>) {
    (halved(256).plan().unwrap_or_default(), vec![7; 256 * WIDTH], vec![7; 128 * WIDTH])
}

fn moved(item: &'static str, rows: usize, kernel: impl FnMut() + 'static) -> Case {
    let items = rows * WIDTH;
    let (from, mut to) = (vec![7i64; items], vec![0i64; items]);
    let baseline = move || {
        to.copy_from_slice(black_box(&from));
        black_box(&to);
    };
    let (kernel, baseline) = (Box::new(kernel), Box::new(baseline));
    Case { item, items, floor: "memcpy of the same tokens", kernel, baseline }
}
