//! Rows end to end, without padding.

use super::loss::{Loss, gather, pieces};
use super::rows::{ExportRow, Hidden, PackedRows, RowPlan};
use super::tokens::ForestTokens;
use super::{Export, Fit, PackReport, afford, room};
use crate::error::Result;
use crate::storage::tokens::TokenBuffer;

/// Rows end to end: row i has the tokens `offsets[i]..offsets[i + 1]` of every column, as `cu_seqlens` says it elsewhere.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ragged {
    /// Where rows start; one more than rows.
    pub offsets: Vec<usize>,
    /// Token ids.
    pub ids: Vec<u32>,
    /// Place in the row, from 0.
    pub position_ids: Vec<u32>,
    /// 1 on what is trained.
    pub loss_mask: Vec<u8>,
    /// Log-probabilities, finite.
    pub logprobs: Vec<f32>,
    /// Weight versions, -1 where not sampled or not known.
    pub versions: Vec<i32>,
    /// Flags of the tokens.
    pub flags: Vec<u8>,
    /// Values, 0 where the loss mask is 0.
    pub advantages: Vec<f32>,
    /// What each row is.
    pub rows: PackedRows,
    /// What was left out.
    pub report: PackReport,
    hidden: Hidden,
}

impl Ragged {
    /// Pack rollouts one after the other.
    ///
    /// # Errors
    /// [`crate::Error::Length`] for a column of the wrong length; [`crate::Error::Value`] for a rollout, mask or split
    /// node that does not exist, a row beyond a limit, an unknown log-probability or a value that is not finite, where the
    /// options refuse them, and where there is no memory.
    pub fn new(runs: &ForestTokens<'_>, export: &Export<'_>, fit: &Fit) -> Result<Self> {
        let plan = RowPlan::new(runs, export, fit)?;
        let mut loss = Loss::new(runs, export.values, export.kept);
        let len: usize = plan.rows.iter().map(ExportRow::len).sum();
        // Bytes of the seven columns.
        afford(len.checked_mul(22))?;
        let mut out = Self {
            offsets: Vec::with_capacity(plan.rows.len() + 1),
            ids: room(len)?,
            position_ids: room(len)?,
            loss_mask: room(len)?,
            logprobs: room(len)?,
            versions: room(len)?,
            flags: room(len)?,
            advantages: room(len)?,
            rows: PackedRows::new(&plan, runs),
            report: plan.report,
            hidden: Hidden::default(),
        };
        let tokens = runs.tokens();
        let mut parts = Vec::new();
        out.offsets.push(0);
        for row in &plan.rows {
            pieces(runs, row, (row.from, row.to), &mut parts);
            let mut place = out.ids.len();
            for piece in &parts {
                loss.admit(runs, export, piece, &mut out.report)?;
                for &at in loss.changed_in(piece.run()) {
                    out.hidden.push(place + at - piece.from, tokens.logprobs[at], tokens.versions[at]);
                }
                place += piece.run().len();
                loss.push_mask(&mut out.loss_mask, piece);
                loss.push_values(&mut out.advantages, row.mean(), piece);
            }
            gather(&mut out.ids, tokens.ids, &parts);
            gather(&mut out.logprobs, &loss.logprobs, &parts);
            gather(&mut out.versions, tokens.versions, &parts);
            gather(&mut out.flags, tokens.flags, &parts);
            out.position_ids.extend(0..row.to - row.from);
            out.offsets.push(out.ids.len());
        }
        Ok(out)
    }

    /// The tokens of a row as the forest has them.
    ///
    /// # Errors
    /// [`crate::Error::Value`] if there is no such row.
    pub fn unpack(&self, row: usize) -> Result<TokenBuffer> {
        let row = self.rows.check(row)?;
        let range = self.offsets[row]..self.offsets[row + 1];
        let mut tokens = TokenBuffer {
            ids: self.ids[range.clone()].to_vec(),
            logprobs: self.logprobs[range.clone()].to_vec(),
            versions: self.versions[range.clone()].to_vec(),
            flags: self.flags[range.clone()].to_vec(),
        };
        self.hidden.restore(range, 0, &mut tokens);
        Ok(tokens)
    }
}
