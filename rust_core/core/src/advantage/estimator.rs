//! An estimator: a preset, its options, and what it makes of a batch.

use super::batch::{Advantages, Batch};
use super::groups::{drop_zero, within};
use super::land::to_nodes;
use super::options::{Options, Setting, check, unknown};
use super::preset::{Method, NAMES, find};
use super::scope::{Scope, need};
use super::{process, steps, treerl};
use crate::error::Result;
use crate::forest::Forest;

/// A way to turn rewards into advantages, by name, with options to change.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimator {
    method: Method,
    options: Options,
}

impl Estimator {
    /// The names of all presets.
    pub const PRESETS: &'static [&'static str] = NAMES;

    /// The estimator of a preset.
    ///
    /// # Errors
    /// [`Error::Value`](crate::Error::Value) listing the presets if there is none of this name.
    pub fn preset(name: &str) -> Result<Self> {
        let (method, options) = find(name).ok_or_else(|| unknown("preset", name, &NAMES.join(", ")))?;
        Ok(Self { method, options })
    }

    /// The estimator of [`group_advantages`] with its default options.
    #[must_use]
    pub fn groups() -> Self {
        Self { method: Method::Groups, options: Options::default() }
    }

    /// Change an option.
    ///
    /// # Errors
    /// [`Error::Value`](crate::Error::Value) listing the options or values there are if it has no such option or value.
    pub fn set(&mut self, name: &str, setting: &Setting) -> Result<()> {
        self.options.set(self.method.options(), name, setting)
    }

    /// Check that it has an option.
    ///
    /// # Errors
    /// [`Error::Value`](crate::Error::Value) listing the options there are.
    pub fn check(&self, name: &str) -> Result<()> {
        check(self.method.options(), name)
    }

    /// Its options and their values.
    #[must_use]
    pub fn settings(&self) -> Vec<(&'static str, Setting)> {
        self.options.get(self.method.options())
    }

    /// Its options.
    #[must_use]
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// Whether its values are those of nodes, not of rows.
    #[must_use]
    pub const fn on_nodes(&self) -> bool {
        self.method.on_nodes()
    }

    /// Advantages of rows or nodes.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length) or [`Error::Value`](crate::Error::Value) naming the column, the
    /// option, the row or the node.
    pub fn estimate(&self, batch: &Batch) -> Result<Advantages> {
        batch.check()?;
        match self.method {
            Method::Groups => rows(batch, &self.options),
            Method::Steps => steps::gigpo(batch, &batch.group()?, &self.options),
            _ => self.nodes(batch, need(batch.forest, "forest (parents, leaves)")?),
        }
    }

    /// Advantages of rollouts on the nodes they share. Those that are 0 are in the mean like others.
    fn shared(&self, batch: &Batch, forest: &Forest) -> Result<Vec<f64>> {
        let rows = rows(batch, &Options { drop_zero: false, ..self.options.clone() })?;
        to_nodes(forest, &rows.values, Some(&rows.kept)).map(|found| found.values)
    }

    fn nodes(&self, batch: &Batch, forest: &Forest) -> Result<Advantages> {
        let options = &self.options;
        let rewards = batch.counted(options.count_masked);
        let values = match self.method {
            Method::Differences => process::differences(forest, &rewards, options)?,
            Method::Code => treerl::node_rewards(forest, batch, &rewards, options)?,
            Method::Paper => process::gains_by_leaves(forest, &rewards)?,
            Method::Edges => process::edges(forest, &rewards, options)?,
            Method::Segments => process::segments(forest, &rewards, options)?,
            Method::Hard | Method::Groups | Method::Steps => self.shared(batch, forest)?,
        };
        let mut kept = trained(forest, batch);
        for (kept, _) in kept.iter_mut().zip(&values).filter(|(_, value)| value.is_nan()) {
            *kept = 0;
        }
        drop_zero(&values, &mut kept, options);
        Ok(Advantages { values, kept })
    }
}

fn rows(batch: &Batch, options: &Options) -> Result<Advantages> {
    let group = batch.group()?;
    let scopes: Vec<Scope> = options.scopes.resolve(batch, &group)?;
    within(batch, &scopes, options)
}

/// Per node whether a rollout that is not masked passes through it or ends there.
fn trained(forest: &Forest, batch: &Batch) -> Vec<u8> {
    let mut trained = vec![0; forest.parents().len()];
    for (row, &leaf) in forest.leaves().iter().enumerate() {
        trained[leaf as usize] |= u8::from(!batch.is_masked(row));
    }
    for (node, &parent) in forest.parents().iter().enumerate().rev() {
        trained[parent as usize] |= trained[node];
    }
    trained
}
