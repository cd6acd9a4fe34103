//! The one error type of the crate.

use crate::keyword::UnknownWord;

/// What every fallible operation returns.
pub type Result<T> = std::result::Result<T, Error>;

/// What a check of invariants finds: nothing, or what is wrong.
pub(crate) type Finding = std::result::Result<(), String>;

/// A column of the right length.
pub(crate) fn length(what: &'static str, need: usize, have: usize) -> Result<()> {
    if need == have { Ok(()) } else { Err(Error::Length { what, need, have }) }
}

/// A list of numbers for an error to quote, as far as its first ones.
pub(crate) fn some(numbers: &[u32]) -> String {
    const MOST: usize = 16;
    match numbers.get(..MOST) {
        Some(first) if numbers.len() > MOST => format!("{first:?} and {} more", numbers.len() - MOST),
        _ => format!("{numbers:?}"),
    }
}

/// A text for an error to quote, as far as its first 40 characters.
pub(crate) fn beginning(text: &str) -> String {
    text.chars().take(40).collect()
}

/// An operation was refused. Whatever it was called on is unchanged.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Earlier work on a shared tree has failed in the middle.
    #[error("an internal error has left a tree unusable; this is a bug in trunkline")]
    Broken,
    /// An id that names nothing.
    #[error("{what} {id} does not exist; there are {count}")]
    Unknown {
        /// What the id should have named.
        what: &'static str,
        /// The id.
        id: u32,
        /// How many there are.
        count: u32,
    },
    /// All ids of a kind are in use.
    #[error("no room for another {what}: ids are 32 bits wide")]
    Full {
        /// What has no room.
        what: &'static str,
    },
    /// Something that is interned already and was written down a second time.
    #[error("this {what} is interned already")]
    Repeated {
        /// What is repeated.
        what: &'static str,
    },
    /// More bytes or elements than a span can address.
    #[error("a {what} of {len} elements is too long; the limit is 4294967295")]
    TooLong {
        /// What is too long.
        what: &'static str,
        /// Its length.
        len: usize,
    },
    /// Bytes that cannot be a message.
    #[error("a message must be one JSON object in UTF-8: {reason}")]
    Message {
        /// What is wrong with them.
        reason: &'static str,
    },
    /// Bytes that cannot be a piece of a message.
    #[error("a piece of a message must be UTF-8 text behind its marker: {reason}")]
    Piece {
        /// What is wrong with them.
        reason: &'static str,
    },
    /// Pieces that make no messages.
    #[error("fragment {place} of a context {reason}")]
    Context {
        /// Where in the list, from 0.
        place: usize,
        /// What is wrong there.
        reason: &'static str,
    },
    /// Bytes that are not text.
    #[error("{what} is not valid UTF-8")]
    Text {
        /// What the bytes were meant to be.
        what: &'static str,
    },
    /// A kind of node that cannot be appended this way.
    #[error("kind {kind} cannot be appended here: only PROMPT (1) and MESSAGE (4) belong to no rollout")]
    Kind {
        /// The kind.
        kind: u32,
    },
    /// A token figure out of range.
    #[error("{field} is {value}; a token figure is -1 (unreported) or 0 to 4294967294")]
    Tokens {
        /// Which figure.
        field: &'static str,
        /// Its value.
        value: i64,
    },
    /// A name for an ending that is none.
    #[error("{0}")]
    Termination(Box<UnknownWord>),
    /// The rollout has ended and cannot change any more.
    #[error("rollout {rollout} has ended ({termination}) and cannot be {verb}")]
    Ended {
        /// The rollout.
        rollout: u32,
        /// How it ended.
        termination: &'static str,
        /// What was tried.
        verb: &'static str,
    },
    /// The rollout has not ended yet.
    #[error("rollout {rollout} is still growing; close it first")]
    Growing {
        /// The rollout.
        rollout: u32,
    },
    /// The model does not move next at the node.
    #[error("node {node} is no fork point: fork at the prompt, or where a model turn follows")]
    NoState {
        /// The node.
        node: u32,
    },
    /// Two rollouts with one fork path.
    #[error("a rollout with the fork path {} is open already", some(path))]
    DuplicatePath {
        /// The path.
        path: Vec<u32>,
    },
    /// A reward that is infinite.
    #[error("a reward must be a finite number, or NaN for unscored; it is {reward}")]
    Reward {
        /// The reward.
        reward: f64,
    },
    /// A lane that does not exist.
    #[error("lane {lane} does not exist; there are {count}")]
    Lane {
        /// The lane.
        lane: usize,
        /// How many there are.
        count: usize,
    },
    /// A lane that has been taken out before.
    #[error("lane {lane} has finished already; a lane finishes once")]
    LaneFinished {
        /// The lane.
        lane: usize,
    },
    /// A buffer of the wrong size for a request body.
    #[error("the request body has {need} bytes, the buffer {have}")]
    Buffer {
        /// Bytes needed.
        need: usize,
        /// Bytes given.
        have: usize,
    },
    /// Columns that belong together and have different lengths.
    #[error("{have} {what} where {need} are needed")]
    Length {
        /// Which column.
        what: &'static str,
        /// Elements needed.
        need: usize,
        /// Elements given.
        have: usize,
    },
    /// A value that makes no sense where it is.
    #[error("{0}")]
    Value(#[from] Box<ValueError>),
    /// Bytes that are no chat completion.
    #[error("{0}")]
    Reply(#[from] crate::reply::ReplyError),
    /// A delta that cannot be replayed.
    #[error("delta refused: {0}")]
    Delta(#[from] DeltaError),
    /// A tree that contradicts itself: a bug in this crate or in memory.
    #[error("tree is inconsistent: {0}")]
    Invariant(String),
}

impl Error {
    /// A number that is out of its range.
    pub(crate) fn range(fact: impl Into<String>, range: &'static str) -> Self {
        ValueError::Range { fact: fact.into(), range }.into()
    }

    /// Something named that is not there, or not in a state to be used.
    pub(crate) fn reference(fact: impl Into<String>, want: &'static str) -> Self {
        ValueError::Reference { fact: fact.into(), want }.into()
    }

    /// More than there is memory for.
    pub(crate) fn memory(fact: impl Into<String>, want: &'static str) -> Self {
        ValueError::Memory { fact: fact.into(), want }.into()
    }

    /// Values that do not go together.
    pub(crate) fn conflict(fact: impl Into<String>, want: &'static str) -> Self {
        ValueError::Conflict { fact: fact.into(), want }.into()
    }
}

impl From<ValueError> for Error {
    fn from(error: ValueError) -> Self {
        Self::Value(Box::new(error))
    }
}

/// Why a value makes no sense where it is.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// A word that an option does not know.
    #[error("{0}")]
    Word(UnknownWord),
    /// A number that is out of its range.
    #[error("{fact}; it must be {range}")]
    Range {
        /// Where it is and what it is.
        fact: String,
        /// What it must be.
        range: &'static str,
    },
    /// A column that was not given.
    #[error("the column {column} is missing; it must be given for this estimator")]
    Missing {
        /// Which.
        column: &'static str,
    },
    /// Something named that is not there, or not in a state to be used.
    #[error("{fact}; it must be {want}")]
    Reference {
        /// What was named, and what is wrong with it.
        fact: String,
        /// What must be named.
        want: &'static str,
    },
    /// More than there is memory for.
    #[error("{fact}; it must be {want}")]
    Memory {
        /// How much that is.
        fact: String,
        /// What it must be.
        want: &'static str,
    },
    /// Values that do not go together.
    #[error("{fact}; it must be {want}")]
    Conflict {
        /// What they are.
        fact: String,
        /// What one of them must be.
        want: &'static str,
    },
}

/// Why a delta was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DeltaError {
    /// Fewer bytes than the record says it has.
    #[error("it is truncated: {have} bytes where {need} are needed")]
    Truncated {
        /// Bytes needed.
        need: usize,
        /// Bytes given.
        have: usize,
    },
    /// More bytes than the record says it has.
    #[error("{extra} bytes follow its end")]
    Trailing {
        /// How many.
        extra: usize,
    },
    /// Not a delta at all.
    #[error("it does not start like a delta")]
    Magic,
    /// Written by another version of the format.
    #[error("its format version is {found}; this build reads version {known}")]
    Version {
        /// The version found.
        found: u16,
        /// The version this build reads.
        known: u16,
    },
    /// The checksum does not match.
    #[error("its checksum does not match: it was damaged")]
    Checksum,
    /// A delta before this one is missing.
    #[error("it is number {found}, but number {expected} comes next")]
    Gap {
        /// The number that comes next.
        expected: u32,
        /// The number it has.
        found: u32,
    },
    /// It continues another history than this tree's.
    #[error("number {sequence} does not continue this tree: it belongs to another tree or another history")]
    Foreign {
        /// Its number.
        sequence: u32,
    },
    /// Its contexts would join more bytes from pieces than any run sends.
    #[error("operation {index} is the one too many: contexts of one delta join at most {limit} bytes from pieces")]
    Joined {
        /// Which operation, from 0.
        index: usize,
        /// The limit.
        limit: u64,
    },
    /// The tree has changes of its own that are in no delta.
    #[error("the tree has changes of its own; take them with delta() first")]
    Pending,
    /// An operation in it cannot be read.
    #[error("operation {index} at byte {offset} cannot be read: {reason}")]
    Decode {
        /// Which operation, from 0.
        index: usize,
        /// Where it starts in the payload.
        offset: usize,
        /// What is wrong.
        reason: &'static str,
    },
    /// An operation in it is against the rules.
    #[error("operation {index} is against the rules: {source}")]
    Rule {
        /// Which operation, from 0.
        index: usize,
        /// The rule.
        source: Box<Error>,
    },
}
