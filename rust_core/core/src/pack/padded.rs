//! Rectangles: prompts padded on the left, responses on the right.

use super::loss::{Loss, RowPiece, gather, pieces};
use super::rows::{ExportRow, Hidden, PackedRows, RowPlan};
use super::tokens::ForestTokens;
use super::{Export, Fit, PackReport, afford, room};
use crate::error::Result;
use crate::storage::tokens::TokenBuffer;

/// Rows of one width. With B rows, prompts of width P and responses of width R, `input_ids`, `attention_mask`,
/// `position_ids` and `flags` are \[B, P+R\], and `response_mask`, `logprobs`, `versions` and `advantages` \[B, R\], all
/// row by row. P and R are the limits of [`Fit`], or where there are none the longest parts.
///
/// The arrays are those that verl's agent loop hands to its trainer (`agent_loop.py`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Padded {
    /// P.
    pub prompt_width: usize,
    /// R.
    pub response_width: usize,
    /// Token ids, the pad id beside them.
    pub input_ids: Vec<u32>,
    /// 1 on tokens, 0 on padding.
    pub attention_mask: Vec<u8>,
    /// How many tokens of the row are before this place: 0 on the left, and on the right the last token's.
    pub position_ids: Vec<u32>,
    /// Flags of the tokens, 0 on padding.
    pub flags: Vec<u8>,
    /// 1 on what is trained.
    pub response_mask: Vec<u8>,
    /// Log-probabilities, finite.
    pub logprobs: Vec<f32>,
    /// Weight versions, -1 where not sampled, not known, or padding.
    pub versions: Vec<i32>,
    /// Values, 0 where the response mask is 0.
    pub advantages: Vec<f32>,
    /// What each row is.
    pub rows: PackedRows,
    /// What was left out.
    pub report: PackReport,
    hidden: Hidden,
}

impl Padded {
    /// Pack rollouts into rectangles.
    ///
    /// # Errors
    /// As [`super::Ragged::new`].
    pub fn new(runs: &ForestTokens<'_>, export: &Export<'_>, fit: &Fit, pad: u32) -> Result<Self> {
        let plan = RowPlan::new(runs, export, fit)?;
        let mut loss = Loss::new(runs, export.values, export.kept);
        let widest = |limit: Option<u32>, of: &dyn Fn(&ExportRow) -> u32| {
            limit.unwrap_or_else(|| plan.rows.iter().map(of).max().unwrap_or(0)) as usize
        };
        let prompt_width = widest(fit.max_prompt, &|row| row.prompt - row.from);
        let response_width = widest(fit.max_response, &|row| row.to - row.prompt);
        let cells = |width: usize| plan.rows.len().saturating_mul(width);
        let (all, responses) = (cells(prompt_width + response_width), cells(response_width));
        // Bytes of the eight columns.
        afford(all.checked_mul(10).zip(responses.checked_mul(13)).and_then(|(all, of)| all.checked_add(of)))?;
        let mut out = Self {
            prompt_width,
            response_width,
            input_ids: room(all)?,
            attention_mask: room(all)?,
            position_ids: room(all)?,
            flags: room(all)?,
            response_mask: room(responses)?,
            logprobs: room(responses)?,
            versions: room(responses)?,
            advantages: room(responses)?,
            rows: PackedRows::new(&plan, runs),
            report: plan.report,
            hidden: Hidden::default(),
        };
        let (mut prompt, mut response) = (Vec::new(), Vec::new());
        for row in &plan.rows {
            pieces(runs, row, (row.from, row.prompt), &mut prompt);
            pieces(runs, row, (row.prompt, row.to), &mut response);
            response.iter().try_for_each(|piece| loss.admit(runs, export, piece, &mut out.report))?;
            out.hide(runs, &loss, row, [&prompt, &response]);
            out.push_wide(runs, row, [&prompt, &response], pad);
            out.push_response(runs, &loss, row, &response);
        }
        Ok(out)
    }

    /// Note what the arrays will not show of a row: all that a prompt has beside ids and flags, and log-probabilities
    /// that became others.
    fn hide(&mut self, runs: &ForestTokens<'_>, loss: &Loss, row: &ExportRow, [prompt, response]: [&[RowPiece]; 2]) {
        let tokens = runs.tokens();
        let mut place = self.input_ids.len() + self.prompt_width - (row.prompt - row.from) as usize;
        for piece in prompt {
            let odd = |at: &usize| tokens.logprobs[*at].to_bits() != 0 || tokens.versions[*at] != -1;
            for at in piece.run().filter(odd) {
                self.hidden.push(place + at - piece.from, tokens.logprobs[at], tokens.versions[at]);
            }
            place += piece.run().len();
        }
        for piece in response {
            for &at in loss.changed_in(piece.run()) {
                self.hidden.push(place + at - piece.from, tokens.logprobs[at], tokens.versions[at]);
            }
            place += piece.run().len();
        }
    }

    /// Append a row to the arrays of width P + R.
    fn push_wide(&mut self, runs: &ForestTokens<'_>, row: &ExportRow, parts: [&[RowPiece]; 2], pad: u32) {
        let (before, len) = (self.input_ids.len(), row.to - row.from);
        let start = before + self.prompt_width - (row.prompt - row.from) as usize;
        let (end, row_end) = (start + row.len(), before + self.width());
        self.input_ids.resize(start, pad);
        self.flags.resize(start, 0);
        for part in parts {
            gather(&mut self.input_ids, runs.tokens().ids, part);
            gather(&mut self.flags, runs.tokens().flags, part);
        }
        self.input_ids.resize(row_end, pad);
        self.flags.resize(row_end, 0);

        self.attention_mask.resize(start, 0);
        self.attention_mask.resize(end, 1);
        self.attention_mask.resize(row_end, 0);
        self.position_ids.resize(start, 0);
        self.position_ids.extend(0..len);
        self.position_ids.resize(row_end, len.saturating_sub(1));
    }

    /// Append a row to the arrays of width R.
    fn push_response(&mut self, runs: &ForestTokens<'_>, loss: &Loss, row: &ExportRow, response: &[RowPiece]) {
        let row_end = self.response_mask.len() + self.response_width;
        gather(&mut self.logprobs, &loss.logprobs, response);
        gather(&mut self.versions, runs.tokens().versions, response);
        for piece in response {
            loss.push_mask(&mut self.response_mask, piece);
            loss.push_values(&mut self.advantages, row.mean(), piece);
        }
        self.logprobs.resize(row_end, 0.0);
        self.versions.resize(row_end, -1);
        self.response_mask.resize(row_end, 0);
        self.advantages.resize(row_end, 0.0);
    }

    /// Tokens of a row, padding included: P + R.
    #[must_use]
    pub const fn width(&self) -> usize {
        self.prompt_width + self.response_width
    }

    /// The left part of `input_ids`: \[B, P\].
    ///
    /// # Errors
    /// [`crate::Error::Value`] where there is no memory for a copy.
    pub fn prompts(&self) -> Result<Vec<u32>> {
        self.part(0, self.prompt_width)
    }

    /// The right part of `input_ids`: \[B, R\].
    ///
    /// # Errors
    /// As [`Padded::prompts`].
    pub fn responses(&self) -> Result<Vec<u32>> {
        self.part(self.prompt_width, self.width())
    }

    /// Places `from..to` of every row of `input_ids`.
    fn part(&self, from: usize, to: usize) -> Result<Vec<u32>> {
        let mut part = room(self.rows.lengths.len() * (to - from))?;
        for row in self.input_ids.chunks_exact(self.width().max(1)) {
            part.extend_from_slice(&row[from..to]);
        }
        Ok(part)
    }

    /// The tokens of a row as the forest has them.
    ///
    /// # Errors
    /// [`crate::Error::Value`] if there is no such row.
    pub fn unpack(&self, row: usize) -> Result<TokenBuffer> {
        let row = self.rows.check(row)?;
        let (prompt, len) = (self.rows.prompt_lengths[row] as usize, self.rows.lengths[row] as usize);
        let start = row * self.width() + self.prompt_width - prompt;
        let places = start..start + len;
        let response = row * self.response_width..row * self.response_width + len - prompt;
        let mut tokens = TokenBuffer::given(self.input_ids[places.clone()].to_vec());
        tokens.flags.copy_from_slice(&self.flags[places.clone()]);
        tokens.logprobs[prompt..].copy_from_slice(&self.logprobs[response.clone()]);
        tokens.versions[prompt..].copy_from_slice(&self.versions[response]);
        self.hidden.restore(places, 0, &mut tokens);
        Ok(tokens)
    }
}
