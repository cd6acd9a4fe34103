//! The ready set: which of many tasks starts its next draws, or sends its next rows, as soon as there is room.
//!
//! Tasks share by start-time fair queueing (Goyal, Vin and Cheng, 1996): a task's start tag grows by served draws over its
//! weight, the smallest tag is served next, and a task that had nothing ready takes up at the tag being served, so that it
//! neither owes nor saved anything. Two tasks that are always ready are never more than one batch apart, by weight.

use super::amount::Bounds;
use super::ledger::{Ledger, Refusal};
use super::order::Order;
use super::task::Task;
use super::window::Window;
use super::work::{Refused, Round, Start, Work, WorkKind};
use crate::error::{Error, Result};
use crate::id;

/// The most draws and rows of one round, whatever the caller asks for.
const ROUND: u32 = 1 << 16;

/// The ready work of many tasks, and which of their rollouts run. It keeps tasks until they are cancelled and rollouts until
/// they are done; what is older than all of those that it keeps takes no memory.
#[derive(Clone, Debug)]
pub struct Scheduler {
    // Tasks that are not over.
    tasks: Window<Box<Task>>,
    // Tasks of which something could start.
    order: Order,
    // The start tag that was served last.
    clock: u128,
    // Whose the rollouts are that run.
    owners: Window<u32>,
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
        Ok(Self { tasks: Window::new(), order: Order::default(), clock: 0, owners: Window::new(), limit, batch })
    }

    /// Add a task and return its number. With twice the weight it is served twice as often; at most `limit` of its rollouts
    /// run at a time.
    ///
    /// # Errors
    /// [`Error::Value`] if one of them is 0, [`Error::Full`] after 2^32 tasks.
    pub fn add(&mut self, weight: u32, limit: u32) -> Result<u32> {
        positive("the weight of a task", weight)?;
        positive("the limit of running rollouts", limit)?;
        let task = u32::try_from(self.tasks.added()).map_err(|_| Error::Full { what: "task" })?;
        self.tasks.push(Box::new(Task::new(weight, limit)));
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
        let Some(holder) = self.tasks.get_mut(task.into()).filter(|holder| !holder.cancelled) else {
            let value = format!("task {task} was cancelled");
            return Err(Error::Value { value, want: "a task that goes on" });
        };
        holder.push(work, each);
        self.place(task);
        Ok(())
    }

    /// What may start now: at most `max` draws and rows in all (and no more than 65,536), as the ledger and the limits on
    /// running rollouts allow. Rows of a task go before its draws. Work that does not fit as a whole starts in part; the
    /// rest stays at its place. A task whose next work is refused holds up nobody else.
    pub fn next(&mut self, max: u32, ledger: &mut Ledger) -> Round {
        let mut room = max.min(ROUND);
        let (mut round, mut refused) = (Round::default(), Vec::new());
        while room > 0
            && let Some(number) = self.order.first(self.lanes(), ledger)
        {
            self.leave(number);
            let (start, refusal) = self.serve(number, room, ledger);
            room -= start.map_or(0, |start| start.work.n);
            round.starts.extend(start);
            let Some(refusal) = refusal else {
                self.enter(number);
                continue;
            };
            let told = self.tasks.get_mut(number.into()).and_then(|task| task.refuse(&refusal));
            round.refused.extend(told.map(|work| Refused { task: number, work, refusal }));
            refused.push(number);
        }
        // Not asked again before the next time.
        for task in refused {
            self.enter(task);
        }
        round
    }

    /// Start as much of a task's next work as there is room for, and say what kept more of it from starting.
    fn serve(&mut self, number: u32, room: u32, ledger: &mut Ledger) -> (Option<Start>, Option<Refusal>) {
        let lanes = self.lanes();
        let Some(task) = self.tasks.get_mut(number.into()) else { return (None, None) };
        let Some(&ready) = task.front() else { return (None, None) };
        let lanes = if ready.work.kind == WorkKind::Draws { lanes.min(task.room()) } else { u32::MAX };
        let wanted = ready.work.n.min(room).min(self.batch).min(lanes);
        let (n, reservation, refusal) = ledger.reserve_some(&ready.each, wanted);
        let Some(reservation) = reservation else { return (None, refusal) };
        if ready.short.is_some() {
            // While it was refused it saved nothing up.
            task.tag = task.tag.max(self.clock);
        }
        self.clock = self.clock.max(task.tag);
        let Some(work) = task.take(n) else { return (None, refusal) };
        let rollout = self.open(number, work);
        (Some(Start { task: number, work, rollout, reservation }), refusal)
    }

    /// How many more rollouts may run.
    fn lanes(&self) -> u32 {
        self.limit - self.running()
    }

    /// Number the rollouts that draws start, and return the first.
    fn open(&mut self, number: u32, work: Work) -> Option<u64> {
        let task = self.tasks.get_mut(number.into()).filter(|_| work.kind == WorkKind::Draws)?;
        task.live += work.n;
        let first = self.owners.added();
        for _ in 0..work.n {
            self.owners.push(number);
        }
        Some(first)
    }

    /// A rollout has ended; there is room for another.
    ///
    /// # Errors
    /// [`Error::Value`] if it does not run: it was never started, or has ended before.
    pub fn done(&mut self, rollout: u64) -> Result<()> {
        let Some(owner) = self.owners.remove(rollout) else {
            let value = format!("rollout {rollout} does not run");
            return Err(Error::Value { value, want: "one that was started and has not ended" });
        };
        let Some(task) = self.tasks.get_mut(owner.into()) else { return Ok(()) };
        let full = task.room() == 0;
        task.live -= 1;
        if task.cancelled && task.live == 0 {
            self.tasks.remove(owner.into());
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
        let Some(holder) = self.tasks.get_mut(task.into()) else { return Ok(0) };
        let (dropped, running) = (holder.ready(), holder.live > 0);
        holder.cancel();
        self.leave(task);
        if !running {
            self.tasks.remove(task.into());
        }
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
        Ok(self.tasks.get(task.into()).map_or((0, 0), |holder| (holder.ready(), holder.live)))
    }

    fn known(&self, task: u32) -> Result<()> {
        if u64::from(task) < self.tasks.added() {
            return Ok(());
        }
        Err(Error::Value { value: format!("task {task} does not exist"), want: "one that was added" })
    }

    /// Take a task out of the ready set, and say whether it was in it.
    fn leave(&mut self, number: u32) -> bool {
        let Some(task) = self.tasks.get_mut(number.into()) else { return false };
        let Some(stand) = task.stand.take() else { return false };
        self.order.remove(number, task.tag, stand);
        true
    }

    /// Put a task into the ready set if something of it could start.
    fn enter(&mut self, number: u32) {
        let Some(task) = self.tasks.get_mut(number.into()) else { return };
        task.stand = task.place();
        if let Some(stand) = task.stand {
            self.order.insert(number, task.tag, stand);
        }
    }

    /// Put a task that has changed where it belongs now. If it was out of the ready set, it takes up at the tag being served.
    fn place(&mut self, number: u32) {
        if !self.leave(number)
            && let Some(task) = self.tasks.get_mut(number.into())
        {
            task.tag = task.tag.max(self.clock);
        }
        self.enter(number);
    }
}

fn positive(what: &str, number: u32) -> Result<()> {
    if number > 0 { Ok(()) } else { Err(Error::Value { value: format!("{what} is 0"), want: "1 or more" }) }
}
