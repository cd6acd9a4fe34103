//! What sharing saves, in tokens.

/// Tokens of all paths, shared ones counted for every path and counted once. `flat >= unique >= longest` always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reuse {
    /// Paths counted: inserted or forked.
    pub paths: u64,
    /// Tokens of every path, as if each were stored for itself.
    pub flat: u64,
    /// Tokens stored.
    pub unique: u64,
    /// Of `flat`, what was sampled.
    pub flat_generated: u64,
    /// Of `unique`, what was sampled.
    pub unique_generated: u64,
    /// Tokens of the longest path.
    pub longest: u64,
}

impl Reuse {
    /// The share of `flat` that did not have to be stored, `1 - unique / flat`; 0 where nothing is.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        1.0 - 1.0 / self.ideal()
    }

    /// How many times over the stored tokens are used, `flat / unique`: the most that work proportional to tokens can gain
    /// by sharing; 1 where nothing is stored.
    #[must_use]
    pub fn ideal(&self) -> f64 {
        quotient(self.flat, self.unique)
    }

    /// The same of sampled tokens only, which is what decoding costs.
    #[must_use]
    pub fn ideal_generated(&self) -> f64 {
        quotient(self.flat_generated, self.unique_generated)
    }

    /// The counts of two spaces as one.
    pub(super) fn plus(self, other: &Self) -> Self {
        Self {
            paths: self.paths + other.paths,
            flat: self.flat + other.flat,
            unique: self.unique + other.unique,
            flat_generated: self.flat_generated + other.flat_generated,
            unique_generated: self.unique_generated + other.unique_generated,
            longest: self.longest.max(other.longest),
        }
    }

    /// Count tokens that were stored.
    pub(super) const fn store(&mut self, run: Run) {
        self.unique += run.tokens;
        self.unique_generated += run.generated;
    }

    /// Count tokens that a path passes, and how deep it is now.
    pub(super) fn pass(&mut self, run: Run, depth: u64) {
        self.flat += run.tokens;
        self.flat_generated += run.generated;
        self.longest = self.longest.max(depth);
    }
}

#[expect(clippy::cast_precision_loss, reason = "a ratio")]
fn quotient(flat: u64, unique: u64) -> f64 {
    if unique == 0 { 1.0 } else { flat as f64 / unique as f64 }
}

/// Tokens of a run, and how many of them were sampled.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Run {
    pub(super) tokens: u64,
    pub(super) generated: u64,
}

impl Run {
    /// Both together.
    pub(super) const fn plus(self, other: Self) -> Self {
        Self { tokens: self.tokens + other.tokens, generated: self.generated + other.generated }
    }
}
