//! Tokens on their way into a tree or a prefix index, and how sure the model was of them.

use crate::error::{Error, Result};
use crate::storage::columns::{SAMPLED, TokenSlice};

/// A part of a model turn for which uncertainty is told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Region {
    /// Between think tags.
    Think = 0,
    /// Between the tags of a tool call.
    Tool = 1,
    /// The whole turn.
    All = 2,
}

impl Region {
    /// Every region, in the order of the columns.
    pub const ALL: [Self; 3] = [Self::Think, Self::Tool, Self::All];

    /// The name that Python uses.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Think => "think",
            Self::Tool => "tool",
            Self::All => "all",
        }
    }
}

/// How uncertain a turn was, by region in the order of [`Region::ALL`]; NaN where a region has no token or no log-probs.
#[derive(Clone, Copy, Debug)]
pub struct Uncertainty {
    /// Mean entropy of a token, in nats.
    pub entropy: [f32; 3],
    /// Its exponential.
    pub perplexity: [f32; 3],
    /// What ARPO sums up over how the turn begins, before it is divided: see [`crate::reply::Arpo`].
    pub opening: f32,
}

impl Uncertainty {
    /// Nothing is known.
    pub const UNKNOWN: Self = Self { entropy: [f32::NAN; 3], perplexity: [f32::NAN; 3], opening: f32::NAN };

    /// Whether every figure is one that can be measured.
    ///
    /// # Errors
    /// [`Error::Value`] naming the first that is negative or infinite.
    pub fn check(&self) -> Result<()> {
        for (what, figures) in [("entropy", &self.entropy), ("perplexity", &self.perplexity)] {
            for (region, &figure) in Region::ALL.iter().zip(figures) {
                if figure < 0.0 || figure.is_infinite() {
                    let value = format!("the {what} of region {} is {figure}", region.as_str());
                    return Err(Error::Value { value, want: "0 or more and finite, or NaN where it is not known" });
                }
            }
        }
        if self.opening < 0.0 || self.opening.is_infinite() {
            let value = format!("the entropy of the opening is {}", self.opening);
            return Err(Error::Value { value, want: "0 or more and finite, or NaN where it is not known" });
        }
        Ok(())
    }

    /// Whether nothing is known.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.entropy.iter().chain(&self.perplexity).chain([&self.opening]).all(|figure| figure.is_nan())
    }
}

/// NaN equals NaN here: both say that a figure is not known.
impl PartialEq for Uncertainty {
    fn eq(&self, other: &Self) -> bool {
        let same = |(a, b): (&f32, &f32)| a == b || (a.is_nan() && b.is_nan());
        self.entropy.iter().zip(&other.entropy).all(same)
            && self.perplexity.iter().zip(&other.perplexity).all(same)
            && same((&self.opening, &other.opening))
    }
}

/// A run of tokens that owns its columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenBuffer {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Log-probabilities, as in [`TokenSlice::logprobs`].
    pub logprobs: Vec<f32>,
    /// Weight versions, as in [`TokenSlice::versions`].
    pub versions: Vec<i32>,
    /// Flags, as in [`TokenSlice::flags`].
    pub flags: Vec<u8>,
}

impl TokenBuffer {
    /// Tokens that nobody sampled: a prompt or an observation.
    #[must_use]
    pub fn given(ids: Vec<u32>) -> Self {
        let len = ids.len();
        Self { ids, logprobs: vec![0.0; len], versions: vec![-1; len], flags: vec![0; len] }
    }

    /// Tokens that the model sampled under the weights `version`, with their log-probabilities.
    ///
    /// # Errors
    /// [`crate::Error::Length`] if the two have different lengths.
    pub fn sampled(ids: Vec<u32>, logprobs: Vec<f32>, version: i32) -> Result<Self> {
        let len = ids.len();
        let all = Self { ids, logprobs, versions: vec![version; len], flags: vec![SAMPLED; len] };
        TokenSlice::new(&all.ids, &all.logprobs, &all.versions, &all.flags)?;
        Ok(all)
    }

    /// Append more tokens.
    pub fn extend(&mut self, more: &TokenSlice<'_>) {
        self.ids.extend_from_slice(more.ids);
        self.logprobs.extend_from_slice(more.logprobs);
        self.versions.extend_from_slice(more.versions);
        self.flags.extend_from_slice(more.flags);
    }

    /// These tokens and then others.
    pub(crate) fn followed_by(&self, more: Option<&TokenSlice<'_>>) -> Self {
        let mut whole = self.clone();
        if let Some(more) = more {
            whole.extend(more);
        }
        whole
    }

    /// The four columns as slices.
    #[must_use]
    pub fn as_slice(&self) -> TokenSlice<'_> {
        TokenSlice { ids: &self.ids, logprobs: &self.logprobs, versions: &self.versions, flags: &self.flags }
    }
}

impl From<TokenSlice<'_>> for TokenBuffer {
    fn from(tokens: TokenSlice<'_>) -> Self {
        let mut copy = Self::default();
        copy.extend(&tokens);
        copy
    }
}
