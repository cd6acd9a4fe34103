//! Why a rollout ended: one list for every program and screen.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

macro_rules! terminations {
    ($($(#[$doc:meta])* $variant:ident = $text:literal,)*) => {
        /// Why a rollout ended.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Termination {
            $($(#[$doc])* $variant,)*
        }

        impl Termination {
            /// Every termination; a position in this list is its code in a delta.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name that Python and every file uses.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

terminations! {
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

impl FromStr for Termination {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Self::ALL.iter().copied().find(|known| known.as_str() == text);
        found.ok_or_else(|| Error::Termination { text: text.chars().take(40).collect() })
    }
}

impl fmt::Display for Termination {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}
