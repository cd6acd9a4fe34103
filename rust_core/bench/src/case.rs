//! A kernel and the floor it is measured against, timed in turns.

use std::time::{Duration, Instant};

/// One thing to measure. Both closures do the same amount of work a call, and must not let the compiler drop it
/// ([`std::hint::black_box`]).
pub struct Case {
    /// What one item is: a token, a lane, a message.
    pub item: &'static str,
    /// Items a call.
    pub items: usize,
    /// What the floor does.
    pub floor: &'static str,
    /// The operation.
    pub kernel: Box<dyn FnMut()>,
    /// The least that any code would have to do.
    pub baseline: Box<dyn FnMut()>,
}

/// How long one measurement of one side takes at least.
const SLICE: Duration = Duration::from_millis(10);

/// A case with the number of calls that fill a slice of time.
pub struct Measure {
    case: Case,
    calls: [u32; 2],
}

impl Measure {
    /// Warm both sides up and find out how many calls fill a slice.
    pub fn new(mut case: Case) -> Self {
        let calls = [calibrate(&mut case.kernel), calibrate(&mut case.baseline)];
        Self { case, calls }
    }

    /// Nanoseconds a call of the kernel and of the floor, one after the other.
    pub fn round(&mut self) -> (f64, f64) {
        (time(&mut self.case.kernel, self.calls[0]), time(&mut self.case.baseline, self.calls[1]))
    }

    /// What is measured.
    pub const fn case(&self) -> &Case {
        &self.case
    }
}

fn calibrate(work: &mut dyn FnMut()) -> u32 {
    let mut calls = 1u32;
    loop {
        let start = Instant::now();
        (0..calls).for_each(|_| work());
        if start.elapsed() >= SLICE || calls >= 1 << 24 {
            return calls;
        }
        calls *= 2;
    }
}

fn time(work: &mut dyn FnMut(), calls: u32) -> f64 {
    let start = Instant::now();
    (0..calls).for_each(|_| work());
    start.elapsed().as_secs_f64() * 1e9 / f64::from(calls)
}
