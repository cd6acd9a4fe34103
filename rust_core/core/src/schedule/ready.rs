//! The ready set: which of many tasks starts its next draws, or sends its next rows, as soon as there is room.
//!
//! Tasks share by start-time fair queueing (Goyal, Vin and Cheng, 1996): a task's start tag grows by served draws over its
//! weight, the smallest tag is served next, and a task that had nothing ready takes up at the tag being served, so that it
//! neither owes nor saved anything. Two tasks that are always ready are never more than one batch apart, by weight.

use std::collections::{BTreeMap, BTreeSet};

use super::amount::Bounds;
use super::ledger::Ledger;
use super::task::Task;
use super::work::{Refused, Round, Start, Work, WorkKind};
use crate::error::{Error, Result};
use crate::id;

/// The most draws and rows of one round, whatever the caller asks for.
const ROUND: u32 = 1 << 16;

/// The ready work of many tasks, and which of their rollouts run. It keeps tasks until they are cancelled and rollouts until
/// they are done, and nothing of either after that.
#[derive(Clone, Debug)]
pub struct Scheduler {
    // Tasks that are not over, by number.
    tasks: BTreeMap<u32, Task>,
    // How many tasks there ever were.
    added: u32,
    // Tasks with rows, and tasks with draws only and room for them, by start tag. A task is in at most one of them.
    rows: BTreeSet<(u128, u32)>,
    draws: BTreeSet<(u128, u32)>,
    // The start tag that was served last.
    clock: u128,
    // The rollouts that run, and whose they are.
    owners: BTreeMap<u64, u32>,
    // How many rollouts were ever started. 2^64 of them never are.
    started: u64,
    limit: u32,
    batch: u32,
}

impl Scheduler {
    /// No tasks. At most `limit` rollouts run at a time, and a batch has at most `batch` draws or rows.
    ///
    /// # Errors
    /// [`Error::Value`] if one of them is 0.
    pub fn new(limit: u32, batch: u32) -> Result<Self> {
        positive("the limit of running rollouts", limit)?;
        positive("the limit of draws a batch", batch)?;
        Ok(Self {
            tasks: BTreeMap::new(),
            added: 0,
            rows: BTreeSet::new(),
            draws: BTreeSet::new(),
            clock: 0,
            owners: BTreeMap::new(),
            started: 0,
            limit,
            batch,
        })
    }

    /// Add a task and return its number. With twice the weight it is served twice as often; at most `limit` of its rollouts
    /// run at a time.
    ///
    /// # Errors
    /// [`Error::Value`] if one of them is 0, [`Error::Full`] after 2^32 - 1 tasks.
    pub fn add(&mut self, weight: u32, limit: u32) -> Result<u32> {
        positive("the weight of a task", weight)?;
        positive("the limit of running rollouts", limit)?;
        let task = id::next(self.added as usize, "task")?;
        self.added += 1;
        self.tasks.insert(task, Task::new(weight, limit));
        Ok(task)
    }

    /// Make work ready, after what the task has ready of the same kind. `each` is the most that one draw or row can cost.
    ///
    /// # Errors
    /// [`Error::Value`] if there is no such task, if it was cancelled, if there is no work, or if a draw number would not fit
    /// 32 bits.
    pub fn push(&mut self, task: u32, work: Work, each: Bounds) -> Result<()> {
        self.known(task)?;
        positive("the number of draws or rows", work.n)?;
        if work.first.checked_add(work.n).is_none() {
            let value = format!("the first draw is {} and there are {}", work.first, work.n);
            return Err(Error::Value { value, want: "at most 4294967295 together" });
        }
        let Some(holder) = self.tasks.get_mut(&task).filter(|holder| !holder.cancelled) else {
            let value = format!("task {task} was cancelled");
            return Err(Error::Value { value, want: "a task that goes on" });
        };
        holder.push(work, each);
        self.place(task);
        Ok(())
    }

    /// What may start now: at most `max` draws and rows in all (and no more than 65,536), as the ledger and the limits on
    /// running rollouts allow. Rows of a task go before its draws. Work that does not fit as a whole starts in part; the
    /// rest stays at its place. A task whose next work is refused holds up nobody else, but is asked for again every time.
    pub fn next(&mut self, max: u32, ledger: &mut Ledger) -> Round {
        let mut room = max.min(ROUND);
        let (mut round, mut refused) = (Round::default(), Vec::new());
        while room > 0
            && let Some((tag, number)) = self.first()
        {
            self.leave(tag, number);
            let lanes = self.lanes();
            let Some(task) = self.tasks.get_mut(&number) else { continue };
            let Some(&ready) = task.front() else { continue };
            let lanes = if ready.work.kind == WorkKind::Draws { lanes.min(task.room()) } else { u32::MAX };
            let wanted = ready.work.n.min(room).min(self.batch).min(lanes);
            let (n, reservation, refusal) = ledger.reserve_some(&ready.each, wanted);
            let work = reservation.and_then(|reservation| Some((task.take(n)?, reservation)));
            let told = refusal.and_then(|refusal| Some((task.tell()?, refusal)));
            if let Some((work, reservation)) = work {
                (room, self.clock) = (room - n, self.clock.max(tag));
                round.starts.push(Start { task: number, work, rollout: self.open(number, &work), reservation });
            }
            round.refused.extend(told.map(|(work, refusal)| Refused { task: number, work, refusal }));
            if refusal.is_some() {
                refused.push(number);
            } else {
                self.enter(number);
            }
        }
        // The budget may allow more the next time.
        for task in refused {
            self.catch_up(task);
        }
        round
    }

    /// The task to be served next. Without room for another rollout that is one with rows.
    fn first(&self) -> Option<(u128, u32)> {
        let draws = self.draws.first().filter(|_| self.lanes() > 0);
        self.rows.first().into_iter().chain(draws).min().copied()
    }

    /// How many more rollouts may run.
    fn lanes(&self) -> u32 {
        self.limit - self.running()
    }

    /// Number the rollouts that draws start, and return the first.
    fn open(&mut self, number: u32, work: &Work) -> Option<u64> {
        let task = self.tasks.get_mut(&number).filter(|_| work.kind == WorkKind::Draws)?;
        task.live += work.n;
        let first = self.started;
        self.started += u64::from(work.n);
        self.owners.extend((first..self.started).map(|rollout| (rollout, number)));
        Some(first)
    }

    /// A rollout has ended; there is room for another.
    ///
    /// # Errors
    /// [`Error::Value`] if it does not run: it was never started, or has ended before.
    pub fn done(&mut self, rollout: u64) -> Result<()> {
        let Some(owner) = self.owners.remove(&rollout) else {
            let value = format!("rollout {rollout} does not run");
            return Err(Error::Value { value, want: "one that was started and has not ended" });
        };
        let Some(task) = self.tasks.get_mut(&owner) else { return Ok(()) };
        let full = task.room() == 0;
        task.live -= 1;
        if task.cancelled && task.live == 0 {
            self.tasks.remove(&owner);
        } else if full {
            self.place(owner);
        }
        Ok(())
    }

    /// Drop what a task has ready, take no more of it, and return how many draws and rows that were. Its running rollouts
    /// run on until they are done. A task that is over is cancelled too, so that nothing of it is kept.
    ///
    /// # Errors
    /// [`Error::Value`] if there is no such task.
    pub fn cancel(&mut self, task: u32) -> Result<u64> {
        self.known(task)?;
        let Some(holder) = self.tasks.get_mut(&task) else { return Ok(0) };
        let (dropped, tag) = (holder.ready(), holder.tag);
        holder.cancel();
        if holder.live == 0 {
            self.tasks.remove(&task);
        }
        self.leave(tag, task);
        Ok(dropped)
    }

    /// How many rollouts were started and are not done.
    #[must_use]
    pub fn running(&self) -> u32 {
        // Never more than the limit.
        id::count(self.owners.len())
    }

    /// How many draws and rows a task has ready, and how many of its rollouts run.
    ///
    /// # Errors
    /// [`Error::Value`] if there is no such task.
    pub fn counts(&self, task: u32) -> Result<(u64, u32)> {
        self.known(task)?;
        Ok(self.tasks.get(&task).map_or((0, 0), |holder| (holder.ready(), holder.live)))
    }

    fn known(&self, task: u32) -> Result<()> {
        if task < self.added {
            return Ok(());
        }
        Err(Error::Value { value: format!("task {task} does not exist"), want: "one that was added" })
    }

    /// Take a task out of the ready set, and say whether it was in it.
    fn leave(&mut self, tag: u128, number: u32) -> bool {
        self.rows.remove(&(tag, number)) || self.draws.remove(&(tag, number))
    }

    /// Put a task into the ready set if something of it could start.
    fn enter(&mut self, number: u32) {
        let Some(task) = self.tasks.get(&number) else { return };
        match task.startable() {
            Some(WorkKind::Rows) => self.rows.insert((task.tag, number)),
            Some(WorkKind::Draws) => self.draws.insert((task.tag, number)),
            None => false,
        };
    }

    /// The same for a task that was out of it: it takes up at the tag being served.
    fn catch_up(&mut self, number: u32) {
        if let Some(task) = self.tasks.get_mut(&number) {
            task.tag = task.tag.max(self.clock);
        }
        self.enter(number);
    }

    /// Put a task that has changed where it belongs now.
    fn place(&mut self, number: u32) {
        let Some(tag) = self.tasks.get(&number).map(|task| task.tag) else { return };
        if self.leave(tag, number) {
            self.enter(number);
        } else {
            self.catch_up(number);
        }
    }
}

fn positive(what: &str, number: u32) -> Result<()> {
    if number > 0 { Ok(()) } else { Err(Error::Value { value: format!("{what} is 0"), want: "1 or more" }) }
}
