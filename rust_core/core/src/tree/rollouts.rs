//! The rollouts of a tree, as columns. Nodes merge, rollouts never do.

use hashbrown::HashTable;

use crate::error::{Finding, Result};
use crate::id::{NodeId, RolloutId};
use crate::lanes::Lanes;
use crate::storage::hash::{fingerprint_words, half};
use crate::storage::held;
use crate::storage::intern::Pool;
use crate::tree::termination::Termination;

/// Usage: counts, which come in a fixed order, and times. Nothing else names all of its fields.
macro_rules! usage {
    (
        counts { $($(#[$count_doc:meta])* $count:ident,)+ }
        times { $($(#[$time_doc:meta])* $time:ident,)+ }
    ) => {
        /// What a rollout's own calls cost, whether their nodes merged or not.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Usage {
            $($(#[$count_doc])* pub $count: u64,)+
            $($(#[$time_doc])* pub $time: u64,)+
        }

        impl Usage {
            /// All but the times, in the order of the fields.
            #[must_use]
            pub const fn counts(&self) -> [u64; 11] {
                [$(self.$count),+]
            }

            /// Count more. A counter that a hostile delta drives to its end stays there instead of wrapping.
            fn add(&mut self, more: &Self) {
                $(self.$count = self.$count.saturating_add(more.$count);)+
                $(self.$time = self.$time.saturating_add(more.$time);)+
            }
        }
    };
}

usage! {
    counts {
        /// Model calls that gave a reply.
        calls,
        /// Prompt tokens, cached ones included.
        prompt,
        /// Prompt tokens the server had cached.
        cached,
        /// Completion tokens.
        generated,
        /// Calls whose reply lacked a figure.
        unreported,
        /// Attempts beyond the first.
        retries,
        /// Tool calls.
        tools,
        /// Tool calls that failed.
        tool_errors,
        /// Turns whose prompt drifted and whose path was kept.
        bridged,
        /// Turns whose prompt drifted and replaced the rest of the path.
        realigned,
        /// Turns whose prompt drifted and began a sample of its own.
        forked,
    }
    times {
        /// Wall time of the model calls, in microseconds.
        llm_micros,
        /// Wall time of the tool calls, in microseconds.
        tool_micros,
    }
}

/// How a rollout ended.
#[derive(Clone, Debug)]
struct Ending {
    termination: Termination,
    answer: Option<Box<str>>,
    error: Option<Box<str>>,
}

/// What is kept of a rollout beside its fork path.
#[derive(Clone, Debug)]
struct RolloutRow {
    point: NodeId,
    leaf: NodeId,
    subgroup: u32,
    reward: f64,
    ending: Option<Ending>,
    note: Option<Box<str>>,
    usage: Usage,
}

/// The rollouts. A rollout's lane is its id.
#[derive(Clone, Debug)]
pub(crate) struct Rollouts {
    // Fork paths are unique, so a path's number in the pool is its rollout's id.
    paths: Pool<u32>,
    // Of the rollouts whose fork paths differ in the last number alone, the one with the greatest.
    last_draws: HashTable<u32>,
    rows: Vec<RolloutRow>,
    growing: Lanes,
}

impl Rollouts {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self { paths: Pool::new("rollout"), last_draws: HashTable::new(), rows: Vec::new(), growing: Lanes::default() }
    }

    /// Forget every rollout and keep the memory.
    pub(crate) fn reset(&mut self) {
        self.paths.reset();
        self.last_draws.clear();
        self.rows.clear();
        self.growing = Lanes::default();
    }

    /// The rollout with a fork path, if there is one.
    pub(crate) fn find(&self, path: &[u32]) -> Option<RolloutId> {
        self.paths.find(path, fingerprint_words(path)).map(RolloutId::new)
    }

    /// Open a rollout whose path [`Rollouts::find`] does not know.
    pub(crate) fn open(&mut self, point: NodeId, path: &[u32], subgroup: u32) -> Result<RolloutId> {
        let id = self.paths.insert(path, fingerprint_words(path))?;
        if self.rows.is_empty() {
            // Most trees of a run with thousands of tasks have one.
            self.rows.reserve_exact(1);
        }
        let (reward, usage) = (f64::NAN, Usage::default());
        self.rows.push(RolloutRow { point, leaf: point, subgroup, reward, ending: None, note: None, usage });
        self.growing.push();
        self.index_draw(RolloutId::new(id));
        Ok(RolloutId::new(id))
    }

    /// Take a new rollout for the last draw of its fork point, if it is.
    fn index_draw(&mut self, id: RolloutId) {
        let Self { paths, last_draws, .. } = self;
        let path = |id: u32| paths.get(id).split_last();
        let stem = |id: u32| path(id).map(|(_, stem)| stem);
        let hash = |id: u32| half(fingerprint_words(stem(id).unwrap_or_default()));
        let id = id.get();
        if path(id).is_none() {
            return;
        }
        match last_draws.find_mut(hash(id), |&known| stem(known) == stem(id)) {
            Some(known) if path(*known) < path(id) => *known = id,
            Some(_) => (),
            None => {
                last_draws.insert_unique(hash(id), id, |&known| hash(known));
            }
        }
    }

    /// A fork path without its draw.
    fn stem(&self, id: u32) -> Option<&[u32]> {
        self.paths.get(id).split_last().map(|(_, stem)| stem)
    }

    /// The rollout with the greatest draw among those whose fork paths are `stem` and a draw.
    pub(crate) fn last_draw(&self, stem: &[u32]) -> Option<RolloutId> {
        let found = self.last_draws.find(half(fingerprint_words(stem)), |&known| self.stem(known) == Some(stem));
        found.copied().map(RolloutId::new)
    }

    /// Move a leaf one node down and count what that cost.
    pub(crate) fn advance(&mut self, id: RolloutId, leaf: NodeId, cost: &Usage) {
        let row = &mut self.rows[id.index()];
        row.leaf = leaf;
        row.usage.add(cost);
    }

    /// End a rollout that grows, or note of one that has ended that it was retried; its answer and error stay.
    pub(crate) fn close(
        &mut self,
        id: RolloutId,
        termination: Termination,
        answer: Option<&str>,
        error: Option<&str>,
    ) -> Result<()> {
        if let (Termination::Retried, Some(ending)) = (termination, &mut self.rows[id.index()].ending) {
            ending.termination = termination;
            return Ok(());
        }
        self.growing.finish(id.index())?;
        let ending = Ending { termination, answer: answer.map(Into::into), error: error.map(Into::into) };
        self.rows[id.index()].ending = Some(ending);
        Ok(())
    }

    /// Set a reward; every NaN becomes the same one, so that digests agree.
    pub(crate) fn score(&mut self, id: RolloutId, reward: f64) {
        self.rows[id.index()].reward = if reward.is_nan() { f64::NAN } else { reward };
    }

    /// Write a note on a rollout, in the place of the one before; an empty one is none.
    pub(crate) fn note(&mut self, id: RolloutId, text: &str) {
        self.rows[id.index()].note = (!text.is_empty()).then(|| text.into());
    }

    pub(crate) fn count(&self) -> u32 {
        self.paths.count()
    }

    /// Every rollout, in the order they were opened.
    pub(crate) fn ids(&self) -> impl Iterator<Item = RolloutId> + use<> {
        (0..self.count()).map(RolloutId::new)
    }

    pub(crate) fn path(&self, id: RolloutId) -> &[u32] {
        self.paths.get(id.get())
    }

    /// The last number of the fork path.
    pub(crate) fn draw(&self, id: RolloutId) -> u32 {
        self.path(id).last().copied().unwrap_or(0)
    }

    pub(crate) fn point(&self, id: RolloutId) -> NodeId {
        self.rows[id.index()].point
    }

    pub(crate) fn leaf(&self, id: RolloutId) -> NodeId {
        self.rows[id.index()].leaf
    }

    pub(crate) fn subgroup(&self, id: RolloutId) -> u32 {
        self.rows[id.index()].subgroup
    }

    pub(crate) fn termination(&self, id: RolloutId) -> Option<Termination> {
        self.rows[id.index()].ending.as_ref().map(|ending| ending.termination)
    }

    /// Whether a rollout grows, or was cut off where it could have grown on.
    pub(crate) fn may_go_on(&self, id: RolloutId) -> bool {
        matches!(self.termination(id), None | Some(Termination::Censored | Termination::Cancelled))
    }

    pub(crate) fn answer(&self, id: RolloutId) -> Option<&str> {
        self.rows[id.index()].ending.as_ref()?.answer.as_deref()
    }

    pub(crate) fn error(&self, id: RolloutId) -> Option<&str> {
        self.rows[id.index()].ending.as_ref()?.error.as_deref()
    }

    pub(crate) fn reward(&self, id: RolloutId) -> f64 {
        self.rows[id.index()].reward
    }

    pub(crate) fn noted(&self, id: RolloutId) -> Option<&str> {
        self.rows[id.index()].note.as_deref()
    }

    pub(crate) fn usage(&self, id: RolloutId) -> &Usage {
        &self.rows[id.index()].usage
    }

    /// The lanes of the rollouts that have not ended.
    pub(crate) const fn growing(&self) -> &Lanes {
        &self.growing
    }

    /// Bytes that memory is held for.
    pub(crate) fn memory(&self) -> usize {
        let texts =
            |ending: &Ending| [&ending.answer, &ending.error].into_iter().flatten().map(|text| text.len()).sum();
        let said: usize = self.rows.iter().filter_map(|row| row.ending.as_ref()).map::<usize, _>(texts).sum();
        let noted: usize = self.rows.iter().filter_map(|row| row.note.as_ref()).map(|text| text.len()).sum();
        self.paths.memory() + self.last_draws.allocation_size() + said + noted + held(&self.rows)
    }

    /// Walk the invariants of the fork paths.
    pub(crate) fn check_paths(&self) -> Finding {
        self.paths.check(fingerprint_words)?;
        let mut last = 0;
        for id in self.ids() {
            let Some(stem) = self.stem(id.get()) else { continue };
            let known = self.last_draw(stem);
            if known.is_none_or(|known| self.draw(known) < self.draw(id)) {
                return Err(format!("rollout {}: its fork point does not know its draw", id.get()));
            }
            last += usize::from(known == Some(id));
        }
        if self.last_draws.len() == last { Ok(()) } else { Err("the index of draws has the wrong size".into()) }
    }
}
