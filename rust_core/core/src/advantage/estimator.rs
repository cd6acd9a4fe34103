//! An estimator: a preset, its options, and what it makes of a batch.

use std::borrow::Cow;

use super::batch::{Advantages, Batch};
use super::groups::{drop_zero, group_advantages};
use super::options::{Options, Setting, unknown};
use super::preset::{Method, NAMES, find};
use super::scope::{Scope, need};
use super::values::NodeValues;
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
            Method::Groups => self.rows(batch),
            Method::Steps => steps::gigpo(batch, &group(batch)?, &self.options),
            _ => self.nodes(batch, need(batch.forest, "forest (parents, leaves)")?),
        }
    }

    fn rows(&self, batch: &Batch) -> Result<Advantages> {
        let group = group(batch)?;
        let scopes: Vec<Scope> = self.options.scopes.resolve(batch, &group)?;
        group_advantages(batch, &scopes, &self.options)
    }

    /// Advantages of rows, without those of masked ones, which are in no average.
    fn unmasked(&self, batch: &Batch) -> Result<Vec<f64>> {
        let found = self.rows(batch)?.values.into_iter().enumerate();
        Ok(found.map(|(row, value)| if batch.is_masked(row) { f64::NAN } else { value }).collect())
    }

    fn nodes(&self, batch: &Batch, forest: &Forest) -> Result<Advantages> {
        let options = &self.options;
        let rewards = batch.counted(options.count_masked);
        let values = match self.method {
            Method::Differences => process::differences(forest, &rewards, options),
            Method::Code => treerl::node_rewards(forest, batch, &rewards, options)?,
            Method::Paper => process::gains_by_leaves(forest, &rewards),
            Method::Edges => process::edges(forest, &rewards, options),
            Method::Segments => process::segments(forest, &rewards, options)?,
            Method::Hard | Method::Groups | Method::Steps => {
                let mut means = NodeValues::default();
                means.leaf_means(forest, &self.unmasked(batch)?)?;
                means.values
            }
        };
        let mut kept = trained(forest, batch);
        for (kept, _) in kept.iter_mut().zip(&values).filter(|(_, value)| value.is_nan()) {
            *kept = 0;
        }
        drop_zero(&values, &mut kept, options);
        Ok(Advantages { values, kept })
    }
}

/// The column of groups, or the roots that the rows' leaves are under.
fn group<'a>(batch: &Batch<'a>) -> Result<Cow<'a, [u32]>> {
    match (batch.group, batch.forest) {
        (Some(group), _) => Ok(Cow::Borrowed(group)),
        (None, Some(forest)) => {
            let roots = forest.roots();
            Ok(Cow::Owned(forest.leaves().iter().map(|&leaf| roots[leaf as usize]).collect()))
        }
        (None, None) => need(None, "group"),
    }
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
