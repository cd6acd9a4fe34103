//! Lanes that wait at a named point, until a batch of them is worth a call.

use super::plan::LanePlan;
use super::{Bits, Lanes};
use crate::error::{Error, Result};

/// Lanes that run until each waits at one of several queues: an agent, a role, a model. When no active lane runs any more,
/// nothing but a flush can make progress, so everything that waits is due. A queue with a limit is due as soon as it is full.
#[derive(Clone, Debug)]
pub struct LaneQueue {
    active: Lanes,
    // Lanes that wait, at whatever queue.
    idle: Bits,
    queues: Vec<WaitQueue>,
    // Active lanes that do not wait.
    running: usize,
}

#[derive(Clone, Debug)]
struct WaitQueue {
    lanes: Bits,
    count: usize,
    limit: usize,
}

/// Lanes of one queue that are due together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneBatch {
    /// The queue they waited at.
    pub queue: u32,
    /// The lanes.
    pub plan: LanePlan,
}

impl LaneQueue {
    /// `len` running lanes, and a queue for each limit: the most lanes of one batch, 0 for any number.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no memory for them.
    pub fn new(len: usize, limits: &[u32]) -> Result<Self> {
        let queue = |&limit: &u32| Ok(WaitQueue { lanes: Bits::none(len)?, count: 0, limit: limit as usize });
        let queues = limits.iter().map(queue).collect::<Result<_>>()?;
        Ok(Self { active: Lanes::new(len)?, idle: Bits::none(len)?, queues, running: len })
    }

    /// Lanes that have not finished.
    #[must_use]
    pub const fn active(&self) -> &Lanes {
        &self.active
    }

    /// How many active lanes run, that is, do not wait.
    #[must_use]
    pub const fn running(&self) -> usize {
        self.running
    }

    /// Let a running lane wait.
    ///
    /// # Errors
    /// [`Error::Lane`] and [`Error::LaneFinished`] as for [`Lanes::finish`]; [`Error::Value`] if the lane waits already, or
    /// for a queue that does not exist.
    pub fn wait(&mut self, lane: usize, queue: u32) -> Result<()> {
        self.active.expect(lane)?;
        if self.idle.get(lane) {
            let value = format!("lane {lane} waits already");
            return Err(Error::conflict(value, "flushed before it waits again"));
        }
        let unknown = || {
            let value = format!("queue {queue} does not exist");
            Error::reference(value, "one that has a limit")
        };
        let queue = self.queues.get_mut(queue as usize).ok_or_else(unknown)?;
        queue.lanes.set(lane);
        queue.count += 1;
        self.idle.set(lane);
        self.running -= 1;
        Ok(())
    }

    /// Take a lane out, wherever it is. The others may be due after it.
    ///
    /// # Errors
    /// As [`Lanes::finish`].
    pub fn finish(&mut self, lane: usize) -> Result<()> {
        self.active.finish(lane)?;
        if !self.idle.get(lane) {
            self.running -= 1;
            return Ok(());
        }
        self.idle.unset(lane);
        for queue in self.queues.iter_mut().filter(|queue| queue.lanes.get(lane)) {
            queue.lanes.unset(lane);
            queue.count -= 1;
        }
        Ok(())
    }

    /// The batches that are due, in order of queues and lanes; their lanes run again. None while a lane runs and no queue
    /// is full. A full queue alone gives its first lanes, as many as fill whole batches.
    pub fn flush(&mut self) -> Vec<LaneBatch> {
        let everything = self.running == 0;
        let mut batches = Vec::new();
        for (number, queue) in (0..=u32::MAX).zip(&mut self.queues) {
            let rest = if everything { 0 } else { queue.count.checked_rem(queue.limit).unwrap_or(queue.count) };
            let due = queue.count - rest;
            if due == 0 {
                continue;
            }
            let mut lanes = Vec::new();
            queue.lanes.list(queue.count, &mut lanes);
            lanes.truncate(due);
            for &lane in &lanes {
                queue.lanes.unset(lane as usize);
                self.idle.unset(lane as usize);
            }
            queue.count = rest;
            self.running += due;
            let limit = if queue.limit == 0 { due } else { queue.limit };
            let batch =
                |lanes: &[u32]| LaneBatch { queue: number, plan: LanePlan::of(lanes.to_vec(), self.active.len()) };
            batches.extend(lanes.chunks(limit).map(batch));
        }
        batches
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::LaneQueue;

    fn flushed(queue: &mut LaneQueue) -> Vec<(u32, Vec<u32>)> {
        queue.flush().into_iter().map(|batch| (batch.queue, batch.plan.lanes().to_vec())).collect()
    }

    #[test]
    fn everything_is_due_when_no_active_lane_runs() {
        let mut queue = LaneQueue::new(4, &[0, 0]).unwrap();
        queue.wait(3, 0).unwrap();
        queue.wait(1, 1).unwrap();
        queue.wait(0, 0).unwrap();
        assert_eq!((flushed(&mut queue), queue.running()), (vec![], 1));
        queue.finish(2).unwrap();
        assert_eq!(flushed(&mut queue), [(0, vec![0, 3]), (1, vec![1])]);
        assert_eq!((flushed(&mut queue), queue.running()), (vec![], 3));
    }

    #[test]
    fn a_full_queue_is_due_before_the_others() {
        let mut queue = LaneQueue::new(6, &[2, 0]).unwrap();
        for lane in [5, 2, 0] {
            queue.wait(lane, 0).unwrap();
        }
        queue.wait(1, 1).unwrap();
        assert_eq!(flushed(&mut queue), [(0, vec![0, 2])]);
        queue.wait(3, 0).unwrap();
        queue.wait(4, 0).unwrap();
        assert_eq!(flushed(&mut queue), [(0, vec![3, 4])]);
        for lane in [0, 2, 3, 4] {
            queue.wait(lane, 0).unwrap();
        }
        assert_eq!(flushed(&mut queue), [(0, vec![0, 2]), (0, vec![3, 4]), (0, vec![5]), (1, vec![1])]);
    }

    #[test]
    fn a_lane_that_waits_may_finish() {
        let mut queue = LaneQueue::new(2, &[0]).unwrap();
        queue.wait(0, 0).unwrap();
        queue.finish(0).unwrap();
        queue.wait(1, 0).unwrap();
        assert_eq!(flushed(&mut queue), [(0, vec![1])]);
        queue.finish(1).unwrap();
        assert_eq!((flushed(&mut queue), queue.active().any()), (vec![], false));
    }

    #[test]
    fn who_cannot_wait_is_told_why() {
        let mut queue = LaneQueue::new(2, &[0]).unwrap();
        queue.wait(0, 0).unwrap();
        let text = queue.wait(0, 0).unwrap_err().to_string();
        assert_eq!(text, "lane 0 waits already; it must be flushed before it waits again");
        assert_eq!(
            queue.wait(1, 1).unwrap_err().to_string(),
            "queue 1 does not exist; it must be one that has a limit"
        );
        assert_eq!(queue.wait(2, 0).unwrap_err().to_string(), "lane 2 does not exist; there are 2");
        queue.finish(1).unwrap();
        assert_eq!(queue.wait(1, 0).unwrap_err().to_string(), "lane 1 has finished already; a lane finishes once");
    }
}
