//! Lanes: which of many rows are still active, one bit each. Termination is monotone: a lane that is out stays out.

use crate::error::{Error, Result};

const BITS: usize = u64::BITS as usize;

/// A set of lanes `0..len` that can only shrink.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lanes {
    // Bits at and above `len` are always zero.
    words: Vec<u64>,
    len: usize,
}

impl Lanes {
    /// `len` active lanes.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no memory for them.
    pub fn new(len: usize) -> Result<Self> {
        let mut words = Vec::new();
        words.try_reserve_exact(len.div_ceil(BITS)).map_err(|_| Error::Memory { len })?;
        words.resize(len / BITS, u64::MAX);
        if !len.is_multiple_of(BITS) {
            words.push((1 << (len % BITS)) - 1);
        }
        Ok(Self { words, len })
    }

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
        let words = self.words.iter().zip(&other.words).map(|(&left, &right)| op(left, right)).collect();
        Ok(Self { words, len: self.len })
    }

    /// Whether any lane is active.
    #[must_use]
    pub fn any(&self) -> bool {
        self.words.iter().any(|&word| word != 0)
    }

    /// How many lanes are active.
    #[must_use]
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Active lanes, ascending.
    #[must_use]
    pub fn ones(&self) -> Vec<usize> {
        let mut ones = Vec::with_capacity(self.count());
        for (base, &word) in (0..).step_by(BITS).zip(&self.words) {
            let mut rest = word;
            while rest != 0 {
                ones.push(base + rest.trailing_zeros() as usize);
                rest &= rest - 1;
            }
        }
        ones
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
