//! Lanes: which of many rows are still active, one bit each. Termination is monotone: a lane that is out stays out.

pub mod activity;
pub mod plan;
pub mod queue;

use crate::error::{Error, Result};
use crate::lanes::plan::LanePlan;

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

    /// Take out every lane whose place in a mask is not 0 and return how many that were. Lanes that are out already
    /// may be named again.
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
    pub fn plan(&self) -> Result<LanePlan> {
        let mut lanes = Vec::new();
        self.ones_into(&mut lanes)?;
        Ok(LanePlan::of(lanes, self.len))
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

const BITS: usize = u64::BITS as usize;

/// Bits in words. Whoever holds them knows how many lanes there are and asks for no other; bits beyond are zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Bits(Vec<u64>);

impl Bits {
    /// `len` bits, all of them unset.
    fn none(len: usize) -> Result<Self> {
        zeros(len.div_ceil(BITS)).map(Self).map_err(|_| Error::Memory { len })
    }

    /// `len` bits, all of them set.
    fn all(len: usize) -> Result<Self> {
        let mut bits = Self::none(len)?;
        bits.0.fill(u64::MAX);
        if let (Some(last), rest @ 1..) = (bits.0.last_mut(), len % BITS) {
            *last = (1 << rest) - 1;
        }
        Ok(bits)
    }

    /// Set the bit after the last of `len`.
    fn push(&mut self, len: usize) {
        if len.is_multiple_of(BITS) {
            self.0.push(0);
        }
        self.set(len);
    }

    fn set(&mut self, bit: usize) {
        self.0[bit / BITS] |= 1 << (bit % BITS);
    }

    fn unset(&mut self, bit: usize) {
        self.0[bit / BITS] &= !(1 << (bit % BITS));
    }

    fn get(&self, bit: usize) -> bool {
        self.0[bit / BITS] >> (bit % BITS) & 1 == 1
    }

    fn combine(&self, other: &Self, op: impl Fn(u64, u64) -> u64) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(&left, &right)| op(left, right)).collect())
    }

    fn any(&self) -> bool {
        self.0.iter().any(|&word| word != 0)
    }

    fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Append the numbers of the set bits, ascending; `count` is how many they are.
    fn list(&self, count: usize, out: &mut Vec<u32>) {
        let (from, mut base) = (out.len(), 0u32);
        out.resize(from + count, 0);
        let mut slots = &mut out[from..];
        for &word in &self.0 {
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
}

/// So many zeros, or an error where there is no memory for them.
fn zeros<T: Default + Clone>(len: usize) -> Result<Vec<T>> {
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(len).map_err(|_| Error::Memory { len })?;
    zeros.resize(len, T::default());
    Ok(zeros)
}
