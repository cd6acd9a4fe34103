//! Why a rollout ended: one list for every program and screen.

use std::fmt;

use crate::error::Error;
use crate::keyword::keywords;

keywords! {
    /// Why a rollout ended. A position in the list of all is the code in a delta.
    #[derive(Hash)]
    #[repr(u8)]
    pub enum Termination as "a termination", Nothing, Error::Termination {
        /// The model gave its answer.
        Answer = "answer",
        /// It used up its turns.
        MaxTurns = "max_turns",
        /// It used up its tokens.
        MaxTokens = "max_tokens",
        /// The conversation no longer fits the model.
        MaxContext = "max_context",
        /// It used up its tool calls.
        ToolLimit = "tool_limit",
        /// The provider withheld a reply.
        ContentFilter = "content_filter",
        /// The endpoint refused the request itself.
        BadRequest = "bad_request",
        /// The model gave no usable reply.
        LlmError = "llm_error",
        /// A tool failed in a way the model cannot see.
        ToolError = "tool_error",
        /// Something with side effects may or may not have happened.
        UnknownEffect = "unknown_effect",
        /// A filter took it out.
        Filtered = "filtered",
        /// It was cut because its result no longer mattered.
        Censored = "censored",
        /// The user or a strategy stopped it.
        Cancelled = "cancelled",
        /// The process it grew in died.
        Lost = "lost",
        /// It had ended otherwise, and was asked again: another draw stands in its place.
        Retried = "retried",
    }
}

impl Termination {
    /// The code in a delta.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The termination with a code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

impl fmt::Display for Termination {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}
