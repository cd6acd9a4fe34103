//! What of each run can be trained, and with which value.

use std::ops::Range;

use super::rows::ExportRow;
use super::tokens::{ForestTokens, sampled};
use super::{Export, PackReport, TokenValues, Unknown, narrow};
use crate::error::{Error, Result};

/// Values as they land, finite wherever something is trained and 0 elsewhere.
#[derive(Clone, Debug)]
pub(super) enum LossValues {
    /// None.
    Nothing,
    /// One a row.
    Row,
    /// One a node.
    Node(Vec<f32>),
    /// One a token, 0 where its mask is 0.
    Token(Vec<f32>),
}

/// Columns beside the tokens of the runs. They are worked out once a run, however many rows show it.
#[derive(Clone, Debug)]
pub(super) struct Loss {
    /// 1 on sampled tokens with a known log-probability.
    pub mask: Vec<u8>,
    /// Log-probabilities where the mask is 1, and 0 elsewhere.
    pub logprobs: Vec<f32>,
    pub values: LossValues,
    /// Tokens whose log-probability became another one; ascending, as the places below.
    changed: Vec<usize>,
    /// Sampled tokens whose log-probability is not known.
    unknown: Vec<usize>,
    /// Whether each of them is in the report.
    reported: Vec<bool>,
    /// Tokens whose mask is 1 and whose value is not a finite number.
    invalid: Vec<usize>,
}

impl Loss {
    /// Look through all runs. What is wrong with them matters where a row trains it: see [`Loss::admit`].
    pub(super) fn new(runs: &ForestTokens<'_>, values: TokenValues<'_>, kept: Option<&[u8]>) -> Self {
        let tokens = runs.tokens();
        let known = |(&flags, &logprob): (&u8, &f32)| u8::from(sampled(flags) & logprob.is_finite());
        let mut mask: Vec<u8> = tokens.flags.iter().zip(tokens.logprobs).map(known).collect();
        let logprobs: Vec<f32> =
            mask.iter().zip(tokens.logprobs).map(|(&mask, &logprob)| keep(mask, logprob)).collect();
        let other = |(at, (new, old)): (usize, (&f32, &f32))| (new.to_bits() != old.to_bits()).then_some(at);
        let changed: Vec<usize> = logprobs.iter().zip(tokens.logprobs).enumerate().filter_map(other).collect();
        let mut unknown: Vec<usize> = changed.iter().copied().filter(|&at| sampled(tokens.flags[at])).collect();
        if let Some(kept) = kept.and_then(|kept| kept_tokens(runs, values, kept)) {
            mask.iter_mut().zip(&kept).for_each(|(mask, kept)| *mask &= kept);
            unknown.retain(|&at| kept[at] == 1);
        }
        let (values, invalid) = narrowed(runs, values, &mask);
        Self { reported: vec![false; unknown.len()], mask, logprobs, values, changed, unknown, invalid }
    }

    /// Refuse what a row would train of a stretch and cannot, or count it where the options say so.
    pub(super) fn admit(
        &mut self,
        runs: &ForestTokens<'_>,
        export: &Export<'_>,
        piece: &RowPiece,
        report: &mut PackReport,
    ) -> Result<()> {
        if !piece.trained {
            return Ok(());
        }
        for place in within(&self.unknown, piece.run()) {
            if export.unknown == Unknown::Error {
                let at = self.unknown[place];
                let (token, logprob) = (at - runs.run(piece.node).start, runs.tokens().logprobs[at]);
                let value = format!("the log-probability of sampled token {token} of node {} is {logprob}", piece.node);
                return Err(Error::range(value, "finite, or masked by option"));
            }
            report.unknown += u64::from(!std::mem::replace(&mut self.reported[place], true));
        }
        let Some(&at) = self.invalid[within(&self.invalid, piece.run())].first() else { return Ok(()) };
        let value = match export.values {
            TokenValues::Node(values) => format!("node {} is {}", piece.node, values[piece.node as usize]),
            TokenValues::Token(values) => format!("token {at} is {}", values[at]),
            // Those of rollouts were checked with their rows.
            TokenValues::Nothing | TokenValues::Rollout(_) => return Ok(()),
        };
        let value = format!("the value of {value}");
        Err(Error::range(value, "a finite 32-bit float where something is trained"))
    }

    /// Append the loss mask of a stretch.
    pub(super) fn push_mask(&self, out: &mut Vec<u8>, piece: &RowPiece) {
        if piece.trained {
            out.extend_from_slice(&self.mask[piece.from..piece.to]);
        } else {
            out.resize(out.len() + piece.to - piece.from, 0);
        }
    }

    /// Append the values of a stretch of a row whose rollouts have this mean.
    pub(super) fn push_values(&self, out: &mut Vec<f32>, mean: f32, piece: &RowPiece) {
        let value = match &self.values {
            LossValues::Row => mean,
            LossValues::Node(values) => values[piece.node as usize],
            LossValues::Nothing | LossValues::Token(_) => 0.0,
        };
        let mask = &self.mask[piece.from..piece.to];
        match &self.values {
            LossValues::Token(values) if piece.trained => out.extend_from_slice(&values[piece.from..piece.to]),
            _ if piece.trained => out.extend(mask.iter().map(|&mask| keep(mask, value))),
            _ => out.resize(out.len() + mask.len(), 0.0),
        }
    }

    /// Tokens of a stretch whose log-probability became another one.
    pub(super) fn changed_in(&self, run: Range<usize>) -> &[usize] {
        &self.changed[within(&self.changed, run)]
    }
}

/// A stretch of one node's tokens that is in a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowPiece {
    pub node: u32,
    /// First token, of all runs.
    pub from: usize,
    /// End.
    pub to: usize,
    /// Whether the row trains what can be trained of it.
    pub trained: bool,
}

impl RowPiece {
    /// Its tokens.
    pub(super) const fn run(&self) -> Range<usize> {
        self.from..self.to
    }
}

/// The stretches that tokens `from..to` of a row's path consist of, root first.
pub(super) fn pieces(runs: &ForestTokens<'_>, row: &ExportRow, (from, to): (u32, u32), out: &mut Vec<RowPiece>) {
    out.clear();
    for node in runs.up(row.leaf) {
        let (run, end) = (runs.run(node), runs.end(node));
        if end <= from {
            break;
        }
        // Counted from the end of the run, which the path knows.
        let after = end.saturating_sub(to) as usize;
        let kept = (end - from) as usize;
        if after < run.len() {
            let first = run.end - kept.min(run.len());
            out.push(RowPiece { node, from: first, to: run.end - after, trained: row.trains(end) });
        }
    }
    out.reverse();
}

/// Append what a column has for these stretches.
pub(super) fn gather<T: Copy>(out: &mut Vec<T>, column: &[T], pieces: &[RowPiece]) {
    for piece in pieces {
        out.extend_from_slice(&column[piece.from..piece.to]);
    }
}

/// A value where the mask is 1, else 0.
pub(super) const fn keep(mask: u8, value: f32) -> f32 {
    if mask == 0 { 0.0 } else { value }
}

/// Which of these ascending places are in a run.
fn within(places: &[usize], run: Range<usize>) -> Range<usize> {
    let from = places.partition_point(|&at| at < run.start);
    from..from + places[from..].partition_point(|&at| at < run.end)
}

/// Per token whether its value is kept; nothing where values are of rollouts, which are masked instead.
fn kept_tokens(runs: &ForestTokens<'_>, values: TokenValues<'_>, kept: &[u8]) -> Option<Vec<u8>> {
    match values {
        TokenValues::Nothing | TokenValues::Rollout(_) => None,
        TokenValues::Token(_) => Some(kept.to_vec()),
        TokenValues::Node(_) => {
            let tokens = (0u32..).zip(kept).flat_map(|(node, &kept)| std::iter::repeat_n(kept, runs.run(node).len()));
            Some(tokens.collect())
        }
    }
}

/// Values as they land, and the tokens in the loss on which none can.
fn narrowed(runs: &ForestTokens<'_>, values: TokenValues<'_>, mask: &[u8]) -> (LossValues, Vec<usize>) {
    let mut invalid = Vec::new();
    let narrow_values = match values {
        TokenValues::Nothing => LossValues::Nothing,
        TokenValues::Rollout(_) => LossValues::Row,
        TokenValues::Node(values) => {
            let mut narrow_values: Vec<f32> = values.iter().map(|&value| narrow(value)).collect();
            for (node, value) in (0u32..).zip(&mut narrow_values).filter(|(_, value)| !value.is_finite()) {
                invalid.extend(runs.run(node).filter(|&at| mask[at] == 1));
                *value = 0.0;
            }
            LossValues::Node(narrow_values)
        }
        TokenValues::Token(values) => {
            let mut narrow_values: Vec<f32> =
                mask.iter().zip(values).map(|(&mask, &value)| keep(mask, narrow(value))).collect();
            for (at, value) in narrow_values.iter_mut().enumerate().filter(|(_, value)| !value.is_finite()) {
                invalid.push(at);
                *value = 0.0;
            }
            LossValues::Token(narrow_values)
        }
    };
    (narrow_values, invalid)
}
