//! Amounts of what is budgeted, in eight currencies.

use crate::keyword::keywords;

keywords! {
    /// What a budget counts. Budgets are checked in this order.
    #[derive(PartialOrd, Ord, Hash)]
    #[repr(u8)]
    pub enum Currency as "currency", Kind {
        /// Rollouts started.
        Rollouts = "rollouts",
        /// Model calls.
        Calls = "calls",
        /// Prompt tokens.
        Prompt = "prompt",
        /// Generated tokens.
        Generated = "generated",
        /// Tokens of both kinds.
        Tokens = "tokens",
        /// Tool calls.
        Tools = "tools",
        /// Microseconds.
        Micros = "micros",
        /// Millionths of a dollar.
        MicroDollars = "micro_dollars",
    }
}

/// So much of each currency, in the order of [`Currency::ALL`]. Sums stay at 2^64 - 1 and differences at 0 instead of wrapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount(pub [u64; 8]);

impl Amount {
    /// Nothing.
    pub const ZERO: Self = Self([0; 8]);

    /// The same but for one currency.
    #[must_use]
    pub const fn with(mut self, currency: Currency, amount: u64) -> Self {
        self.0[currency as usize] = amount;
        self
    }

    /// How much of a currency.
    #[must_use]
    pub const fn get(&self, currency: Currency) -> u64 {
        self.0[currency as usize]
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.combine(other, u64::saturating_add)
    }

    /// What is left of it without `other`.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        self.combine(other, u64::saturating_sub)
    }

    /// `n` times as much.
    #[must_use]
    pub fn times(&self, n: u64) -> Self {
        Self(self.0.map(|amount| amount.saturating_mul(n)))
    }

    fn combine(&self, other: &Self, op: impl Fn(u64, u64) -> u64) -> Self {
        Self(std::array::from_fn(|index| op(self.0[index], other.0[index])))
    }
}

/// An upper bound of each currency in the order of [`Currency::ALL`], where there is one: what a ledger may spend, or the
/// most that something may cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds(pub [Option<u64>; 8]);

impl Bounds {
    /// No bound at all.
    pub const NONE: Self = Self([None; 8]);

    /// The same but for one currency.
    #[must_use]
    pub const fn with(mut self, currency: Currency, bound: Option<u64>) -> Self {
        self.0[currency as usize] = bound;
        self
    }

    /// The bound of a currency.
    #[must_use]
    pub const fn get(&self, currency: Currency) -> Option<u64> {
        self.0[currency as usize]
    }

    /// The bounds as amounts, 0 where there is none.
    #[must_use]
    pub fn known(&self) -> Amount {
        Amount(self.0.map(Option::unwrap_or_default))
    }
}

impl From<Amount> for Bounds {
    fn from(amount: Amount) -> Self {
        Self(amount.0.map(Some))
    }
}
