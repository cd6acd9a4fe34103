//! The ready set: which of many tasks starts its next draws, or sends its next rows, as soon as there is room.
//!
//! Tasks share by start-time fair queueing (Goyal, Vin and Cheng, 1996): a task's start tag grows by served draws over
//! its weight, the smallest tag is served next, and a task that had nothing ready takes up at the tag being served, so
//! that it neither owes nor saved anything. Two tasks that are always ready are never more than one batch apart, by
//! weight.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::error::{Error, Result};
use crate::id;
use crate::schedule::amount::{Bounds, Currency};
use crate::schedule::ledger::{Ledger, Refusal, Reservation};
use crate::validation::at_least_one;

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
        at_least_one("the limit of running rollouts", limit as usize)?;
        at_least_one("the limit of draws a batch", batch as usize)?;
        Ok(Self { tasks: Window::new(), order: Order::default(), clock: 0, owners: Window::new(), limit, batch })
    }

    /// Add a task and return its number. With twice the weight it is served twice as often; at most `limit` of its rollouts
    /// run at a time.
    ///
    /// # Errors
    /// [`Error::Value`] if one of them is 0, [`Error::Full`] after 2^32 tasks.
    pub fn add(&mut self, weight: u32, limit: u32) -> Result<u32> {
        at_least_one("the weight of a task", weight as usize)?;
        at_least_one("the limit of running rollouts", limit as usize)?;
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
        at_least_one("the number of draws or rows", work.n as usize)?;
        if work.first.checked_add(work.n).is_none() {
            let value = format!("the first draw is {} and there are {}", work.first, work.n);
            return Err(Error::range(value, "at most 4294967295 together"));
        }
        let Some(holder) = self.tasks.get_mut(task.into()).filter(|holder| !holder.cancelled) else {
            let value = format!("task {task} was cancelled");
            return Err(Error::reference(value, "a task that goes on"));
        };
        holder.push(work, each);
        self.place(task);
        Ok(())
    }

    /// What may start now: at most `max` draws and rows in all (and no more than 65,536), as the ledger and the limits on
    /// running rollouts allow. Rows of a task go before its draws. Work that does not fit as a whole starts in part; the
    /// rest stays at its place. A task whose next work is refused holds up no other.
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
            round.refused.extend(told.map(|work| RefusedStart { task: number, work, refusal }));
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
            return Err(Error::reference(value, "one that was started and has not ended"));
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
        Err(Error::reference(format!("task {task} does not exist"), "one that was added"))
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

/// What a task has ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkKind {
    /// Draws of a fork point: each starts a rollout, and so needs room for one.
    Draws,
    /// Rows of rollouts that run already and wait for a call together.
    Rows,
}

/// Draws `first..first + n` of a fork point, or rows of a waiting batch, together in one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// What it is.
    pub kind: WorkKind,
    /// The fork point, or the caller's number for the batch.
    pub point: u32,
    /// The first draw or row.
    pub first: u32,
    /// How many.
    pub n: u32,
}

impl Work {
    /// What is left of it after its first `n`.
    const fn after(self, n: u32) -> Self {
        Self { first: self.first + n, n: self.n - n, ..self }
    }
}

/// Work that may start now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Whose it is.
    pub task: u32,
    /// What it is.
    pub work: Work,
    /// The number of the first rollout it starts; the others follow. `None` for rows.
    pub rollout: Option<u64>,
    /// What the ledger holds for all of it.
    pub reservation: Reservation,
}

/// Work that the ledger does not allow. It stays ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedStart {
    /// Whose it is.
    pub task: u32,
    /// What it is.
    pub work: Work,
    /// What is short.
    pub refusal: Refusal,
}

/// What one look at the ready set gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// To be started, in this order.
    pub starts: Vec<Start>,
    /// Refused for the first time since some of the same work was started.
    pub refused: Vec<RefusedStart>,
}

/// Units of a start tag for one draw at weight 1, so that the greatest weights still differ by one part in 2^32. A tag of
/// 128 bits has room for 2^64 draws.
const SCALE: u128 = 1 << 64;

#[derive(Clone, Debug)]
struct Task {
    weight: u32,
    limit: u32,
    /// Its rollouts that run.
    pub live: u32,
    /// Its start tag: the smallest is served next.
    pub tag: u128,
    /// Where it stands in the ready set, if it does.
    pub stand: Option<QueuePlace>,
    /// It takes no more work.
    pub cancelled: bool,
    rows: VecDeque<Ready>,
    draws: VecDeque<Ready>,
}

/// Work that is ready.
#[derive(Clone, Copy, Debug)]
struct Ready {
    pub work: Work,
    /// The most that one draw or row can cost.
    pub each: Bounds,
    /// What it was refused for since some of it was started last, and how much one draw or row needs of that.
    pub short: Option<(Currency, u64)>,
}

impl Task {
    fn new(weight: u32, limit: u32) -> Self {
        let (rows, draws) = (VecDeque::new(), VecDeque::new());
        Self { weight, limit, live: 0, tag: 0, stand: None, cancelled: false, rows, draws }
    }

    /// Add work behind what is ready of the same kind.
    fn push(&mut self, work: Work, each: Bounds) {
        let queue = if work.kind == WorkKind::Rows { &mut self.rows } else { &mut self.draws };
        queue.push_back(Ready { work, each, short: None });
    }

    /// What starts next: rows before draws.
    fn front(&self) -> Option<&Ready> {
        self.rows.front().or_else(|| self.draws.front())
    }

    fn queue(&mut self) -> &mut VecDeque<Ready> {
        if self.rows.is_empty() { &mut self.draws } else { &mut self.rows }
    }

    /// How many more of its rollouts may run.
    const fn room(&self) -> u32 {
        self.limit - self.live
    }

    /// Where it belongs in the ready set: nowhere if nothing is ready, or only draws and its rollouts have no room.
    fn place(&self) -> Option<QueuePlace> {
        let Ready { work, short, .. } = self.front()?;
        (work.kind == WorkKind::Rows || self.room() > 0).then_some(QueuePlace { kind: work.kind, short: *short })
    }

    /// Take the first `n` draws or rows off what starts next, which has as many.
    fn take(&mut self, n: u32) -> Option<Work> {
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
    fn refuse(&mut self, refusal: &Refusal) -> Option<Work> {
        let front = self.queue().front_mut()?;
        // What has no bound needs more than there can be.
        let need = front.each.get(refusal.currency).unwrap_or(u64::MAX);
        front.short.replace((refusal.currency, need)).is_none().then_some(front.work)
    }

    /// How many draws and rows are ready.
    fn ready(&self) -> u64 {
        self.rows.iter().chain(&self.draws).map(|ready| u64::from(ready.work.n)).sum()
    }

    /// Drop what is ready, and take no more.
    fn cancel(&mut self) {
        (self.rows, self.draws, self.cancelled) = (VecDeque::new(), VecDeque::new(), true);
    }
}

/// Where a ready task stands: what it would start, and of which currency there was too little when it was asked last, and
/// how much one draw or row needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct QueuePlace {
    pub kind: WorkKind,
    pub short: Option<(Currency, u64)>,
}

/// Ready tasks by start tag, in queues of those that are held up by the same.
///
/// So many refused tasks cost nothing while there is too little for each of them, and a run without room for rollouts looks
/// at no draws.
#[derive(Clone, Debug, Default)]
struct Order(BTreeMap<(WorkKind, Option<Currency>), TaskQueue>);

#[derive(Clone, Debug, Default)]
struct TaskQueue {
    tags: BTreeSet<(u128, u32)>,
    needs: BTreeSet<(u64, u32)>,
}

impl Order {
    fn insert(&mut self, task: u32, tag: u128, stand: QueuePlace) {
        let queue = self.0.entry(stand.queue()).or_default();
        queue.tags.insert((tag, task));
        queue.needs.extend(stand.short.map(|(_, need)| (need, task)));
    }

    fn remove(&mut self, task: u32, tag: u128, stand: QueuePlace) {
        let Some(queue) = self.0.get_mut(&stand.queue()) else { return };
        queue.tags.remove(&(tag, task));
        if let Some((_, need)) = stand.short {
            queue.needs.remove(&(need, task));
        }
    }

    /// The task with the smallest start tag of which something may start; of equal tags the one that was added first.
    fn first(&self, lanes: u32, ledger: &Ledger) -> Option<u32> {
        let open = |kind: WorkKind, short: Option<Currency>, queue: &TaskQueue| {
            (kind == WorkKind::Rows || lanes > 0) && short.is_none_or(|currency| queue.suffices(currency, ledger))
        };
        let queues = self.0.iter().filter(|((kind, short), queue)| open(*kind, *short, queue));
        queues.filter_map(|(_, queue)| queue.tags.first()).min().map(|(_, task)| *task)
    }
}

impl QueuePlace {
    fn queue(&self) -> (WorkKind, Option<Currency>) {
        (self.kind, self.short.map(|(currency, _)| currency))
    }
}

impl TaskQueue {
    /// Whether enough is left for the smallest need.
    fn suffices(&self, currency: Currency, ledger: &Ledger) -> bool {
        let need = self.needs.first().map_or(0, |(need, _)| *need);
        ledger.limits().get(currency).is_none() || ledger.left(currency) >= need
    }
}

/// Things numbered 0, 1, 2, ... in the order in which they come. It holds places from the oldest that is still there, so
/// that it does not grow with those that are gone.
#[derive(Clone, Debug)]
struct Window<T> {
    // The number of the first place.
    start: u64,
    places: VecDeque<Option<T>>,
    len: usize,
}

impl<T> Window<T> {
    const fn new() -> Self {
        Self { start: 0, places: VecDeque::new(), len: 0 }
    }

    /// Add a thing and return its number. 2^64 are never added.
    fn push(&mut self, thing: T) -> u64 {
        self.places.push_back(Some(thing));
        self.len += 1;
        self.added() - 1
    }

    /// How many things were ever added.
    fn added(&self) -> u64 {
        self.start + self.places.len() as u64
    }

    /// How many things are there.
    const fn len(&self) -> usize {
        self.len
    }

    fn place(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.start)?).ok()
    }

    fn get(&self, number: u64) -> Option<&T> {
        self.places.get(self.place(number)?)?.as_ref()
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let place = self.place(number)?;
        self.places.get_mut(place)?.as_mut()
    }

    /// Take a thing out, if it is there.
    fn remove(&mut self, number: u64) -> Option<T> {
        let place = self.place(number)?;
        let thing = self.places.get_mut(place)?.take()?;
        self.len -= 1;
        while let Some(None) = self.places.front() {
            self.places.pop_front();
            self.start += 1;
        }
        Some(thing)
    }
}

#[cfg(test)]
mod tests {
    use super::Window;

    #[test]
    fn numbers_go_on_and_what_is_gone_takes_no_place() {
        let mut window = Window::new();
        assert_eq!((window.push('a'), window.push('b'), window.push('c'), window.len()), (0, 1, 2, 3));
        assert_eq!((window.remove(1), window.remove(1), window.places.len()), (Some('b'), None, 3));
        assert_eq!((window.remove(0), window.places.len(), window.get(2)), (Some('a'), 1, Some(&'c')));
        assert_eq!((window.remove(2), window.places.len(), window.len()), (Some('c'), 0, 0));
        assert_eq!((window.push('d'), window.added(), window.get_mut(3).copied()), (3, 4, Some('d')));
        assert!(window.remove(4).is_none() && window.get(0).is_none() && window.get(u64::MAX).is_none());
    }
}
