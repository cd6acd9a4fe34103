//! The rows that wait for a batch engine, and when a batch of them leaves.

use std::collections::BTreeMap;

/// When batches leave, and which rows share one.
#[derive(Clone, Copy, Debug)]
pub struct BatchRules {
    /// The most completions of a batch.
    pub most: u64,
    /// Seconds that a row waits at most while lanes run.
    pub max_wait: f64,
    /// Seconds that a row waits at most while no lane runs and some are away.
    pub away_wait: f64,
    /// Whether roles of a model share a batch.
    pub fuse: bool,
    /// Whether rows of different steps share a batch.
    pub regroup: bool,
}

/// What rows that share a batch have in common: the model, the role, the step, and how often the step asked the role before.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    model: Box<str>,
    role: Box<str>,
    step: (u32, u32),
}

#[derive(Clone, Debug)]
struct Row<T> {
    item: T,
    weight: u64,
    arrived: f64,
}

/// Rows that wait for the same batch, by their numbers, which ascend in order of arrival.
#[derive(Clone, Debug)]
struct Queue<T> {
    rows: BTreeMap<u64, Row<T>>,
    weight: u64,
    called: bool,
}

/// Rows of lanes that ask, in queues; a row has a weight, the completions that it asks for.
///
/// A row leaves once: in a batch, or dropped with its lane. So a batch holds rows of lanes that wait for them, and no others.
/// Times are seconds of one clock that never goes back.
#[derive(Clone, Debug)]
pub struct BatchQueue<T> {
    rules: BatchRules,
    queues: BTreeMap<Key, Queue<T>>,
    added: u64,
    free_since: f64,
}

impl<T> BatchQueue<T> {
    /// No rows.
    #[must_use]
    pub const fn new(rules: BatchRules) -> Self {
        Self { rules, queues: BTreeMap::new(), added: 0, free_since: f64::NEG_INFINITY }
    }

    /// Add a row and return its number. `step` is the row's step, and how often it asked the role before in it.
    pub fn add(&mut self, item: T, model: &str, role: &str, step: (u32, u32), weight: u32, now: f64) -> u64 {
        let role = if self.rules.fuse { "" } else { role };
        let step = if self.rules.regroup { (0, 0) } else { step };
        let queue = self.queues.entry(Key { model: model.into(), role: role.into(), step }).or_default();
        let (number, weight) = (self.added, u64::from(weight));
        self.added += 1;
        queue.weight += weight;
        queue.rows.insert(number, Row { item, weight, arrived: now });
        number
    }

    /// Drop rows that have not left, and return them.
    pub fn drop_rows(&mut self, numbers: &[u64]) -> Vec<T> {
        let mut dropped = Vec::new();
        for queue in self.queues.values_mut() {
            for row in numbers.iter().filter_map(|number| queue.rows.remove(number)).collect::<Vec<_>>() {
                queue.weight -= row.weight;
                dropped.push(row.item);
            }
        }
        self.forget_empty();
        dropped
    }

    /// Drop all rows, and return them.
    pub fn clear(&mut self) -> Vec<T> {
        let queues = std::mem::take(&mut self.queues);
        queues.into_values().flat_map(|queue| queue.rows.into_values().map(|row| row.item)).collect()
    }

    /// The engine has ended a call: rows that waited for it begin to wait for other lanes now.
    pub const fn freed(&mut self, now: f64) {
        self.free_since = now;
    }

    /// Whether the rows of a queue fill a batch.
    #[must_use]
    pub fn full(&self) -> bool {
        self.queues.values().any(|queue| queue.weight >= self.rules.most)
    }

    /// Whether no row waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Take at most `calls` batches that are due, and say when the next one is, if none of these is left.
    ///
    /// A batch is due if it is full, if no lane runs or is away, or after the wait of the rules. The one that has been due
    /// longest is first. Once no lane runs, no row can join those that are due, so these are called: each is due until a batch of
    /// it leaves.
    pub fn next(&mut self, now: f64, calls: usize, running: usize, away: usize) -> (Vec<Vec<T>>, Option<f64>) {
        let rules = self.rules;
        let wait = if running > 0 {
            rules.max_wait
        } else if away > 0 {
            rules.away_wait.min(rules.max_wait)
        } else {
            0.0
        };
        let mut batches = Vec::new();
        while batches.len() < calls {
            let Some((due, _, index)) = self.first(wait) else { break };
            if due > now {
                return (batches, Some(due));
            }
            if running == 0 {
                for queue in self.queues.values_mut() {
                    queue.called = queue.due(wait, rules.most, self.free_since).is_some_and(|(due, _)| due <= now);
                }
            }
            batches.extend(self.queues.values_mut().nth(index).map(|queue| queue.take(rules.most)));
            self.forget_empty();
        }
        (batches, None)
    }

    /// The queue that is due first: when, the number of its first row, and its place.
    fn first(&self, wait: f64) -> Option<(f64, u64, usize)> {
        let due = self.queues.values().enumerate().filter_map(|(index, queue)| {
            let (due, number) = queue.due(wait, self.rules.most, self.free_since)?;
            Some((due, number, index))
        });
        due.min_by(|left, right| left.0.total_cmp(&right.0).then(left.1.cmp(&right.1)))
    }

    fn forget_empty(&mut self) {
        self.queues.retain(|_, queue| !queue.rows.is_empty());
    }
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { rows: BTreeMap::new(), weight: 0, called: false }
    }
}

impl<T> Queue<T> {
    /// When a batch is due, and the number of its first row.
    fn due(&self, wait: f64, most: u64, free_since: f64) -> Option<(f64, u64)> {
        let (&number, row) = self.rows.first_key_value()?;
        let since = row.arrived.max(free_since);
        let ready = self.called || self.weight >= most;
        Some((if ready { since } else { since + wait }, number))
    }

    /// Take the rows that have waited longest, of at most this weight, but one at least.
    fn take(&mut self, most: u64) -> Vec<T> {
        let (mut batch, mut weight) = (Vec::new(), 0);
        while let Some(row) = self.rows.first_entry() {
            if !batch.is_empty() && weight + row.get().weight > most {
                break;
            }
            let row = row.remove();
            weight += row.weight;
            batch.push(row.item);
        }
        self.weight -= weight;
        self.called = false;
        batch
    }
}
