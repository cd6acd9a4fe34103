//! Rows: which rollouts are exported, and which part of each.

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use std::ops::Range;
use xxhash_rust::xxh3::Xxh3DefaultBuilder;

use crate::error::{Error, Result};
use crate::id::{self, NONE};
use crate::pack::layout::Places;
use crate::pack::tokens::ForestTokens;
use crate::pack::{Export, Fit, Over, PackReport, TokenValues, narrow};
use crate::storage::tokens::TokenBuffer;

/// One row on its way. Places are tokens of its path.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExportRow {
    /// The rollout it stands for, or the first of them.
    pub rollout: u32,
    /// Its leaf.
    pub leaf: u32,
    /// How many rollouts it stands for.
    pub weight: u32,
    /// Whether nothing of it is trained.
    pub masked: bool,
    /// Sum of their values.
    pub value: f64,
    /// First token that is kept.
    pub from: u32,
    /// First token after the prompt.
    pub prompt: u32,
    /// End of what is kept.
    pub to: u32,
}

impl ExportRow {
    /// Tokens that are kept.
    pub(super) const fn len(&self) -> usize {
        (self.to - self.from) as usize
    }

    /// Whether its part of a node that ends at this token of the path is trained.
    pub(super) const fn trains(&self, end: u32) -> bool {
        !self.masked && end > self.prompt
    }

    /// Value of its tokens: the mean over its rollouts.
    pub(super) fn mean(&self) -> f32 {
        narrow(self.value / f64::from(self.weight))
    }
}

/// The rows of a flat layout. All columns but `rows` have one element a row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PackedRows {
    /// The rollout a row stands for, or the first of them.
    pub rollouts: Vec<u32>,
    /// How many rollouts a row stands for.
    pub weights: Vec<f32>,
    /// Tokens of the prompt that are in the row.
    pub prompt_lengths: Vec<u32>,
    /// Tokens that are in the row.
    pub lengths: Vec<u32>,
    /// Tokens of the prompt that were cut off on the left.
    pub cut_prompts: Vec<u32>,
    /// Tokens of the response that were cut off on the right.
    pub cut_responses: Vec<u32>,
    /// Per rollout of the forest its row; -1 where it has none.
    pub rows: Vec<i32>,
}

impl PackedRows {
    /// The columns of planned rows.
    pub(super) fn new(plan: &RowPlan, runs: &ForestTokens<'_>) -> Self {
        let column = |of: &dyn Fn(&ExportRow) -> u32| plan.rows.iter().map(of).collect::<Vec<u32>>();
        Self {
            rollouts: column(&|row| row.rollout),
            weights: plan.rows.iter().map(|row| narrow(f64::from(row.weight))).collect(),
            prompt_lengths: column(&|row| row.prompt - row.from),
            lengths: column(&|row| row.to - row.from),
            cut_prompts: column(&|row| row.from),
            cut_responses: column(&|row| runs.end(row.leaf) - row.to),
            rows: plan.row_of.clone(),
        }
    }

    /// The row of this number as an index.
    pub(super) fn check(&self, row: usize) -> Result<usize> {
        let want = "one of the rows that were packed";
        if row < self.lengths.len() { Ok(row) } else { Err(Error::reference(format!("row {row}"), want)) }
    }
}

/// The rows to write.
#[derive(Clone, Debug)]
pub(super) struct RowPlan {
    pub rows: Vec<ExportRow>,
    pub row_of: Vec<i32>,
    pub report: PackReport,
}

impl RowPlan {
    /// Choose rollouts and fit them into their limits.
    pub(super) fn new(runs: &ForestTokens<'_>, export: &Export<'_>, fit: &Fit) -> Result<Self> {
        check_lengths(runs, export)?;
        let rollouts = runs.forest().leaves().len();
        let splits = export.splits.map(|splits| (splits, Places::new(runs.forest().parents())));
        let (mut rows, mut row_of, mut report) = (Vec::new(), vec![-1; rollouts], PackReport::default());
        let mut known = HashMap::with_hasher(Xxh3DefaultBuilder);
        for rollout in chosen(export.rollouts, rollouts)? {
            let row = row(runs, export, splits.as_ref(), rollout)?;
            if row.masked && export.leave_out {
                report.left_out += 1;
                continue;
            }
            let Some(row) = fitted(row, fit, &mut report)? else { continue };
            row_of[rollout as usize] = i32::try_from(rows.len()).map_err(|_| Error::Full { what: "row" })?;
            if fit.merge {
                match known.entry((row.leaf, row.masked, row.prompt)) {
                    Entry::Vacant(place) => _ = place.insert(rows.len()),
                    Entry::Occupied(place) => {
                        let same: &mut ExportRow = &mut rows[*place.get()];
                        same.weight += 1;
                        same.value += row.value;
                        row_of[rollout as usize] = row_of[same.rollout as usize];
                        report.merged += 1;
                        continue;
                    }
                }
            }
            report.count_cuts(&row, runs.end(row.leaf));
            rows.push(row);
        }
        check_tokens(runs, &rows)?;
        Ok(Self { rows, row_of, report })
    }
}

impl PackReport {
    fn count_cuts(&mut self, row: &ExportRow, end: u32) {
        self.cut_prompts += u64::from(row.from > 0);
        self.cut_responses += u64::from(row.to < end);
        self.cut_tokens += u64::from(row.from) + u64::from(end - row.to);
    }
}

fn check_lengths(runs: &ForestTokens<'_>, export: &Export<'_>) -> Result<()> {
    let rollouts = runs.forest().leaves().len();
    let values = match export.values {
        TokenValues::Nothing if export.kept.is_some() => {
            return Err(Error::conflict("kept without values", "values too, one for each"));
        }
        TokenValues::Nothing => None,
        TokenValues::Rollout(values) => Some(("values of rollouts", rollouts, values.len())),
        TokenValues::Node(values) => Some(("values of nodes", runs.forest().parents().len(), values.len())),
        TokenValues::Token(values) => Some(("values of tokens", runs.tokens().len(), values.len())),
    };
    let kept = values.zip(export.kept).map(|((_, need, _), kept)| ("marks of kept values", need, kept.len()));
    let masked = export.masked.map(|masked| ("masks of rollouts", rollouts, masked.len()));
    let splits = export.splits.map(|splits| ("split nodes", rollouts, splits.len()));
    if let Some((what, need, have)) =
        values.into_iter().chain(kept).chain(masked).chain(splits).find(|(_, need, have)| need != have)
    {
        return Err(Error::Length { what, need, have });
    }
    match export.kept.and_then(|kept| kept.iter().position(|&kept| kept > 1).map(|at| (at, kept[at]))) {
        Some((at, mark)) => Err(Error::range(format!("the mark of kept value {at} is {mark}"), "0 or 1")),
        None => Ok(()),
    }
}

/// Refuse rows of a tree that has no tokens at all: nothing of it can be trained.
fn check_tokens(runs: &ForestTokens<'_>, rows: &[ExportRow]) -> Result<()> {
    let mut empty = rows.iter().filter(|row| !row.masked && runs.end(row.leaf) == 0).peekable();
    if empty.peek().is_none() {
        return Ok(());
    }
    let roots = runs.forest().roots();
    let mut known = vec![false; roots.len()];
    for (node, &root) in (0u32..).zip(&roots) {
        known[root as usize] |= !runs.run(node).is_empty();
    }
    match empty.find(|row| !known[roots[row.leaf as usize] as usize]) {
        None => Ok(()),
        Some(row) => {
            let value = format!("the tree of rollout {} has no token ids", row.rollout);
            Err(Error::conflict(value, "grown with LLM(..., tokens=TokenMode()), or its rollouts masked"))
        }
    }
}

/// The rollouts to export, each once.
fn chosen(rollouts: Option<&[u32]>, count: usize) -> Result<Vec<u32>> {
    let Some(rollouts) = rollouts else { return Ok((0..id::count(count)).collect()) };
    let mut seen = vec![false; count];
    for &rollout in rollouts {
        let value = || format!("rollout {rollout} of those to export");
        match seen.get_mut(rollout as usize) {
            None => return Err(Error::reference(value(), "a rollout of the forest")),
            Some(true) => return Err(Error::conflict(value() + " is there twice", "there once")),
            Some(new) => *new = true,
        }
    }
    Ok(rollouts.to_vec())
}

/// A rollout as a row of its own, whole.
fn row(
    runs: &ForestTokens<'_>,
    export: &Export<'_>,
    splits: Option<&(&[u32], Places)>,
    rollout: u32,
) -> Result<ExportRow> {
    let at = rollout as usize;
    let leaf = runs.forest().leaves()[at];
    let masked = match export.masked.map_or(0, |masked| masked[at]) {
        0 => false,
        1 => true,
        mask => {
            let value = format!("the mask of rollout {rollout} is {mask}");
            return Err(Error::range(value, "0 or 1"));
        }
    };
    let kept = !matches!(export.values, TokenValues::Rollout(_)) || export.kept.is_none_or(|kept| kept[at] == 1);
    let masked = masked || !kept;
    let value = match export.values {
        TokenValues::Rollout(values) if !masked => values[at],
        _ => 0.0,
    };
    if !narrow(value).is_finite() {
        let value = format!("the value of rollout {rollout} is {value}");
        return Err(Error::range(value, "a finite 32-bit float, or the rollout masked"));
    }
    let prompt = match splits.map(|(splits, places)| (splits[at], places)) {
        None | Some((NONE, _)) => runs.before_sampled(leaf),
        Some((split, places)) if places.is_above(split, leaf) => runs.end(split),
        Some((split, _)) => {
            let value = format!("the split node of rollout {rollout} is {split}");
            return Err(Error::reference(value, "a node on the rollout's path"));
        }
    };
    Ok(ExportRow { rollout, leaf, weight: 1, masked, value, from: 0, prompt, to: runs.end(leaf) })
}

/// A row within its limits, or none if it is dropped.
fn fitted(mut row: ExportRow, fit: &Fit, report: &mut PackReport) -> Result<Option<ExportRow>> {
    let parts = [
        (fit.max_prompt, fit.long_prompt, row.prompt, "prompt"),
        (fit.max_response, fit.long_response, row.to - row.prompt, "response"),
    ];
    // A row that is dropped for one part is not refused for the other.
    let over = |action| parts.iter().find(|(max, on, len, _)| *on == action && max.is_some_and(|max| *len > max));
    if over(Over::Drop).is_some() {
        report.dropped += 1;
        return Ok(None);
    }
    if let Some((max, _, len, part)) = over(Over::Error) {
        let value = format!("the {part} of rollout {} has {len} tokens", row.rollout);
        let limit = max.unwrap_or_default();
        return Err(Error::conflict(format!("{value} where {limit} fit"), "shorter, cut or dropped"));
    }
    row.from = row.prompt - row.prompt.min(fit.max_prompt.unwrap_or(u32::MAX));
    row.to = row.prompt + (row.to - row.prompt).min(fit.max_response.unwrap_or(u32::MAX));
    Ok(Some(row))
}

/// Log-probability and version of the few tokens that stand in a layout with others, by place in the layout.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Hidden {
    places: Vec<usize>,
    figures: Vec<(f32, i32)>,
}

impl Hidden {
    /// Note what a token had. Places ascend.
    pub(super) fn push(&mut self, place: usize, logprob: f32, version: i32) {
        self.places.push(place);
        self.figures.push((logprob, version));
    }

    /// Put back what the tokens at these places had; the first of them is token `start` of `tokens`.
    pub(super) fn restore(&self, places: Range<usize>, start: usize, tokens: &mut TokenBuffer) {
        let from = self.places.partition_point(|&place| place < places.start);
        let noted = self.places[from..].iter().zip(&self.figures[from..]);
        for (&place, &(logprob, version)) in noted.take_while(|(place, _)| **place < places.end) {
            let at = start + place - places.start;
            tokens.logprobs[at] = logprob;
            tokens.versions[at] = version;
        }
    }
}
