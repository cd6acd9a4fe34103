//! The ready set: which of many tasks starts its next draws, or sends its next rows, as soon as there is room.
//!
//! Tasks share by start-time fair queueing (Goyal, Vin and Cheng, 1996): a task's start tag grows by served draws over its
//! weight, the smallest tag is served next, and a task that had nothing ready takes up at the tag being served, so that it
//! neither owes nor saved anything. Two tasks that are always ready are never more than one batch apart, by weight.

use std::collections::{BTreeSet, VecDeque};

use super::amount::Bounds;
use super::ledger::{Ledger, Reservation};
use super::work::{Refused, Round, Start, Work, WorkKind};
use crate::error::{Error, Result};
use crate::id;
use crate::lanes::Lanes;

/// Units of a start tag for one draw at weight 1. A tag is 128 bits wide and cannot overflow.
const SCALE: u128 = 1 << 32;

/// The most draws and rows of one round, whatever the caller asks for.
const ROUND: u32 = 1 << 16;

/// The ready work of many tasks, and which of their rollouts run.
#[derive(Clone, Debug)]
pub struct Scheduler {
    tasks: Vec<Task>,
    // Tasks with rows, and tasks with draws only and room for them, by start tag. A task is in at most one of them.
    rows: BTreeSet<(u128, u32)>,
    draws: BTreeSet<(u128, u32)>,
    // The start tag that was served last.
    clock: u128,
    // Of each rollout ever started: whether it runs, and whose it is.
    running: Lanes,
    live: u32,
    owners: Vec<u32>,
    limit: u32,
    batch: u32,
}

#[derive(Clone, Debug)]
struct Task {
    weight: u32,
    limit: u32,
    live: u32,
    start: u128,
    rows: VecDeque<(Work, Bounds)>,
    draws: VecDeque<(Work, Bounds)>,
    // A refusal was given since something was started last.
    told: bool,
    cancelled: bool,
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
            tasks: Vec::new(),
            rows: BTreeSet::new(),
            draws: BTreeSet::new(),
            clock: 0,
            running: Lanes::default(),
            live: 0,
            owners: Vec::new(),
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
        let task = id::next(self.tasks.len(), "task")?;
        let (rows, draws) = (VecDeque::new(), VecDeque::new());
        self.tasks.push(Task { weight, limit, live: 0, start: 0, rows, draws, told: false, cancelled: false });
        Ok(task)
    }

    /// Make work ready, after what the task has ready of the same kind. `each` is the most that one draw or row can cost.
    ///
    /// # Errors
    /// [`Error::Unknown`] for a task that does not exist; [`Error::Value`] if there is no work, if a draw number would not
    /// fit 32 bits, or if the task was cancelled.
    pub fn push(&mut self, task: u32, work: Work, each: Bounds) -> Result<()> {
        positive("the number of draws", work.n)?;
        if work.first.checked_add(work.n).is_none() {
            let value = format!("the first draw is {} and there are {}", work.first, work.n);
            return Err(Error::Value { value, want: "at most 4294967295 together" });
        }
        let holder = self.task(task)?;
        if holder.cancelled {
            let value = format!("task {task} was cancelled");
            return Err(Error::Value { value, want: "a task that goes on" });
        }
        match work.kind {
            WorkKind::Draws => holder.draws.push_back((work, each)),
            WorkKind::Rows => holder.rows.push_back((work, each)),
        }
        self.place(task);
        Ok(())
    }

    /// What may start now: at most `max` draws and rows in all (and no more than 65,536), as the ledger and the limits on
    /// running rollouts allow. Rows of a task go before its draws. Work that does not fit as a whole starts in part; the
    /// rest stays at its place.
    ///
    /// # Errors
    /// [`Error::Full`] after 2^32 - 1 rollouts, [`Error::Memory`] if there is no memory for more.
    pub fn next(&mut self, max: u32, ledger: &mut Ledger) -> Result<Round> {
        let mut room = max.min(ROUND);
        id::next(self.owners.len(), "rollout")?;
        self.owners.try_reserve(room as usize).map_err(|_| Error::Memory { len: room as usize })?;
        let (mut round, mut refused) = (Round::default(), Vec::new());
        while room > 0
            && let Some((start, task)) = self.first()
        {
            let Some((work, each)) = self.tasks[task as usize].front() else { break };
            let lanes = if work.kind == WorkKind::Draws { self.lanes(task) } else { u32::MAX };
            let wanted = work.n.min(room).min(self.batch).min(lanes);
            let (n, reservation, refusal) = ledger.reserve_some(&each, wanted);
            self.leave(task);
            if let Some(reservation) = reservation {
                self.clock = self.clock.max(start);
                round.starts.push(self.start(task, Work { n, ..work }, reservation));
                room -= n;
            }
            let Some(refusal) = refusal else {
                self.enter(task);
                continue;
            };
            let work = Work { first: work.first + n, n: work.n - n, ..work };
            if !std::mem::replace(&mut self.tasks[task as usize].told, true) {
                round.refused.push(Refused { task, work, refusal });
            }
            refused.push(task);
        }
        // The budget may allow more the next time.
        for task in refused {
            self.catch_up(task);
        }
        Ok(round)
    }

    /// The task to be served next. Without room for another rollout that is one with rows.
    fn first(&self) -> Option<(u128, u32)> {
        let room = self.live < self.limit && id::count(self.owners.len()) < id::NONE;
        self.rows.first().into_iter().chain(self.draws.first().filter(|_| room)).min().copied()
    }

    /// How many more rollouts of a task may run.
    fn lanes(&self, task: u32) -> u32 {
        let task = &self.tasks[task as usize];
        let ids = id::NONE - id::count(self.owners.len());
        (self.limit - self.live).min(task.limit - task.live).min(ids)
    }

    /// Take `work` off the front of what a task has ready.
    fn start(&mut self, number: u32, work: Work, reservation: Reservation) -> Start {
        let Work { kind, n, .. } = work;
        let task = &mut self.tasks[number as usize];
        let queue = task.queue();
        if let Some((front, each)) = queue.pop_front()
            && front.n > n
        {
            queue.push_front((Work { first: front.first + n, n: front.n - n, ..front }, each));
        }
        task.start += u128::from(n) * SCALE / u128::from(task.weight);
        task.told = false;
        let rollout = (kind == WorkKind::Draws).then(|| id::count(self.owners.len()));
        if rollout.is_some() {
            task.live += n;
            self.live += n;
            for _ in 0..n {
                self.owners.push(number);
                self.running.push();
            }
        }
        Start { task: number, work, rollout, reservation }
    }

    /// A rollout has ended; there is room for another.
    ///
    /// # Errors
    /// [`Error::Lane`] if it was never started, [`Error::LaneFinished`] if it has ended before.
    pub fn done(&mut self, rollout: u32) -> Result<()> {
        self.running.finish(rollout as usize)?;
        let owner = self.owners[rollout as usize];
        self.live -= 1;
        let task = &mut self.tasks[owner as usize];
        let full = task.live == task.limit;
        task.live -= 1;
        if full {
            self.place(owner);
        }
        Ok(())
    }

    /// Drop what a task has ready, take no more of it, and return how many draws and rows that were. Its running rollouts
    /// run on until they are done.
    ///
    /// # Errors
    /// [`Error::Unknown`] for a task that does not exist.
    pub fn cancel(&mut self, task: u32) -> Result<u64> {
        self.task(task)?;
        self.leave(task);
        let holder = self.task(task)?;
        holder.cancelled = true;
        let dropped = holder.rows.drain(..).chain(holder.draws.drain(..));
        Ok(dropped.map(|(work, _)| u64::from(work.n)).sum())
    }

    /// Rollouts that were started and are not done.
    #[must_use]
    pub const fn running(&self) -> &Lanes {
        &self.running
    }

    /// How many of them there are.
    #[must_use]
    pub const fn live(&self) -> u32 {
        self.live
    }

    /// How many draws and rows a task has ready, and how many of its rollouts run.
    ///
    /// # Errors
    /// [`Error::Unknown`] for a task that does not exist.
    pub fn counts(&self, task: u32) -> Result<(u64, u32)> {
        let holder = self.tasks.get(task as usize).ok_or_else(|| self.unknown(task))?;
        let ready = holder.rows.iter().chain(&holder.draws).map(|(work, _)| u64::from(work.n)).sum();
        Ok((ready, holder.live))
    }

    fn task(&mut self, task: u32) -> Result<&mut Task> {
        let unknown = self.unknown(task);
        self.tasks.get_mut(task as usize).ok_or(unknown)
    }

    fn unknown(&self, task: u32) -> Error {
        Error::Unknown { what: "task", id: task, count: id::count(self.tasks.len()) }
    }

    /// Take a task out of the ready set, and say whether it was in it.
    fn leave(&mut self, number: u32) -> bool {
        let key = (self.tasks[number as usize].start, number);
        self.rows.remove(&key) || self.draws.remove(&key)
    }

    /// Put a task into the ready set if something of it could start.
    fn enter(&mut self, number: u32) {
        let task = &self.tasks[number as usize];
        if !task.rows.is_empty() {
            self.rows.insert((task.start, number));
        } else if !task.draws.is_empty() && task.live < task.limit {
            self.draws.insert((task.start, number));
        }
    }

    /// The same for a task that was out of it: it takes up at the tag being served.
    fn catch_up(&mut self, number: u32) {
        let task = &mut self.tasks[number as usize];
        task.start = task.start.max(self.clock);
        self.enter(number);
    }

    /// Put a task that has changed where it belongs now.
    fn place(&mut self, number: u32) {
        if self.leave(number) {
            self.enter(number);
        } else {
            self.catch_up(number);
        }
    }
}

impl Task {
    /// Rows before draws.
    fn queue(&mut self) -> &mut VecDeque<(Work, Bounds)> {
        if self.rows.is_empty() { &mut self.draws } else { &mut self.rows }
    }

    fn front(&self) -> Option<(Work, Bounds)> {
        self.rows.front().or(self.draws.front()).copied()
    }
}

fn positive(what: &str, number: u32) -> Result<()> {
    if number > 0 { Ok(()) } else { Err(Error::Value { value: format!("{what} is 0"), want: "1 or more" }) }
}
