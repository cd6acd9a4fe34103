//! Deltas: what changed in a tree since the last one, as one byte string that rebuilds the change elsewhere.
//!
//! A record, all numbers little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 4 | `TKDL` |
//! | 2 | format version |
//! | 2 | zero |
//! | 4 | sequence number, from 0 |
//! | 4 | length of the payload |
//! | 8 | checksum of the delta before, 0 for the first: ties a delta to its own history |
//! | n | payload: calls of models and tools where there are any, then operations, one after the other |
//! | 8 | xxh3-64 of all of the above |

use xxhash_rust::xxh3::xxh3_64;

use crate::error::{DeltaError, Error, Result};
use crate::id::{self, FragmentId, RunId};
use crate::storage::held;
use crate::tree::Tree;
use crate::wire::call_log::{CALLS, CallLog};
use crate::wire::codec::{self, ByteReader, TOKEN};
use crate::wire::op::Op;
use crate::wire::overlay::Overlay;
use crate::wire::rules::{self, View};

const MAGIC: [u8; 4] = *b"TKDL";

/// Version of the delta's format.
pub const FORMAT: u16 = 8;

/// The first version that is read. Deltas of 7 have no calls.
pub const OLDEST_FORMAT: u16 = 7;

/// Bytes that contexts of one delta may join from pieces: some seconds of hashing, and the prompts of a million turns. A few
/// bytes of a delta name a long piece again, so without a limit a short one could keep its reader busy for days.
const JOINED: u64 = 1 << 36;

/// Bytes of operations, beside messages and tokens, that a delta usually has.
const USUAL: usize = 128;

const HEADER: usize = 24;
const CHECKSUM: usize = 8;

/// What an operation stored in the tree, and the journal therefore does not repeat.
#[derive(Clone, Copy, Debug)]
enum Stored {
    Message(FragmentId),
    Tokens(RunId),
}

/// The operations since the last delta, written down, and where in the history of deltas the tree is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Journal {
    ops: Vec<u8>,
    // What belongs at which place of `ops`, and how many bytes it all has.
    stored: Vec<(usize, Stored)>,
    bytes: usize,
    // The checksums of all deltas so far, in order.
    history: Vec<u64>,
}

impl Journal {
    /// Write down an operation that was carried out, and made or reached an id.
    pub(crate) fn record(&mut self, op: &Op<'_>, made: u32) {
        if self.ops.is_empty() {
            self.ops.reserve(USUAL);
        }
        op.encode(&mut self.ops);
        let (stored, bytes) = match op {
            Op::Fragment(message) => (Stored::Message(FragmentId::new(made)), message.bytes.len()),
            Op::Run(run) => (Stored::Tokens(RunId::new(made)), TOKEN * run.tokens().len()),
            _ => return,
        };
        self.stored.push((self.ops.len(), stored));
        self.bytes += bytes;
    }

    fn advance(&mut self, checksum: u64) {
        // Given back: a rollout that waits for its model has nothing to write down.
        (self.ops, self.stored, self.bytes) = (Vec::new(), Vec::new(), 0);
        self.history.push(checksum);
    }

    /// The number of the next delta.
    fn sequence(&self) -> Result<u32> {
        id::next(self.history.len(), "delta")
    }

    /// The checksum that the delta with this number continues.
    fn before(&self, sequence: u32) -> u64 {
        let before = (sequence as usize).checked_sub(1);
        before.and_then(|place| self.history.get(place)).copied().unwrap_or_default()
    }

    /// Bytes that memory is held for.
    pub(crate) fn memory(&self) -> usize {
        held(&self.ops) + held(&self.stored) + held(&self.history)
    }

    /// Begin a new history.
    pub(crate) fn reset(&mut self) {
        self.advance(0);
        self.history.clear();
    }
}

/// A record whose frame and checksum are sound.
struct Record<'a> {
    format: u16,
    sequence: u32,
    previous: u64,
    payload: &'a [u8],
    checksum: u64,
}

impl<'a> Record<'a> {
    /// Its calls, and what follows them; nothing where it has none.
    fn calls(&self) -> std::result::Result<Option<(CallLog<'a>, &'a [u8])>, DeltaError> {
        let mut reader = ByteReader::new(self.payload);
        if self.format == OLDEST_FORMAT || self.payload.first() != Some(&CALLS) {
            return Ok(None);
        }
        let calls = reader.byte().and_then(|_| CallLog::decode(&mut reader));
        let offset = self.payload.len() - reader.left();
        let calls = calls.map_err(|reason| DeltaError::Decode { index: 0, offset, reason })?;
        Ok(Some((calls, &self.payload[offset..])))
    }

    /// It is not of the history that it was meant to continue.
    fn foreign(&self) -> Error {
        DeltaError::Foreign { sequence: self.sequence }.into()
    }
}

impl Tree {
    /// What changed since the last call or the last delta applied; nothing if nothing did.
    ///
    /// # Errors
    /// If the change is larger than 4 GiB, or the sequence numbers are used up. The change is kept.
    pub fn delta(&mut self) -> Result<Option<Vec<u8>>> {
        self.delta_with(&CallLog::default())
    }

    /// The same with calls of models and tools, which are in no tree. Nothing if there are none and nothing changed.
    ///
    /// # Errors
    /// As for [`Tree::delta`], or if a call has a rollout that does not exist or a figure of more than 63 bits.
    pub fn delta_with(&mut self, calls: &CallLog<'_>) -> Result<Option<Vec<u8>>> {
        calls.tools.iter().try_for_each(|call| rules::known("rollout", call.rollout, self.rollouts.count()))?;
        let calls = calls.encode()?;
        let Journal { ops, stored, bytes, .. } = &self.journal;
        if ops.is_empty() && calls.is_empty() {
            return Ok(None);
        }
        let size = calls.len() + ops.len() + bytes;
        let len = u32::try_from(size).map_err(|_| Error::TooLong { what: "delta", len: size })?;
        let sequence = self.journal.sequence()?;
        let mut out = Vec::with_capacity(HEADER + size + CHECKSUM);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&FORMAT.to_le_bytes());
        out.extend_from_slice(&[0, 0]);
        out.extend_from_slice(&sequence.to_le_bytes());
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&self.journal.before(sequence).to_le_bytes());
        out.extend_from_slice(&calls);
        let mut from = 0;
        for &(at, stored) in stored {
            out.extend_from_slice(&ops[from..at]);
            from = at;
            match stored {
                Stored::Message(id) => out.extend_from_slice(self.fragments.get(id)),
                Stored::Tokens(id) => codec::put_tokens(&mut out, &self.runs.get(id)),
            }
        }
        out.extend_from_slice(&ops[from..]);
        let checksum = xxh3_64(&out);
        out.extend_from_slice(&checksum.to_le_bytes());
        self.journal.advance(checksum);
        Ok(Some(out))
    }

    /// Replay a delta of the same tree. `false` if it was applied before.
    ///
    /// The delta is read and judged as a whole before anything changes.
    ///
    /// # Errors
    /// [`Error::Delta`] on a gap, on damage, on a foreign delta, or if this tree has changes that are in no delta.
    pub fn apply(&mut self, delta: &[u8]) -> Result<bool> {
        // A delta that joins more than there is a limit for is refused before.
        Ok(self.apply_short(delta, u64::MAX)?.unwrap_or_default())
    }

    /// The same, if its contexts join at most so many bytes from pieces. Nothing, and nothing has changed, if they join more.
    ///
    /// # Errors
    /// As for [`Tree::apply`].
    pub fn apply_short(&mut self, delta: &[u8], most: u64) -> Result<Option<bool>> {
        let record = read_record(delta)?;
        let expected = self.journal.sequence()?;
        if let Some(&known) = self.journal.history.get(record.sequence as usize) {
            return if known == record.checksum { Ok(Some(false)) } else { Err(record.foreign()) };
        }
        if record.sequence > expected {
            return Err(DeltaError::Gap { expected, found: record.sequence }.into());
        }
        if !self.journal.ops.is_empty() {
            return Err(DeltaError::Pending.into());
        }
        if record.previous != self.journal.before(expected) {
            return Err(record.foreign());
        }
        let (ops, joined) = self.judge(&record)?;
        if joined > most {
            return Ok(None);
        }
        self.visits.begin();
        ops.iter().try_for_each(|op| self.commit(op).map(|_| ()))?;
        self.visits.finish(&self.nodes, &self.rollouts);
        self.journal.advance(record.checksum);
        Ok(Some(true))
    }

    /// Read all operations and check each against the state it would meet; with them, the bytes that contexts join.
    fn judge<'a>(&self, record: &Record<'a>) -> Result<(Vec<Op<'a>>, u64)> {
        let (payload, mut reader, calls) = (record.payload, ByteReader::new(record.payload), record.calls()?);
        if let Some((_, rest)) = &calls {
            reader = ByteReader::new(rest);
        }
        let mut overlay = Overlay::new(self);
        let mut ops = Vec::new();
        while reader.left() > 0 {
            let index = ops.len();
            let offset = payload.len() - reader.left();
            let op = Op::decode(&mut reader).map_err(|reason| DeltaError::Decode { index, offset, reason })?;
            rules::check(&overlay, &op, &overlay.counts())
                .map_err(|source| DeltaError::Rule { index, source: Box::new(source) })?;
            overlay.advance(&op);
            if overlay.joined() > JOINED {
                return Err(DeltaError::Joined { index, limit: JOINED }.into());
            }
            ops.push(op);
        }
        let (tools, rollouts) = (calls.map(|(calls, _)| calls.tools).unwrap_or_default(), overlay.counts().rollouts);
        tools
            .iter()
            .try_for_each(|call| rules::known("rollout", call.rollout, rollouts))
            .map_err(|source| DeltaError::Rule { index: 0, source: Box::new(source) })?;
        Ok((ops, overlay.joined()))
    }
}

/// The calls that came with a delta, wherever it belongs; nothing of a delta that is older than they are.
///
/// # Errors
/// [`Error::Delta`] on damage.
pub fn calls_of(delta: &[u8]) -> Result<Option<CallLog<'_>>> {
    let record = read_record(delta)?;
    let calls = record.calls()?.map(|(calls, _)| calls).unwrap_or_default();
    Ok((record.format > OLDEST_FORMAT).then_some(calls))
}

/// Check the frame of a record and take it apart.
fn read_record(delta: &[u8]) -> std::result::Result<Record<'_>, DeltaError> {
    let have = delta.len();
    let truncated = |need| DeltaError::Truncated { need, have };
    let (magic, rest) = delta.split_first_chunk().ok_or(truncated(HEADER + CHECKSUM))?;
    if *magic != MAGIC {
        return Err(DeltaError::Magic);
    }
    let (version, rest) = rest.split_first_chunk().ok_or(truncated(HEADER + CHECKSUM))?;
    let found = u16::from_le_bytes(*version);
    if !(OLDEST_FORMAT..=FORMAT).contains(&found) {
        return Err(DeltaError::Version { found, known: FORMAT });
    }
    let (reserved, rest) = rest.split_first_chunk::<2>().ok_or(truncated(HEADER + CHECKSUM))?;
    let (sequence, rest) = rest.split_first_chunk().ok_or(truncated(HEADER + CHECKSUM))?;
    let (len, rest) = rest.split_first_chunk().ok_or(truncated(HEADER + CHECKSUM))?;
    let (previous, rest) = rest.split_first_chunk().ok_or(truncated(HEADER + CHECKSUM))?;
    let len = u32::from_le_bytes(*len) as usize;
    let need = len.saturating_add(HEADER + CHECKSUM);
    let (payload, rest) = rest.split_at_checked(len).ok_or(truncated(need))?;
    let (checksum, rest) = rest.split_first_chunk().ok_or(truncated(need))?;
    if !rest.is_empty() {
        return Err(DeltaError::Trailing { extra: rest.len() });
    }
    let checksum = u64::from_le_bytes(*checksum);
    if xxh3_64(&delta[..HEADER + len]) != checksum || *reserved != [0, 0] {
        return Err(DeltaError::Checksum);
    }
    let (sequence, previous) = (u32::from_le_bytes(*sequence), u64::from_le_bytes(*previous));
    Ok(Record { format: found, sequence, previous, payload, checksum })
}
