//! Rows of calls for a run file, made of the deltas of a commit, with the checksums of both.

use std::collections::HashMap;

use crate::wire::call_log::{ModelCall, ToolCall};
use crate::wire::delta;
use crate::wire::row_sums::RowSum;

/// Latencies that are kept of one commit, those of its last calls.
const LATENCIES: usize = 512;

/// A row of a call of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelRow<'a> {
    /// The task's number.
    pub task: u32,
    /// The delta's number.
    pub seq: u32,
    /// The number of the call's endpoint.
    pub endpoint: u32,
    /// The number of its agent.
    pub agent: u32,
    /// Microseconds from the beginning of the run to its own.
    pub started: u64,
    /// The call.
    pub call: ModelCall<'a>,
}

impl ModelRow<'_> {
    /// Its figures in the order of the table's columns, but for the call's own number.
    #[must_use]
    pub fn columns(&self) -> [i64; 13] {
        let ModelCall { draws, prompt, cached, generated, attempts, queue, first, micros, .. } = self.call;
        [
            self.task.into(),
            self.seq.into(),
            self.endpoint.into(),
            draws.into(),
            unknown(prompt),
            unknown(cached),
            unknown(generated),
            signed(attempts),
            signed(queue),
            unknown(first),
            signed(micros),
            signed(self.started),
            self.agent.into(),
        ]
    }
}

/// A row of a call of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolRow<'a> {
    /// The task's number.
    pub task: u32,
    /// The delta's number.
    pub seq: u32,
    /// Microseconds from the beginning of the run to that of the call.
    pub started: u64,
    /// The call.
    pub call: ToolCall<'a>,
}

/// What the calls of a commit add up to; those that a cache answered cost nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallFigures<'a> {
    /// Prompt tokens of calls that reported usage.
    pub prompt: u64,
    /// Completion tokens of the same.
    pub generated: u64,
    /// Attempts beyond the first.
    pub retries: u64,
    /// Microseconds of all calls.
    pub micros: u64,
    /// Microseconds of the last calls that brought something.
    pub latencies: Vec<u64>,
    /// Microseconds of tools, by name.
    pub tools: Vec<(&'a str, u64)>,
}

/// The rows of a commit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CommitRows<'a> {
    /// Calls of models.
    pub models: Vec<ModelRow<'a>>,
    /// Calls of tools.
    pub tools: Vec<ToolRow<'a>>,
    /// The checksums of each finished task's calls of models and of tools.
    pub sums: Vec<(u32, u32)>,
    /// The same of all unfinished tasks.
    pub open: (u32, u32),
    /// What the calls add up to.
    pub figures: CallFigures<'a>,
}

/// Names that have no number yet: of endpoints and of agents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewNames<'a> {
    /// Endpoints.
    pub endpoints: Vec<&'a str>,
    /// Agents.
    pub agents: Vec<&'a str>,
}

/// Numbers of names.
type Numbers = HashMap<Box<str>, u32>;

/// Makes the rows of a run's calls, and adds up their checksums by task.
#[derive(Clone, Debug, Default)]
pub struct CallRows {
    began: i64,
    endpoints: Numbers,
    agents: Numbers,
    // Of tasks that are not finished, and of all of these together.
    sums: HashMap<u32, (u32, u32)>,
    open: (u32, u32),
    // What a commit changes, once it is done.
    named: [Numbers; 2],
    fresh: HashMap<u32, (u32, u32)>,
    finished: Vec<u32>,
}

impl CallRows {
    /// Of a run that began at this microsecond of the clock that calls tell.
    #[must_use]
    pub fn new(began: i64) -> Self {
        Self { began, ..Self::default() }
    }

    /// Add to the checksums of an unfinished task: rows that are in the file.
    pub fn add_sums(&mut self, task: u32, sums: (u32, u32)) {
        let known = self.sums.entry(task).or_default();
        *known = plus(*known, sums);
        self.open = plus(self.open, sums);
    }

    /// Make the rows of a commit: of deltas with the numbers of task and delta, with tasks that finish. A delta that cannot be
    /// read has none. `named` has the numbers of names that were missing.
    ///
    /// # Errors
    /// Names without a number; then there are no rows.
    pub fn rows<'a>(
        &mut self,
        deltas: &[(u32, u32, &'a [u8])],
        finished: &[u32],
        named: [Numbers; 2],
    ) -> std::result::Result<CommitRows<'a>, NewNames<'a>> {
        self.named = named;
        self.fresh.clear();
        self.finished = finished.to_vec();
        let mut found = CommitRows::default();
        let mut missing = NewNames::default();
        for &(task, seq, data) in deltas {
            let Ok(Some(calls)) = delta::calls_of(data) else { continue };
            for call in calls.models {
                let endpoint = number(&self.endpoints, &self.named[0], call.endpoint, &mut missing.endpoints);
                let agent = number(&self.agents, &self.named[1], call.agent, &mut missing.agents);
                let started = self.since(call.started);
                found.models.push(ModelRow { task, seq, endpoint, agent, started, call });
            }
            let rows =
                calls.tools.into_iter().map(|call| ToolRow { task, seq, started: self.since(call.started), call });
            found.tools.extend(rows);
        }
        if missing != NewNames::default() {
            return Err(missing);
        }
        for row in &found.models {
            let columns = row.columns();
            let mut sum = RowSum::row(0, columns.len());
            sum.wholes(columns);
            let sums = self.fresh.entry(row.task).or_default();
            *sums = plus(*sums, (sum.sum(), 0));
        }
        for ToolRow { task, seq, started, call } in &found.tools {
            let mut sum = RowSum::row(0, 7);
            sum.wholes([*task, *seq, call.rollout].map(i64::from));
            sum.text(call.tool);
            sum.wholes([call.failed.into(), signed(call.micros), signed(*started)]);
            let sums = self.fresh.entry(*task).or_default();
            *sums = plus(*sums, (0, sum.sum()));
        }
        found.sums = finished.iter().map(|task| self.sums_of(*task)).collect();
        found.open = self.unfinished();
        found.figures = figures(&found.models, &found.tools);
        Ok(found)
    }

    /// The commit is in the file.
    pub fn keep(&mut self) {
        self.open = self.unfinished();
        let [endpoints, agents] = std::mem::take(&mut self.named);
        self.endpoints.extend(endpoints);
        self.agents.extend(agents);
        for (task, sums) in self.fresh.drain() {
            let known = self.sums.entry(task).or_default();
            *known = plus(*known, sums);
        }
        for task in self.finished.drain(..) {
            self.sums.remove(&task);
        }
    }

    fn since(&self, at: u64) -> u64 {
        signed(at).saturating_sub(self.began).max(0).unsigned_abs()
    }

    fn sums_of(&self, task: u32) -> (u32, u32) {
        let [known, fresh] = [&self.sums, &self.fresh].map(|sums| sums.get(&task).copied().unwrap_or_default());
        plus(known, fresh)
    }

    /// The checksums of unfinished tasks together, once the commit is in the file.
    fn unfinished(&self) -> (u32, u32) {
        let all = self.fresh.values().fold(self.open, |all, &sums| plus(all, sums));
        let mut finished = self.finished.clone();
        finished.sort_unstable();
        finished.dedup();
        finished.iter().fold(all, |(models, tools), &task| {
            let done = self.sums_of(task);
            (models.wrapping_sub(done.0), tools.wrapping_sub(done.1))
        })
    }
}

/// The number of a name; one that has none is missing.
fn number<'a>(known: &Numbers, named: &Numbers, name: &'a str, missing: &mut Vec<&'a str>) -> u32 {
    known.get(name).or_else(|| named.get(name)).copied().unwrap_or_else(|| {
        if !missing.contains(&name) {
            missing.push(name);
        }
        0
    })
}

fn figures<'a>(models: &[ModelRow<'a>], tools: &[ToolRow<'a>]) -> CallFigures<'a> {
    let mut found = CallFigures::default();
    for call in models.iter().map(|row| &row.call).filter(|call| call.attempts > 0) {
        if let (Some(prompt), Some(generated)) = (call.prompt, call.generated) {
            found.prompt = found.prompt.saturating_add(prompt);
            found.generated = found.generated.saturating_add(generated);
        }
        found.retries = found.retries.saturating_add(call.attempts - 1);
        found.micros = found.micros.saturating_add(call.micros);
        if call.draws > 0 {
            found.latencies.push(call.micros);
        }
    }
    let older = found.latencies.len().saturating_sub(LATENCIES);
    found.latencies.drain(..older);
    for call in tools.iter().map(|row| &row.call) {
        match found.tools.iter_mut().find(|(name, _)| *name == call.tool) {
            Some((_, micros)) => *micros = micros.saturating_add(call.micros),
            None => found.tools.push((call.tool, call.micros)),
        }
    }
    found
}

const fn plus(one: (u32, u32), other: (u32, u32)) -> (u32, u32) {
    (one.0.wrapping_add(other.0), one.1.wrapping_add(other.1))
}

fn signed(figure: u64) -> i64 {
    i64::try_from(figure).unwrap_or(i64::MAX)
}

fn unknown(figure: Option<u64>) -> i64 {
    figure.map_or(-1, signed)
}
