//! One bit a lane.

use crate::error::{Error, Result};

const BITS: usize = u64::BITS as usize;

/// Bits in words. Whoever holds them knows how many lanes there are and asks for no other; bits beyond are zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    /// `len` bits, all of them unset.
    pub(super) fn none(len: usize) -> Result<Self> {
        zeros(len.div_ceil(BITS)).map(Self).map_err(|_| Error::Memory { len })
    }

    /// `len` bits, all of them set.
    pub(super) fn all(len: usize) -> Result<Self> {
        let mut bits = Self::none(len)?;
        bits.0.fill(u64::MAX);
        if let (Some(last), rest @ 1..) = (bits.0.last_mut(), len % BITS) {
            *last = (1 << rest) - 1;
        }
        Ok(bits)
    }

    /// Set the bit after the last of `len`.
    pub(super) fn push(&mut self, len: usize) {
        if len.is_multiple_of(BITS) {
            self.0.push(0);
        }
        self.set(len);
    }

    pub(super) fn set(&mut self, bit: usize) {
        self.0[bit / BITS] |= 1 << (bit % BITS);
    }

    pub(super) fn unset(&mut self, bit: usize) {
        self.0[bit / BITS] &= !(1 << (bit % BITS));
    }

    pub(super) fn get(&self, bit: usize) -> bool {
        self.0[bit / BITS] >> (bit % BITS) & 1 == 1
    }

    pub(super) fn combine(&self, other: &Self, op: impl Fn(u64, u64) -> u64) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(&left, &right)| op(left, right)).collect())
    }

    pub(super) fn any(&self) -> bool {
        self.0.iter().any(|&word| word != 0)
    }

    pub(super) fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Append the numbers of the set bits, ascending; `count` is how many they are.
    pub(super) fn list(&self, count: usize, out: &mut Vec<u32>) {
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
pub(super) fn zeros<T: Default + Clone>(len: usize) -> Result<Vec<T>> {
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(len).map_err(|_| Error::Memory { len })?;
    zeros.resize(len, T::default());
    Ok(zeros)
}
