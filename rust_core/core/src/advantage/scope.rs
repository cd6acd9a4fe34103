//! Which rows are compared with which.

use super::batch::Batch;
use super::options::Word;
use crate::error::{Error, Result};
use crate::forest::Forest;

/// A partition of rows into groups.
#[derive(Clone, Debug)]
pub enum Scope<'a> {
    /// Rows that agree in all of these columns.
    Keys(Vec<&'a [u32]>),
    /// Rollouts that pass through a node, for every node of a forest: a row is in as many groups as its path has nodes.
    Subtrees(&'a Forest),
}

/// Scopes by the names of their columns: `group`, `subgroup`, `agent`, `anchor` joined by `+`, or `subtree`;
/// separated by commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scopes(Vec<Vec<&'static str>>);

const NAMES: [&str; 5] = ["group", "subgroup", "agent", "anchor", "subtree"];

impl Default for Scopes {
    /// `group`.
    fn default() -> Self {
        Self(vec![vec![NAMES[0]]])
    }
}

impl Scopes {
    /// Read from text, for texts that are right.
    pub(super) fn of(text: &str) -> Self {
        Self::read(text).unwrap_or_default()
    }

    fn read(text: &str) -> Option<Self> {
        let column = |word: &str| NAMES.into_iter().find(|name| *name == word.trim());
        let scope = |words: &str| words.split('+').map(column).collect::<Option<Vec<_>>>();
        let scopes = text.split(',').map(scope).collect::<Option<Vec<_>>>()?;
        let alone = scopes.iter().all(|scope| scope.len() == 1 || !scope.contains(&"subtree"));
        alone.then_some(Self(scopes))
    }

    /// The columns of a batch that are meant.
    ///
    /// # Errors
    /// [`Error::Value`] naming a column that the batch lacks.
    pub(super) fn resolve<'a>(&self, batch: &Batch<'a>, group: &'a [u32]) -> Result<Vec<Scope<'a>>> {
        let column = |name: &&'static str| match *name {
            "group" => Ok(group),
            "subgroup" => need(batch.subgroup, "subgroup"),
            "agent" => need(batch.agent, "agent"),
            _ => need(batch.anchor, "anchor"),
        };
        let scope = |names: &Vec<&'static str>| match names[..] {
            ["subtree"] => need(batch.forest, "forest (parents, leaves)").map(Scope::Subtrees),
            _ => names.iter().map(column).collect::<Result<_>>().map(Scope::Keys),
        };
        self.0.iter().map(scope).collect()
    }
}

impl Word for Scopes {
    fn word(&self) -> String {
        self.0.iter().map(|scope| scope.join("+")).collect::<Vec<_>>().join(",")
    }

    fn assign(&mut self, word: &str) -> std::result::Result<(), String> {
        *self = Self::read(word)
            .ok_or_else(|| format!("{} (joined by + into a scope, but for subtree)", NAMES.join(", ")))?;
        Ok(())
    }
}

/// A column that an estimator cannot do without.
pub(super) fn need<T>(column: Option<T>, name: &str) -> Result<T> {
    let value = || format!("the column {name} is missing");
    column.ok_or_else(|| Error::Value { value: value(), want: "given for this estimator" })
}
