//! Seeds of draws: a function of the run's seed, the task and the fork path alone; hashes that calls of agents are known by.

use blake2::digest::consts::{U8, U16};
use blake2::{Blake2b, Digest};

/// Bases stay below this, so that base + draw fits the 31 bits that every server takes.
const SPACE: u64 = (1 << 31) - (1 << 16);

/// The base seed of a fork point: draw i of it is sent with base + i.
///
/// `path` is the fork path of the rollout whose state this is, flattened (turn, draw, turn, draw, ...), empty before the
/// first fork; `turn` counts the model turns on the path to the state.
#[must_use]
pub fn base_seed(run_seed: i64, task: &[u8], path: &[u32], turn: u32) -> i64 {
    let mut hash = Blake2b::<U8>::new();
    hash.update(run_seed.to_le_bytes());
    hash.update(u32::try_from(path.len()).unwrap_or(u32::MAX).to_le_bytes());
    for word in path {
        hash.update(word.to_le_bytes());
    }
    hash.update(turn.to_le_bytes());
    hash.update(task);
    let digest: [u8; 8] = hash.finalize().into();
    i64::try_from(u64::from_le_bytes(digest) % SPACE).unwrap_or_default()
}

/// The hash of some byte strings in their order, each behind its length.
pub fn parts_digest<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> [u8; 16] {
    let mut hash = Blake2b::<U16>::new();
    for part in parts {
        hash.update(length(part));
        hash.update(part);
    }
    hash.finalize().into()
}

/// How a draw of an agent's call is known: of the call's key, and the draw's number among equal ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallIds {
    /// The key in hexadecimal digits.
    pub key: String,
    /// The turn that its seed is made of, below 2**20.
    pub turn: u32,
    /// What the ids of its reply are made of, in hexadecimal digits.
    pub reply: String,
}

impl CallIds {
    /// The ids of a draw.
    #[must_use]
    pub fn new(key: &[u8], number: u32) -> Self {
        let mut hash = Blake2b::<U8>::new();
        for part in [key, &number.to_le_bytes()] {
            hash.update(length(part));
            hash.update(part);
        }
        let digest: [u8; 8] = hash.finalize().into();
        let turn = u32::try_from(u64::from_le_bytes(digest) % (1 << 20)).unwrap_or_default();
        let key = hex(key);
        let reply = hex(&parts_digest([key.as_bytes(), &number.to_le_bytes()]));
        Self { key, turn, reply }
    }
}

/// The hashes that the beginnings of a conversation are known by.
#[derive(Clone, Debug, Default)]
pub struct ConversationKeys {
    keys: Vec<[u8; 16]>,
    raw: Blake2b<U16>,
}

impl ConversationKeys {
    /// Add a message by its form, and by the same without masks; and the hash up to it, if that is known.
    pub fn add(&mut self, form: &[u8], raw: &[u8], key: Option<[u8; 16]>) {
        self.keys.push(key.unwrap_or_else(|| parts_digest([self.key(self.keys.len()), form])));
        self.raw.update(length(raw));
        self.raw.update(raw);
    }

    /// The hash of the first so many messages: empty for none of them, and for more than there are.
    #[must_use]
    pub fn key(&self, messages: usize) -> &[u8] {
        messages.checked_sub(1).and_then(|last| self.keys.get(last)).map_or(&[], |key| key)
    }

    /// The hash of all forms without masks.
    #[must_use]
    pub fn raw(&self) -> [u8; 16] {
        self.raw.clone().finalize().into()
    }
}

fn length(part: &[u8]) -> [u8; 8] {
    u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes()
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect()
}

/// The seed of a rollout's next turn, which has `turns` model turns before it: its draw of the fork point that it was
/// opened at, and the first draw of every state after that.
#[must_use]
pub fn next_seed(run_seed: i64, task: &[u8], path: &[u32], turns: u32) -> i64 {
    match path {
        [trunk @ .., turn, draw] if *turn == turns => base_seed(run_seed, task, trunk, turns) + i64::from(*draw),
        _ => base_seed(run_seed, task, path, turns),
    }
}
