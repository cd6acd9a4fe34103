//! Tokens: their columns (id, log-probability, weight version and flags, 13 bytes a token) in chunks that never move,
//! and the buffers in which they come and go.

use crate::error::{Error, Result};
use crate::storage::chunks::{Chunk, Chunks, Span};
use crate::storage::held;

/// Flag of a token that the model sampled.
pub const SAMPLED: u8 = 1;
/// Flag of a token that was not sampled and is in no text: put in by a template or a bridge between turns.
pub const SYNTHETIC: u8 = 2;
/// Flag of the last token of what was cut off.
pub const TRUNCATED: u8 = 4;

/// A run of tokens as four slices of one length.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TokenSlice<'a> {
    /// Token ids.
    pub ids: &'a [u32],
    /// Log-probabilities under the weights that sampled them, in nats; 0 where not sampled, NaN where not known.
    pub logprobs: &'a [f32],
    /// Weight version that sampled them; -1 where not known or not sampled.
    pub versions: &'a [i32],
    /// [`SAMPLED`], [`SYNTHETIC`], [`TRUNCATED`].
    pub flags: &'a [u8],
}

impl<'a> TokenSlice<'a> {
    /// Four slices that must have one length.
    ///
    /// # Errors
    /// [`Error::Length`] naming the column that differs from the ids.
    pub fn new(ids: &'a [u32], logprobs: &'a [f32], versions: &'a [i32], flags: &'a [u8]) -> Result<Self> {
        let need = ids.len();
        for (what, have) in
            [("log-probabilities", logprobs.len()), ("weight versions", versions.len()), ("flags", flags.len())]
        {
            if have != need {
                return Err(Error::Length { what, need, have });
            }
        }
        Ok(Self { ids, logprobs, versions, flags })
    }

    /// How many tokens.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.ids.len()
    }

    /// The first of them, as many as there are up to `most`.
    #[must_use]
    pub fn first(&self, most: usize) -> Self {
        let end = most.min(self.len());
        let Self { ids, logprobs, versions, flags } = *self;
        Self { ids: &ids[..end], logprobs: &logprobs[..end], versions: &versions[..end], flags: &flags[..end] }
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Whether every column holds what it may.
    ///
    /// # Errors
    /// [`Error::Value`] naming the first log-probability that is infinite, version below -1, or flag that does not exist.
    pub fn check(&self) -> Result<()> {
        if let Some(at) = first(self.logprobs, f32::is_infinite) {
            let value = format!("the log-probability of token {at} is {}", self.logprobs[at]);
            return Err(Error::range(value, "finite, or NaN where it is not known"));
        }
        if let Some(at) = first(self.versions, |version| version < -1) {
            let value = format!("the weight version of token {at} is {}", self.versions[at]);
            return Err(Error::range(value, "0 or more, or -1 where it is not known"));
        }
        if let Some(at) = first(self.flags, |flags| flags & !(SAMPLED | SYNTHETIC | TRUNCATED) != 0) {
            let value = format!("the flags of token {at} are {}", self.flags[at]);
            return Err(Error::range(value, "a sum of SAMPLED, SYNTHETIC and TRUNCATED"));
        }
        Ok(())
    }

    /// Whether the log-probability of a sampled token is not known.
    pub(crate) fn lacks_logprobs(&self) -> bool {
        let mut tokens = self.flags.iter().zip(self.logprobs);
        tokens.any(|(flags, logprob)| flags & SAMPLED != 0 && logprob.is_nan())
    }

    /// Whether two runs are alike to the last bit: a NaN equals itself, and 0 and -0 differ.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        let bits = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
        self.ids == other.ids
            && self.versions == other.versions
            && self.flags == other.flags
            && self.logprobs.iter().zip(other.logprobs).all(bits)
    }

    /// The tokens from `at` on.
    ///
    /// # Panics
    /// If `at` is beyond the end.
    #[must_use]
    pub fn after(&self, at: usize) -> Self {
        Self {
            ids: &self.ids[at..],
            logprobs: &self.logprobs[at..],
            versions: &self.versions[at..],
            flags: &self.flags[at..],
        }
    }
}

/// The first cell that is bad. There almost never is one, and looking at all without stopping is several times faster.
fn first<T: Copy>(cells: &[T], bad: impl Fn(T) -> bool) -> Option<usize> {
    let any = cells.iter().fold(false, |any, &cell| any | bad(cell));
    any.then(|| cells.iter().position(|&cell| bad(cell))).flatten()
}

/// Four columns that are filled side by side.
#[derive(Clone, Debug)]
struct Store {
    ids: Vec<u32>,
    logprobs: Vec<f32>,
    versions: Vec<i32>,
    flags: Vec<u8>,
}

impl Chunk for Store {
    fn with_capacity(len: usize) -> Self {
        Self {
            ids: Vec::with_capacity(len),
            logprobs: Vec::with_capacity(len),
            versions: Vec::with_capacity(len),
            flags: Vec::with_capacity(len),
        }
    }

    fn len(&self) -> usize {
        self.ids.len()
    }

    /// The columns were given one capacity, the allocator may have given more.
    fn capacity(&self) -> usize {
        let (a, b) = (self.ids.capacity(), self.logprobs.capacity());
        a.min(b).min(self.versions.capacity()).min(self.flags.capacity())
    }

    fn clear(&mut self) {
        self.ids.clear();
        self.logprobs.clear();
        self.versions.clear();
        self.flags.clear();
    }

    fn memory(&self) -> usize {
        held(&self.ids) + held(&self.logprobs) + held(&self.versions) + held(&self.flags)
    }
}

/// Append-only storage of tokens. What was stored stays where it is; a reset keeps the memory for the next tree.
#[derive(Clone, Debug)]
pub struct Columns {
    chunks: Chunks<Store>,
}

impl Default for Columns {
    fn default() -> Self {
        Self::new()
    }
}

impl Columns {
    /// None yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { chunks: Chunks::new() }
    }

    /// Store a copy of a run in one piece.
    ///
    /// # Errors
    /// [`Error::TooLong`] or [`Error::Full`] if no span can address it.
    pub fn push(&mut self, tokens: &TokenSlice<'_>) -> Result<Span> {
        let (store, span) = self.chunks.room("run of tokens", tokens.len())?;
        store.ids.extend_from_slice(tokens.ids);
        store.logprobs.extend_from_slice(tokens.logprobs);
        store.versions.extend_from_slice(tokens.versions);
        store.flags.extend_from_slice(tokens.flags);
        Ok(span)
    }

    /// The tokens of a span made here since the last reset.
    ///
    /// # Panics
    /// If the span is of other columns and out of bounds here.
    #[must_use]
    pub fn get(&self, span: Span) -> TokenSlice<'_> {
        let (store, range) = (self.chunks.of(span), span.range());
        TokenSlice {
            ids: &store.ids[range.clone()],
            logprobs: &store.logprobs[range.clone()],
            versions: &store.versions[range.clone()],
            flags: &store.flags[range],
        }
    }

    /// The ids of a span alone.
    ///
    /// # Panics
    /// Like [`Columns::get`].
    #[must_use]
    pub fn ids(&self, span: Span) -> &[u32] {
        &self.chunks.of(span).ids[span.range()]
    }

    /// Whether the span lies inside what was stored.
    #[must_use]
    pub fn holds(&self, span: Span) -> bool {
        self.chunks.holds(span)
    }

    /// Tokens stored.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Whether nothing is stored.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.chunks.len() == 0
    }

    /// Bytes that memory is held for.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.chunks.memory()
    }

    /// Forget everything and keep the memory. Spans made before are void.
    pub fn reset(&mut self) {
        self.chunks.reset();
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
    /// Tokens that were not sampled: a prompt or an observation.
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

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use proptest::prelude::*;

    use super::{Columns, SAMPLED, TokenSlice};
    use crate::error::Error;

    proptest! {
        #[test]
        fn columns_keep_what_they_are_given_where_they_put_it(
            lengths in prop::collection::vec(0usize..3000, 0..40),
        ) {
            let mut columns = Columns::default();
            let mut held = 0;
            for round in 0u32..3 {
                columns.reset();
                let mut placed = Vec::new();
                for (run, &len) in (0u32..).zip(&lengths) {
                    let ids: Vec<u32> = (0..len).map(|i| round ^ run << 16 ^ u32::try_from(i).unwrap()).collect();
                    let logprobs: Vec<f32> = ids.iter().map(|&id| -f32::from(u8::try_from(id % 251).unwrap())).collect();
                    let versions: Vec<i32> = ids.iter().map(|&id| i32::try_from(id % 7).unwrap() - 1).collect();
                    let flags = vec![SAMPLED; len];
                    let tokens = TokenSlice::new(&ids, &logprobs, &versions, &flags).unwrap();
                    let span = columns.push(&tokens).unwrap();
                    placed.push((span, columns.ids(span).as_ptr(), ids, logprobs, versions, flags));
                }
                for (span, pointer, ids, logprobs, versions, flags) in &placed {
                    let tokens = TokenSlice::new(ids, logprobs, versions, flags).unwrap();
                    prop_assert_eq!(columns.get(*span), tokens);
                    prop_assert!(columns.holds(*span));
                    prop_assert_eq!(columns.ids(*span).as_ptr(), *pointer, "a stored run moved");
                    let at = span.len() / 2;
                    let (head, tail) = span.split(u32::try_from(at).unwrap());
                    prop_assert_eq!((columns.ids(head), columns.get(tail)), (&ids[..at], tokens.after(at)));
                }
                prop_assert_eq!(columns.len(), lengths.iter().sum::<usize>());
                prop_assert!(round == 0 || columns.memory() == held, "reset columns asked for memory they had");
                held = columns.memory();
            }
        }
    }

    #[test]
    fn columns_hold_what_they_may() {
        let check = |logprob: f32, version: i32, flags: u8| {
            let (logprobs, versions, flags) = ([0.0, logprob], [0, version], [0, flags]);
            let tokens = TokenSlice::new(&[1, 2], &logprobs, &versions, &flags).unwrap();
            tokens.check().map_err(|error| error.to_string())
        };
        assert_eq!(check(f32::NAN, -1, 7), Ok(()));
        for (found, text) in [
            (check(f32::NEG_INFINITY, 0, 0), "the log-probability of token 1 is -inf"),
            (check(0.0, -2, 0), "the weight version of token 1 is -2"),
            (check(0.0, 0, 8), "the flags of token 1 are 8"),
        ] {
            assert!(found.unwrap_err().starts_with(text), "{text}");
        }
    }

    #[test]
    fn alike_is_alike_to_the_last_bit() {
        let same = |one: f32, other: f32| {
            let (one, other) = ([one], [other]);
            let tokens = |logprobs| TokenSlice { ids: &[1], logprobs, versions: &[0], flags: &[0] };
            tokens(&one).same(&tokens(&other))
        };
        assert!(same(f32::NAN, f32::NAN) && same(-0.5, -0.5));
        assert!(!same(0.0, -0.0) && !same(-0.5, f32::NAN));
        let base = TokenSlice { ids: &[1], logprobs: &[0.0], versions: &[3], flags: &[SAMPLED] };
        let others = [
            TokenSlice { ids: &[2], ..base },
            TokenSlice { versions: &[4], ..base },
            TokenSlice { flags: &[0], ..base },
        ];
        assert!(base.same(&base) && others.iter().all(|other| !base.same(other)));
    }

    #[test]
    fn columns_of_two_lengths_are_refused() {
        let found = TokenSlice::new(&[1, 2], &[0.0; 2], &[0], &[0; 2]);
        assert_eq!(found, Err(Error::Length { what: "weight versions", need: 2, have: 1 }));
    }
}
