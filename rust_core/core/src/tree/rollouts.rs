//! The rollouts of a tree, as columns. Nodes merge, rollouts never do.

use crate::error::{Finding, Result};
use crate::id::{NodeId, RolloutId};
use crate::lanes::Lanes;
use crate::storage::hash::fingerprint_words;
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

/// The columns. A rollout's lane is its id.
#[derive(Clone, Debug)]
pub(crate) struct Rollouts {
    // Fork paths are unique, so a path's number in the pool is its rollout's id.
    paths: Pool<u32>,
    points: Vec<NodeId>,
    leaves: Vec<NodeId>,
    subgroups: Vec<u32>,
    endings: Vec<Option<Ending>>,
    rewards: Vec<f64>,
    notes: Vec<Option<Box<str>>>,
    usages: Vec<Usage>,
    growing: Lanes,
}

impl Rollouts {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self {
            paths: Pool::new("rollout"),
            points: Vec::new(),
            leaves: Vec::new(),
            subgroups: Vec::new(),
            endings: Vec::new(),
            rewards: Vec::new(),
            notes: Vec::new(),
            usages: Vec::new(),
            growing: Lanes::default(),
        }
    }

    /// Forget every rollout and keep the memory.
    pub(crate) fn reset(&mut self) {
        self.paths.reset();
        self.points.clear();
        self.leaves.clear();
        self.subgroups.clear();
        self.endings.clear();
        self.rewards.clear();
        self.notes.clear();
        self.usages.clear();
        self.growing = Lanes::default();
    }

    /// The rollout with a fork path, if there is one.
    pub(crate) fn find(&self, path: &[u32]) -> Option<RolloutId> {
        self.paths.find(path, fingerprint_words(path)).map(RolloutId::new)
    }

    /// Open a rollout whose path [`Rollouts::find`] does not know.
    pub(crate) fn open(&mut self, point: NodeId, path: &[u32], subgroup: u32) -> Result<RolloutId> {
        let id = self.paths.insert(path, fingerprint_words(path))?;
        self.points.push(point);
        self.leaves.push(point);
        self.subgroups.push(subgroup);
        self.endings.push(None);
        self.rewards.push(f64::NAN);
        self.notes.push(None);
        self.usages.push(Usage::default());
        self.growing.push();
        Ok(RolloutId::new(id))
    }

    /// Move a leaf one node down and count what that cost.
    pub(crate) fn advance(&mut self, id: RolloutId, leaf: NodeId, cost: &Usage) {
        self.leaves[id.index()] = leaf;
        self.usages[id.index()].add(cost);
    }

    /// End a rollout that grows.
    pub(crate) fn close(
        &mut self,
        id: RolloutId,
        termination: Termination,
        answer: Option<&str>,
        error: Option<&str>,
    ) -> Result<()> {
        self.growing.finish(id.index())?;
        let ending = Ending { termination, answer: answer.map(Into::into), error: error.map(Into::into) };
        self.endings[id.index()] = Some(ending);
        Ok(())
    }

    /// Set a reward; every NaN becomes the same one, so that digests agree.
    pub(crate) fn score(&mut self, id: RolloutId, reward: f64) {
        self.rewards[id.index()] = if reward.is_nan() { f64::NAN } else { reward };
    }

    /// Write a note on a rollout, in the place of the one before; an empty one is none.
    pub(crate) fn note(&mut self, id: RolloutId, text: &str) {
        self.notes[id.index()] = (!text.is_empty()).then(|| text.into());
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
        self.points[id.index()]
    }

    pub(crate) fn leaf(&self, id: RolloutId) -> NodeId {
        self.leaves[id.index()]
    }

    pub(crate) fn subgroup(&self, id: RolloutId) -> u32 {
        self.subgroups[id.index()]
    }

    pub(crate) fn termination(&self, id: RolloutId) -> Option<Termination> {
        self.endings[id.index()].as_ref().map(|ending| ending.termination)
    }

    pub(crate) fn answer(&self, id: RolloutId) -> Option<&str> {
        self.endings[id.index()].as_ref()?.answer.as_deref()
    }

    pub(crate) fn error(&self, id: RolloutId) -> Option<&str> {
        self.endings[id.index()].as_ref()?.error.as_deref()
    }

    pub(crate) fn reward(&self, id: RolloutId) -> f64 {
        self.rewards[id.index()]
    }

    pub(crate) fn noted(&self, id: RolloutId) -> Option<&str> {
        self.notes[id.index()].as_deref()
    }

    pub(crate) fn usage(&self, id: RolloutId) -> &Usage {
        &self.usages[id.index()]
    }

    /// The lanes of the rollouts that have not ended.
    pub(crate) const fn growing(&self) -> &Lanes {
        &self.growing
    }

    /// Bytes that memory is held for.
    pub(crate) fn memory(&self) -> usize {
        let texts =
            |ending: &Ending| [&ending.answer, &ending.error].into_iter().flatten().map(|text| text.len()).sum();
        let said: usize = self.endings.iter().flatten().map::<usize, _>(texts).sum();
        let noted: usize = self.notes.iter().flatten().map(|text| text.len()).sum();
        let columns = held(&self.points) + held(&self.leaves) + held(&self.subgroups) + held(&self.endings);
        let figures = held(&self.rewards) + held(&self.notes) + held(&self.usages);
        self.paths.memory() + said + noted + columns + figures
    }

    /// Walk the invariants of the fork paths.
    pub(crate) fn check_paths(&self) -> Finding {
        self.paths.check(fingerprint_words)
    }
}
