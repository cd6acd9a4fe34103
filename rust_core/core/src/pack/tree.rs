//! Rows of trees: what rollouts share stands once.

use crate::error::{Error, Result};
use crate::id::{self, NONE};
use crate::pack::layout::{Places, TreePart, first_fit_decreasing, parts};
use crate::pack::loss::{Loss, LossValues, RowPiece, keep};
use crate::pack::rows::{Hidden, RowPlan};
use crate::pack::tokens::ForestTokens;
use crate::pack::{Export, Fit, Oversize, PackReport, Weighting, afford, narrow, room};
use crate::storage::tokens::TokenBuffer;

/// Rows in which every token of a tree stands once, depth first. Row i has the tokens `offsets[i]..offsets[i + 1]`; all
/// places are counted from the row's first token. Trees in one row see nothing of one another.
///
/// Token j attends to token i of its row if and only if `i <= j < subtree_ends[i]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TreePacked {
    /// Where rows start; one more than rows.
    pub offsets: Vec<usize>,
    /// Token ids.
    pub ids: Vec<u32>,
    /// Tokens before it on its path: equal for siblings.
    pub position_ids: Vec<u32>,
    /// 1 on what is trained, by at least one rollout.
    pub loss_mask: Vec<u8>,
    /// What [`Weighting`] says, over the rollouts that train the token where the loss mask is 1, else over those that
    /// pass; 0 where it is repeated.
    pub weights: Vec<f32>,
    /// Values, 0 where the loss mask is 0; of rollouts the mean over those that train the token.
    pub advantages: Vec<f32>,
    /// Of rollouts the mean of their values above 0 (those below count as 0) over those that train the token; of nodes and
    /// tokens the value where it is above 0.
    pub gains: Vec<f32>,
    /// Log-probabilities, finite.
    pub logprobs: Vec<f32>,
    /// Weight versions, -1 where not sampled or not known.
    pub versions: Vec<i32>,
    /// Flags of the tokens.
    pub flags: Vec<u8>,
    /// The token before it on the path; -1 for none.
    pub parents: Vec<i32>,
    /// End of what is below the token.
    pub subtree_ends: Vec<u32>,
    /// What each stretch is.
    pub segments: Segments,
    /// Per rollout of the forest the row it is in; -1 where it is in none or has no tokens.
    pub rows: Vec<i32>,
    /// Per rollout of the forest its last segment, counted from the row's first; -1 likewise.
    pub last_segments: Vec<i32>,
    /// What was left out.
    pub report: PackReport,
    exported: Vec<bool>,
    hidden: Hidden,
}

impl TreePacked {
    /// Pack trees into rows of at most `max_tokens` tokens, or each into a row of its own.
    ///
    /// # Errors
    /// As [`super::Ragged::new`]; also [`Error::Value`] for a path, or unless `oversize` splits it a tree, beyond
    /// `max_tokens`.
    pub fn new(
        runs: &ForestTokens<'_>,
        export: &Export<'_>,
        weighting: Weighting,
        max_tokens: Option<u32>,
        oversize: Oversize,
    ) -> Result<Self> {
        let plan = RowPlan::new(runs, export, &Fit::default())?;
        let shares = Shares::new(runs, export, &plan);
        let mut loss = Loss::new(runs, export.values, export.kept);
        let mut gains = None;
        if let LossValues::Row = loss.values {
            loss.values = LossValues::Node(shares.means(&shares.values));
            gains = Some(shares.means(&shares.gains));
        }
        let (parents, leaves) = (runs.forest().parents(), runs.forest().leaves());
        let mut order = Places::new(parents).order();
        order.retain(|&node| shares.passes[node as usize] > 0 && !runs.run(node).is_empty());
        let roots = runs.forest().roots();
        // Places are also signed 32-bit numbers.
        let max = max_tokens.unwrap_or(u32::MAX).min(i32::MAX.cast_unsigned()) as usize;
        let parts = parts(runs, &roots, &order, max, oversize)?;
        let bins = match max_tokens {
            None => (0..parts.len()).map(|part| vec![part]).collect(),
            Some(_) => first_fit_decreasing(&parts.iter().map(|part| part.tokens).collect::<Vec<_>>(), max),
        };
        let mut out = Self::with_room(parts.iter().map(|part| part.tokens).sum())?;
        out.report = plan.report;
        let mut writer = Writer::new(runs, export, &shares, gains, &mut loss, weighting, &roots);
        for (row, bin) in (0i32..).zip(&bins) {
            for &part in bin {
                writer.push(&mut out, &order, &parts[part], row)?;
            }
            out.offsets.push(out.ids.len());
            out.segments.offsets.push(out.segments.nodes.len());
        }
        out.exported = plan.row_of.iter().map(|&row| row >= 0).collect();
        let home = |(&leaf, &exported): (&u32, &bool)| {
            let end = runs.full(leaf).filter(|_| exported);
            end.map_or((-1, -1), |end| writer.homes[end as usize])
        };
        (out.rows, out.last_segments) = leaves.iter().zip(&out.exported).map(home).unzip();
        Ok(out)
    }

    fn with_room(len: usize) -> Result<Self> {
        // Bytes of the eleven columns.
        afford(len.checked_mul(38))?;
        Ok(Self {
            offsets: vec![0],
            ids: room(len)?,
            position_ids: room(len)?,
            loss_mask: room(len)?,
            weights: room(len)?,
            advantages: room(len)?,
            gains: room(len)?,
            logprobs: room(len)?,
            versions: room(len)?,
            flags: room(len)?,
            parents: room(len)?,
            subtree_ends: room(len)?,
            segments: Segments { offsets: vec![0], ..Segments::default() },
            ..Self::default()
        })
    }

    /// The tokens of a rollout as the forest has them.
    ///
    /// # Errors
    /// [`Error::Value`] if the rollout was not packed.
    pub fn unpack(&self, rollout: usize) -> Result<TokenBuffer> {
        if self.exported.get(rollout) != Some(&true) {
            return Err(Error::reference(format!("rollout {rollout}"), "one of those that were packed"));
        }
        let mut tokens = TokenBuffer::default();
        let Ok(row) = usize::try_from(self.rows[rollout]) else { return Ok(tokens) };
        let first = self.segments.offsets[row];
        let parent = |segment: &usize| usize::try_from(self.segments.parents[first + segment]).ok();
        let path = std::iter::successors(usize::try_from(self.last_segments[rollout]).ok(), parent);
        for segment in path.collect::<Vec<_>>().into_iter().rev().map(|segment| first + segment) {
            let start = self.offsets[row] + self.segments.starts[segment] as usize;
            let range = start..start + (self.segments.ends[segment] - self.segments.starts[segment]) as usize;
            let known = tokens.ids.len();
            tokens.ids.extend_from_slice(&self.ids[range.clone()]);
            tokens.logprobs.extend_from_slice(&self.logprobs[range.clone()]);
            tokens.versions.extend_from_slice(&self.versions[range.clone()]);
            tokens.flags.extend_from_slice(&self.flags[range.clone()]);
            self.hidden.restore(range, known, &mut tokens);
        }
        Ok(tokens)
    }
}

/// Writes parts of trees, one after the other.
struct Writer<'a> {
    runs: &'a ForestTokens<'a>,
    export: &'a Export<'a>,
    shares: &'a Shares,
    /// Per node the mean of its rollouts' values above 0, where values are of rollouts.
    gains: Option<Vec<f32>>,
    loss: &'a mut Loss,
    weighting: Weighting,
    roots: &'a [u32],
    /// Per node the row and the segment in which it is not repeated.
    homes: Vec<(i32, i32)>,
    /// Per node its segment in the present part.
    here: Vec<i32>,
}

impl<'a> Writer<'a> {
    fn new(
        runs: &'a ForestTokens<'a>,
        export: &'a Export<'a>,
        shares: &'a Shares,
        gains: Option<Vec<f32>>,
        loss: &'a mut Loss,
        weighting: Weighting,
        roots: &'a [u32],
    ) -> Self {
        let nodes = roots.len();
        Self {
            runs,
            export,
            shares,
            gains,
            loss,
            weighting,
            roots,
            homes: vec![(-1, -1); nodes],
            here: vec![-1; nodes],
        }
    }

    /// Append a part to a row.
    fn push(&mut self, out: &mut TreePacked, order: &[u32], part: &TreePart, row: i32) -> Result<()> {
        let first = out.segments.nodes.len();
        for &node in &part.repeated {
            self.push_segment(out, node, true);
        }
        for &node in &order[part.nodes.clone()] {
            self.push_segment(out, node, false);
            self.homes[node as usize] = (row, self.here[node as usize]);
        }
        out.segments.close(first);
        (first..out.segments.nodes.len()).try_for_each(|segment| self.push_tokens(out, segment))
    }

    /// Append the segment of a node.
    fn push_segment(&mut self, out: &mut TreePacked, node: u32, repeated: bool) {
        let segments = &mut out.segments;
        let start = segments.end_of_row();
        self.here[node as usize] = segments.len_of_row();
        segments.nodes.push(node);
        segments.parents.push(self.runs.before(node).map_or(-1, |before| self.here[before as usize]));
        segments.rollouts.push(self.shares.passes[node as usize]);
        segments.repeated.push(u8::from(repeated));
        segments.starts.push(start);
        segments.ends.push(start + id::count(self.runs.run(node).len()));
    }

    /// Append the tokens of a segment.
    fn push_tokens(&mut self, out: &mut TreePacked, segment: usize) -> Result<()> {
        let node = out.segments.nodes[segment];
        let (tokens, run, end) = (self.runs.tokens(), self.runs.run(node), self.runs.end(node));
        let place = out.ids.len();
        for &at in self.loss.changed_in(run.clone()) {
            out.hidden.push(place + at - run.start, tokens.logprobs[at], tokens.versions[at]);
        }
        out.ids.extend_from_slice(&tokens.ids[run.clone()]);
        out.position_ids.extend(end - id::count(run.len())..end);
        out.logprobs.extend_from_slice(&self.loss.logprobs[run.clone()]);
        out.versions.extend_from_slice(&tokens.versions[run.clone()]);
        out.flags.extend_from_slice(&tokens.flags[run.clone()]);
        out.parents.push(out.segments.last_of_parent(segment));
        let (start, stop) = (out.segments.starts[segment], out.segments.ends[segment]);
        out.parents.extend(start.cast_signed()..stop.cast_signed() - 1);
        out.subtree_ends.resize(out.ids.len(), out.segments.subtree_ends[segment]);
        if out.segments.repeated[segment] == 1 {
            out.report.repeated += run.len() as u64;
            out.loss_mask.resize(out.ids.len(), 0);
            out.weights.resize(out.ids.len(), 0.0);
            out.advantages.resize(out.ids.len(), 0.0);
            out.gains.resize(out.ids.len(), 0.0);
            return Ok(());
        }
        self.push_loss(out, node)
    }

    /// Append what the loss makes of a node that is not repeated.
    fn push_loss(&mut self, out: &mut TreePacked, node: u32) -> Result<()> {
        let (run, place) = (self.runs.run(node), out.loss_mask.len());
        let (passes, trained) = (self.shares.passes[node as usize], self.shares.trained[node as usize]);
        let total = self.shares.passes[self.roots[node as usize] as usize];
        let piece = RowPiece { node, from: run.start, to: run.end, trained: trained > 0 };
        self.loss.admit(self.runs, self.export, &piece, &mut out.report)?;
        self.loss.push_mask(&mut out.loss_mask, &piece);
        // The values of nodes, or of tokens: those of rows have become means of nodes.
        self.loss.push_values(&mut out.advantages, 0.0, &piece);
        let gain = self.gains.as_ref().map(|gains| gains[node as usize]);
        let pushed = out.advantages[place..].iter().zip(&out.loss_mask[place..]);
        out.gains.extend(pushed.map(|(&value, &mask)| gain.map_or(value.max(0.0), |gain| keep(mask, gain))));
        let (in_loss, beside) = (self.weigh(trained, total), self.weigh(passes, total));
        out.weights.extend(out.loss_mask[place..].iter().map(|&mask| if mask == 1 { in_loss } else { beside }));
        Ok(())
    }

    fn weigh(&self, rollouts: u32, total: u32) -> f32 {
        match self.weighting {
            Weighting::Share => narrow(f64::from(rollouts) / f64::from(total)),
            Weighting::Once => 1.0,
            Weighting::Count => narrow(f64::from(rollouts)),
        }
    }
}

/// One segment of a row: the tokens of one node. Places are tokens of the row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Segments {
    /// Where the segments of rows start; one more than rows.
    pub offsets: Vec<usize>,
    /// The node whose tokens they are.
    pub nodes: Vec<u32>,
    /// First token.
    pub starts: Vec<u32>,
    /// End.
    pub ends: Vec<u32>,
    /// End of what is below it: tokens from its start to here see it.
    pub subtree_ends: Vec<u32>,
    /// The segment before it on the path, counted from the row's first; -1 for none.
    pub parents: Vec<i32>,
    /// Rollouts that pass through it.
    pub rollouts: Vec<u32>,
    /// 1 where another part of a split tree has trained it.
    pub repeated: Vec<u8>,
}

impl Segments {
    /// The first segment of the row that is being written.
    fn first(&self) -> usize {
        self.offsets.last().copied().unwrap_or_default()
    }

    /// Segments of the row that is being written.
    fn len_of_row(&self) -> i32 {
        id::count(self.nodes.len() - self.first()).cast_signed()
    }

    /// Tokens of the row that is being written.
    fn end_of_row(&self) -> u32 {
        if self.len_of_row() == 0 { 0 } else { self.ends.last().copied().unwrap_or_default() }
    }

    /// Work out where the subtrees of the segments from `first` on end.
    fn close(&mut self, first: usize) {
        let row = self.first();
        self.subtree_ends.extend_from_slice(&self.ends[first..]);
        for segment in (first..self.nodes.len()).rev() {
            if let Ok(parent) = usize::try_from(self.parents[segment]) {
                let end = self.subtree_ends[segment].max(self.subtree_ends[row + parent]);
                self.subtree_ends[row + parent] = end;
            }
        }
    }

    /// The last token of the segment before this one on the path; -1 for none.
    fn last_of_parent(&self, segment: usize) -> i32 {
        let row = self.first();
        let parent = usize::try_from(self.parents[segment]);
        parent.map_or(-1, |parent| self.ends[row + parent].cast_signed() - 1)
    }
}

/// Columns over nodes. They are sums from the leaves up, so that rollouts of any depth cost one step each.
#[derive(Clone, Debug)]
struct Shares {
    /// The rollouts that pass through a node or end there.
    pub passes: Vec<u32>,
    /// Those of them that train its sampled tokens.
    pub trained: Vec<u32>,
    /// Sum of the values of those.
    values: Vec<f64>,
    /// Sum of those of them that are above 0.
    gains: Vec<f64>,
}

impl Shares {
    fn new(runs: &ForestTokens<'_>, export: &Export<'_>, plan: &RowPlan) -> Self {
        let parents = runs.forest().parents();
        let (counts, figures) = (vec![0; parents.len()], vec![0.0; parents.len()]);
        let mut sums = Self { passes: counts.clone(), trained: counts, values: figures.clone(), gains: figures };
        // What ends at the last node of a given prompt. Elsewhere a prompt has nothing that could be trained.
        let (mut stopped, mut stopped_values) = (vec![0; parents.len()], vec![(0.0, 0.0); parents.len()]);
        for row in &plan.rows {
            sums.passes[row.leaf as usize] += 1;
            if row.masked {
                continue;
            }
            sums.trained[row.leaf as usize] += 1;
            sums.values[row.leaf as usize] += row.value;
            sums.gains[row.leaf as usize] += row.value.max(0.0);
            let split = export.splits.map(|splits| splits[row.rollout as usize]);
            if let Some(split) = split.filter(|&split| split != NONE) {
                let split = split as usize;
                stopped[split] += 1;
                stopped_values[split].0 += row.value;
                stopped_values[split].1 += row.value.max(0.0);
            }
        }
        for (node, &parent) in parents.iter().enumerate().rev() {
            sums.trained[node] -= stopped[node];
            sums.values[node] -= stopped_values[node].0;
            sums.gains[node] -= stopped_values[node].1;
            if node != parent as usize {
                sums.passes[parent as usize] += sums.passes[node];
                sums.trained[parent as usize] += sums.trained[node];
                sums.values[parent as usize] += sums.values[node];
                sums.gains[parent as usize] += sums.gains[node];
            }
        }
        sums
    }

    /// The mean of these sums over the rollouts that train a node.
    fn means(&self, sums: &[f64]) -> Vec<f32> {
        let mean = |(sum, &trained): (&f64, &u32)| narrow(sum / f64::from(trained.max(1)));
        sums.iter().zip(&self.trained).map(mean).collect()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::TreePacked;
    use crate::pack::{Export, Fit, ForestTokens, Oversize, Ragged, TokenValues, Weighting};
    use crate::storage::tokens::SAMPLED;
    use crate::{Forest, TokenBuffer};

    /// q -> A{A1, A2, A3}, B{B1{B1a, B1b}, B2}: a prompt of 20 tokens, 10 sampled ones a node.
    fn with_uneven_tree(test: impl Fn(&ForestTokens<'_>)) {
        let forest = Forest::new(vec![0, 0, 0, 1, 1, 1, 2, 2, 6, 6], vec![3, 4, 5, 8, 9, 7]).unwrap();
        let mut tokens = TokenBuffer::given((0..110).collect());
        tokens.flags[20..].fill(SAMPLED);
        let offsets: Vec<u64> = std::iter::once(0).chain((20..=110).step_by(10)).collect();
        test(&ForestTokens::new(&forest, &offsets, tokens.as_slice()).unwrap());
    }

    #[test]
    fn an_uneven_tree_has_the_known_sizes_shares_and_values() {
        with_uneven_tree(|runs| {
            let rewards = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0];
            let centred = rewards.map(|reward| reward - 0.5);
            let export = Export { values: TokenValues::Rollout(&centred), ..Export::default() };
            let tree = TreePacked::new(runs, &export, Weighting::Share, None, Oversize::Error).unwrap();
            let flat = Ragged::new(runs, &export, &Fit::default()).unwrap();
            assert_eq!((flat.ids.len(), tree.ids.len()), (260, 110));
            let sum: f32 = tree.weights.iter().sum();
            assert!((sum - 260.0 / 6.0).abs() < 1e-4, "{sum}");
            // The values of what is shared are V(s) - V(root): A, A1, A2, A3, B, B1, B1a, B1b, B2 after the prompt.
            let nodes: Vec<usize> = (20..110).step_by(10).collect();
            assert_eq!(tree.segments.nodes, [0, 1, 3, 4, 5, 2, 6, 8, 9, 7]);
            let near = |found: &[f32], want: [f32; 9]| {
                nodes.iter().zip(want).for_each(|(&at, want)| assert!((found[at] - want).abs() < 1e-5, "{at}: {want}"));
            };
            near(&tree.advantages, [-1.0 / 6.0, 0.5, -0.5, -0.5, 1.0 / 6.0, 0.5, 0.5, 0.5, -0.5]);
            let leaf = 1.0 / 6.0;
            near(&tree.weights, [0.5, leaf, leaf, leaf, 0.5, 1.0 / 3.0, leaf, leaf, leaf]);
        });
    }

    #[test]
    fn a_split_tree_repeats_ancestors_and_trains_them_once() {
        with_uneven_tree(|runs| {
            let pack = |max| TreePacked::new(runs, &Export::default(), Weighting::Share, max, Oversize::Split).unwrap();
            let (whole, split) = (pack(None), pack(Some(60)));
            assert_eq!(split.segments.nodes, [0, 1, 3, 4, 5, 0, 2, 6, 8, 9, 0, 2, 7]);
            // q before B; q and B before B2.
            assert_eq!(split.report.repeated, 20 + 30);
            assert_eq!(split.offsets, [0, 60, 120, 160]);
            let trained = |packed: &TreePacked| packed.loss_mask.iter().map(|&mask| u32::from(mask)).sum::<u32>();
            assert_eq!(trained(&split), trained(&whole));
        });
    }
}
