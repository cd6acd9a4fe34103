//! Where to fork next, and what to keep: decisions as pure functions of columns, options and a seed.
//!
//! * [`fork_points`] and [`uniform`]: any state in which the model moves next (Tree-GRPO).
//! * [`Search`]: UCT and UCB1 with virtual loss, down a tree (MCTS).
//! * [`top_turns`]: the most uncertain turns (`ParallelMuse`). [`surprising`]: the most surprising tokens (`EPTree`).
//! * [`Adaptive`]: after tool rounds whose entropy rose (ARPO, AEPO).
//! * [`LeafChoice`]: which leaves to keep. [`budget`]: what all this costs.
//!
//! Equal inputs give equal picks on every machine: chance comes from [`crate::Random`], logarithms and exponentials
//! from `libm` in software, and whatever ties is taken in the order it is given.

mod adaptive;
pub mod budget;
mod leaves;
mod perplexity;
mod points;
pub(crate) mod random;
mod search;
mod surprisal;

pub use adaptive::{Adaptive, EntropyRow, Rule, initial_chains};
pub use leaves::LeafChoice;
pub use perplexity::{Ranking, top_turns};
pub use points::{fork_points, uniform};
pub use search::{Formula, Scoring, Search};
pub use surprisal::{LogprobColumns, Position, surprising};
