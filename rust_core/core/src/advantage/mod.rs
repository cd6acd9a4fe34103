//! Values of nodes and advantages of rollouts, steps, turns and nodes.
//!
//! Everything here is a pure function of columns and perhaps a [`Forest`](crate::Forest). Unscored rows (NaN) get NaN
//! and are in no baseline; sums are 64-bit; the order of rows matters to rounding only. Sources of formulas are named
//! repository:function; `docs/reference/estimators.md` has them all in one table.

mod batch;
mod estimator;
mod groups;
mod keys;
mod moments;
mod options;
mod process;
mod rule;
mod steps;
mod treerl;
mod values;

pub use batch::{Advantages, Batch, Trained, to_nodes, to_tokens};
pub use estimator::Estimator;
pub use groups::group_advantages;
pub use options::{
    Centre, Combine, Damping, EstimatorOptions, Scale, Scope, Scopes, Setting, Signal, Singleton, Unit, Whiten,
    ZeroVariance,
};
pub use steps::step_returns;
pub use values::{Backup, NodeValues};
