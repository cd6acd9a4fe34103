//! Lanes: which of many rows are still active, one bit each. Termination is monotone: a lane that is out stays out.

pub mod activity;
mod bits;
pub mod plan;
pub mod queue;

use crate::error::{Error, Result};
use bits::Bits;
use plan::Plan;

/// A set of lanes `0..len` that can only shrink. It lists the first 2^32 of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lanes {
    bits: Bits,
    len: usize,
}

impl Lanes {
    /// `len` active lanes.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no memory for them.
    pub fn new(len: usize) -> Result<Self> {
        Ok(Self { bits: Bits::all(len)?, len })
    }

    /// Add an active lane after the last and return it.
    pub fn push(&mut self) -> usize {
        let lane = self.len;
        self.bits.push(lane);
        self.len += 1;
        lane
    }

    /// Take a lane out.
    ///
    /// # Errors
    /// [`Error::Lane`] if it does not exist, [`Error::LaneFinished`] if it is out already.
    pub fn finish(&mut self, lane: usize) -> Result<()> {
        self.expect(lane)?;
        self.bits.unset(lane);
        Ok(())
    }

    /// Take several lanes out, or none if one of them cannot be.
    ///
    /// # Errors
    /// As [`Lanes::finish`]; a lane that is named twice has finished already the second time.
    pub fn finish_all(&mut self, lanes: &[u32]) -> Result<()> {
        for (done, &lane) in lanes.iter().enumerate() {
            if let Err(error) = self.finish(lane as usize) {
                lanes[..done].iter().for_each(|&lane| self.bits.set(lane as usize));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Take out every lane whose place in a mask is not 0 and return how many that were. What is out already may be named
    /// again: a mask says who is done, not who has just finished.
    ///
    /// # Errors
    /// [`Error::Length`] if the mask does not have one place a lane.
    pub fn finish_where(&mut self, mask: &[u8]) -> Result<usize> {
        if mask.len() != self.len {
            return Err(Error::Length { what: "places of a mask of lanes", need: self.len, have: mask.len() });
        }
        let before = self.count();
        for (lane, _) in mask.iter().enumerate().filter(|(_, done)| **done != 0) {
            self.bits.unset(lane);
        }
        Ok(before - self.count())
    }

    /// Whether a lane is active.
    ///
    /// # Errors
    /// [`Error::Lane`] if it does not exist.
    pub fn active(&self, lane: usize) -> Result<bool> {
        if lane >= self.len {
            return Err(Error::Lane { lane, count: self.len });
        }
        Ok(self.bits.get(lane))
    }

    fn expect(&self, lane: usize) -> Result<()> {
        if self.active(lane)? { Ok(()) } else { Err(Error::LaneFinished { lane }) }
    }

    /// Lanes active in both sets.
    ///
    /// # Errors
    /// [`Error::LaneSizes`] if the sizes differ.
    pub fn and(&self, other: &Self) -> Result<Self> {
        self.combine(other, |left, right| left & right)
    }

    /// Lanes active here and not in `other`.
    ///
    /// # Errors
    /// [`Error::LaneSizes`] if the sizes differ.
    pub fn and_not(&self, other: &Self) -> Result<Self> {
        self.combine(other, |left, right| left & !right)
    }

    fn combine(&self, other: &Self, op: impl Fn(u64, u64) -> u64) -> Result<Self> {
        if self.len != other.len {
            return Err(Error::LaneSizes { left: self.len, right: other.len });
        }
        Ok(Self { bits: self.bits.combine(&other.bits, op), len: self.len })
    }

    /// Whether any lane is active.
    #[must_use]
    pub fn any(&self) -> bool {
        self.bits.any()
    }

    /// How many lanes are active.
    #[must_use]
    pub fn count(&self) -> usize {
        self.bits.count()
    }

    /// Active lanes, ascending.
    #[must_use]
    pub fn ones(&self) -> Vec<u32> {
        let mut ones = Vec::new();
        self.bits.list(self.count(), &mut ones);
        ones
    }

    /// Append the active lanes, ascending.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no memory for them.
    pub fn ones_into(&self, out: &mut Vec<u32>) -> Result<()> {
        let len = self.count();
        out.try_reserve(len).map_err(|_| Error::Memory { len })?;
        self.bits.list(len, out);
        Ok(())
    }

    /// The rows of the lanes that are active now.
    ///
    /// # Errors
    /// As [`Lanes::ones_into`].
    pub fn plan(&self) -> Result<Plan> {
        let mut lanes = Vec::new();
        self.ones_into(&mut lanes)?;
        Ok(Plan::of(lanes, self.len))
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
