//! What a scheduler holds and what it gives.

use super::ledger::{Refusal, Reservation};

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
    pub(super) const fn after(self, n: u32) -> Self {
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
pub struct Refused {
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
    pub refused: Vec<Refused>,
}
