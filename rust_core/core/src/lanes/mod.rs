//! Lanes: which rollouts of a tree still grow, what each rollout of a run does, and the rows that wait for a batch engine.
//!
//! Termination is monotone: a lane that is out stays out.

pub mod activity;
pub mod batches;

use crate::error::{Error, Result};

/// A set of lanes `0..len` that can only shrink, one bit each. It lists the first 2^32 of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lanes {
    words: Vec<u64>,
    len: usize,
}

const BITS: usize = u64::BITS as usize;

impl Lanes {
    /// Add an active lane after the last and return it.
    pub fn push(&mut self) -> usize {
        let lane = self.len;
        if lane.is_multiple_of(BITS) {
            self.words.push(0);
        }
        self.words[lane / BITS] |= 1 << (lane % BITS);
        self.len += 1;
        lane
    }

    /// Take a lane out.
    ///
    /// # Errors
    /// [`Error::Lane`] if it does not exist, [`Error::LaneFinished`] if it is out already.
    pub fn finish(&mut self, lane: usize) -> Result<()> {
        if !self.active(lane)? {
            return Err(Error::LaneFinished { lane });
        }
        self.words[lane / BITS] &= !(1 << (lane % BITS));
        Ok(())
    }

    /// Whether a lane is active.
    ///
    /// # Errors
    /// [`Error::Lane`] if it does not exist.
    pub fn active(&self, lane: usize) -> Result<bool> {
        if lane >= self.len {
            return Err(Error::Lane { lane, count: self.len });
        }
        Ok(self.words[lane / BITS] >> (lane % BITS) & 1 == 1)
    }

    /// How many lanes are active.
    #[must_use]
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Append the active lanes, ascending.
    pub fn ones_into(&self, out: &mut Vec<u32>) {
        let (from, mut base) = (out.len(), 0u32);
        out.resize(from + self.count(), 0);
        let mut slots = &mut out[from..];
        for &word in &self.words {
            let mut rest = word;
            // A loop of known length into a slice of that length: half the time of pushing until `rest` is 0.
            let (now, later) = slots.split_at_mut(word.count_ones() as usize);
            for slot in now {
                *slot = base + rest.trailing_zeros();
                rest &= rest.wrapping_sub(1);
            }
            slots = later;
            base = base.wrapping_add(u64::BITS);
        }
    }

    /// How many lanes there are, active or not.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no lanes at all.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}
