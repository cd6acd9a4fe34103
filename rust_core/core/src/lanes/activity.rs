//! The activity of each of any number of rollouts, for batches that wait until no rollout can add to them.

use crate::error::{Error, Result};
use crate::id;

/// The activity of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    Running,
    Asking,
    Away,
    Ended,
}

/// The place of a lane, and how many lanes that ended had it before.
#[derive(Clone, Copy, Debug)]
struct Slot {
    state: Activity,
    generation: u32,
}

/// Lanes that come and go. Each runs, asks, or is away (in a tool), until it ends.
///
/// A lane is its slot, with the slot's generation in the upper half: a slot is used again, and the lane that had it before
/// stays ended for its holder.
#[derive(Clone, Debug, Default)]
pub struct ActivityCounter {
    slots: Vec<Slot>,
    free: Vec<u32>,
    running: usize,
    asking: usize,
    away: usize,
}

impl ActivityCounter {
    /// Add a lane that runs.
    ///
    /// # Errors
    /// [`Error::Full`] if four billion lanes have not ended.
    pub fn open(&mut self) -> Result<u64> {
        let number = self.free.pop().map_or_else(|| self.add(), Ok)?;
        let slot = &mut self.slots[number as usize];
        slot.state = Activity::Running;
        self.running += 1;
        Ok(u64::from(slot.generation) << 32 | u64::from(number))
    }

    fn add(&mut self) -> Result<u32> {
        let number = id::next(self.slots.len(), "lane")?;
        self.slots.push(Slot { state: Activity::Ended, generation: 0 });
        Ok(number)
    }

    /// A lane runs again.
    ///
    /// # Errors
    /// [`Error::Value`] if it was never opened; one that has ended stays ended, here and below.
    pub fn run(&mut self, lane: u64) -> Result<()> {
        self.enter(lane, Activity::Running).map(|_| ())
    }

    /// A lane asks, and waits. Whether it was the last that ran.
    ///
    /// # Errors
    /// As [`ActivityCounter::run`].
    pub fn ask(&mut self, lane: u64) -> Result<bool> {
        self.enter(lane, Activity::Asking)
    }

    /// A lane is away and will ask again at an unknown time. Whether it was the last that ran.
    ///
    /// # Errors
    /// As [`ActivityCounter::run`].
    pub fn leave(&mut self, lane: u64) -> Result<bool> {
        self.enter(lane, Activity::Away)
    }

    /// A lane is done for good, whatever it did. Whether none runs now.
    ///
    /// # Errors
    /// As [`ActivityCounter::run`].
    pub fn end(&mut self, lane: u64) -> Result<bool> {
        self.enter(lane, Activity::Ended)
    }

    /// Lanes that run.
    #[must_use]
    pub const fn running(&self) -> usize {
        self.running
    }

    /// Lanes that ask.
    #[must_use]
    pub const fn asking(&self) -> usize {
        self.asking
    }

    /// Lanes that are away.
    #[must_use]
    pub const fn away(&self) -> usize {
        self.away
    }

    /// Change what a lane does. Whether nothing runs now, and it ran before or will not come back.
    fn enter(&mut self, lane: u64, state: Activity) -> Result<bool> {
        let (number, generation) = parts(lane);
        let Some(slot) = self.slots.get_mut(number as usize).filter(|slot| generation <= slot.generation) else {
            return Err(Error::reference(format!("lane {lane} was never opened"), "one that open() gave"));
        };
        let before = slot.state;
        if generation < slot.generation || before == Activity::Ended || before == state {
            return Ok(false);
        }
        slot.state = state;
        if state == Activity::Ended && slot.generation < u32::MAX {
            slot.generation += 1;
            self.free.push(number);
        }
        self.lanes(before).into_iter().for_each(|count| *count -= 1);
        self.lanes(state).into_iter().for_each(|count| *count += 1);
        Ok(self.running == 0 && (before == Activity::Running || state == Activity::Ended))
    }

    /// How many lanes do that; lanes that ended are not counted.
    const fn lanes(&mut self, state: Activity) -> Option<&mut usize> {
        match state {
            Activity::Running => Some(&mut self.running),
            Activity::Asking => Some(&mut self.asking),
            Activity::Away => Some(&mut self.away),
            Activity::Ended => None,
        }
    }
}

/// The slot of a lane, and its generation.
#[expect(clippy::cast_possible_truncation, reason = "the two halves are what is wanted")]
const fn parts(lane: u64) -> (u32, u32) {
    (lane as u32, (lane >> 32) as u32)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::ActivityCounter;

    #[test]
    fn a_slot_is_used_again_until_its_generations_are_used_up() {
        let mut counter = ActivityCounter::default();
        let first = counter.open().unwrap();
        counter.end(first).unwrap();
        let second = counter.open().unwrap();
        assert_eq!((first, second, counter.slots.len()), (0, 1 << 32, 1));
        counter.slots[0].generation = u32::MAX;
        let last = u64::from(u32::MAX) << 32;
        assert_eq!(counter.end(last), Ok(true));
        assert_eq!(counter.open(), Ok(1));
        assert_eq!((counter.end(last), counter.running()), (Ok(false), 1));
    }
}
