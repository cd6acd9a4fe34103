//! Long requests, kept until the next one of their conversation: its new messages are written behind those that they share.

use std::sync::{Arc, Mutex, PoisonError};

use super::exchange::flight_of;
use super::{AgentKey, FlightView, SharedTree, TurnEngine, write_end};
use crate::error::Result;
use crate::http::{BufferPool, ExchangeTable};
use crate::turn::request::Source;

/// Requests that nothing reads any more, and what they say.
pub(super) type KeptRequests = Arc<Mutex<BufferPool<Messages>>>;

/// The messages of a request, and where in it they begin and end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Messages {
    pub(super) tree: u64,
    agent: AgentKey,
    source: Source,
    start: usize,
    end: usize,
}

/// The bytes of a request, which are kept when it is dropped.
#[derive(Debug)]
pub struct LongRequest {
    bytes: Vec<u8>,
    messages: Messages,
    kept: KeptRequests,
}

impl LongRequest {
    /// Head and body.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for LongRequest {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).give(bytes, self.messages);
    }
}

impl<T: SharedTree, W> TurnEngine<T, W> {
    /// Head and body of a request.
    ///
    /// # Errors
    /// If there is no such request.
    pub fn long_request(&self, token: u64, table: &ExchangeTable) -> Result<LongRequest> {
        let FlightView { tree, agent, source, seed, n, .. } = self.view(flight_of(token))?;
        let (entry, plan) = (self.entry(tree)?, self.plan(agent)?);
        let mut head = Vec::new();
        table.head_onto(token, &mut head);
        head.extend_from_slice(&plan.head);
        let start = head.len();
        let mut bytes = entry.tree.with(|tree| {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            let (mut bytes, known) = kept.take(table.room(token), |known| {
                let same = (known.tree, known.agent, known.start) == (entry.serial, agent, start);
                same && tree.goes_on(known.source, source)
            });
            bytes.truncate(known.map_or(0, |known| known.end));
            match bytes.get_mut(..start) {
                Some(room) => room.copy_from_slice(&head),
                None => bytes.extend_from_slice(&head),
            }
            tree.messages_onto(source, known.map(|known| known.source), &mut bytes)?;
            Ok(bytes)
        })?;
        let messages = Messages { tree: entry.serial, agent, source, start, end: bytes.len() };
        bytes.extend_from_slice(&plan.constant);
        write_end(plan.seeded, n, seed, &mut bytes);
        Ok(LongRequest { bytes, messages, kept: Arc::clone(&self.kept) })
    }
}
