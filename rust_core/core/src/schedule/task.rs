//! One task of the ready set: what it has ready, and its share.

use std::collections::VecDeque;

use super::amount::{Bounds, Currency};
use super::ledger::Refusal;
use super::order::Stand;
use super::work::{Work, WorkKind};

/// Units of a start tag for one draw at weight 1, so that the greatest weights still differ by one part in 2^32. A tag of
/// 128 bits has room for 2^64 draws.
const SCALE: u128 = 1 << 64;

#[derive(Clone, Debug)]
pub(super) struct Task {
    weight: u32,
    limit: u32,
    /// Its rollouts that run.
    pub live: u32,
    /// Its start tag: the smallest is served next.
    pub tag: u128,
    /// Where it stands in the ready set, if it does.
    pub stand: Option<Stand>,
    /// It takes no more work.
    pub cancelled: bool,
    rows: VecDeque<Ready>,
    draws: VecDeque<Ready>,
}

/// Work that is ready.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    pub work: Work,
    /// The most that one draw or row can cost.
    pub each: Bounds,
    /// What it was refused for since some of it was started last, and how much one draw or row needs of that.
    pub short: Option<(Currency, u64)>,
}

impl Task {
    pub(super) fn new(weight: u32, limit: u32) -> Self {
        let (rows, draws) = (VecDeque::new(), VecDeque::new());
        Self { weight, limit, live: 0, tag: 0, stand: None, cancelled: false, rows, draws }
    }

    /// Add work behind what is ready of the same kind.
    pub(super) fn push(&mut self, work: Work, each: Bounds) {
        let queue = if work.kind == WorkKind::Rows { &mut self.rows } else { &mut self.draws };
        queue.push_back(Ready { work, each, short: None });
    }

    /// What starts next: rows before draws.
    pub(super) fn front(&self) -> Option<&Ready> {
        self.rows.front().or_else(|| self.draws.front())
    }

    fn queue(&mut self) -> &mut VecDeque<Ready> {
        if self.rows.is_empty() { &mut self.draws } else { &mut self.rows }
    }

    /// How many more of its rollouts may run.
    pub(super) const fn room(&self) -> u32 {
        self.limit - self.live
    }

    /// Where it belongs in the ready set: nowhere if nothing is ready, or only draws and its rollouts have no room.
    pub(super) fn place(&self) -> Option<Stand> {
        let Ready { work, short, .. } = self.front()?;
        (work.kind == WorkKind::Rows || self.room() > 0).then_some(Stand { kind: work.kind, short: *short })
    }

    /// Take the first `n` draws or rows off what starts next, which has as many.
    pub(super) fn take(&mut self, n: u32) -> Option<Work> {
        let queue = self.queue();
        let front = queue.front_mut()?;
        let work = Work { n, ..front.work };
        *front = Ready { work: front.work.after(n), short: None, ..*front };
        if front.work.n == 0 {
            queue.pop_front();
        }
        self.tag += u128::from(n) * SCALE / u128::from(self.weight);
        Some(work)
    }

    /// What starts next is refused: the work, unless that was told before.
    pub(super) fn refuse(&mut self, refusal: &Refusal) -> Option<Work> {
        let front = self.queue().front_mut()?;
        // What has no bound needs more than there can be.
        let need = front.each.get(refusal.currency).unwrap_or(u64::MAX);
        front.short.replace((refusal.currency, need)).is_none().then_some(front.work)
    }

    /// How many draws and rows are ready.
    pub(super) fn ready(&self) -> u64 {
        self.rows.iter().chain(&self.draws).map(|ready| u64::from(ready.work.n)).sum()
    }

    /// Drop what is ready, and take no more.
    pub(super) fn cancel(&mut self) {
        (self.rows, self.draws, self.cancelled) = (VecDeque::new(), VecDeque::new(), true);
    }
}
