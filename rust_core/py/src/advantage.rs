//! Estimators.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use trunkline_core::Forest;
use trunkline_core::advantage::{self as core, Advantages, Batch, Estimator, NodeValues, Scope, Setting, Trained};

use crate::buffer::{Column, view};
use crate::error::{argument, raise};
use crate::guard::call;
use crate::input::Text;

type Memoryview<'py> = Bound<'py, PyAny>;
type Pair<'py> = (Memoryview<'py>, Memoryview<'py>);

/// Advantages of rows or nodes by a preset whose options may be changed one by one.
#[pyfunction]
#[pyo3(signature = (preset, rewards, *, group=None, subgroup=None, agent=None, anchor=None, trajectory=None, step=None,
    step_rewards=None, masked=None, selected=None, tokens=None, parents=None, leaves=None, **options))]
#[expect(clippy::too_many_arguments, reason = "each is a column that users name")]
pub fn estimate<'py>(
    py: Python<'py>,
    preset: Text<'_>,
    rewards: Column<f64>,
    group: Option<Column<u32>>,
    subgroup: Option<Column<u32>>,
    agent: Option<Column<u32>>,
    anchor: Option<Column<u32>>,
    trajectory: Option<Column<u32>>,
    step: Option<Column<u32>>,
    step_rewards: Option<Column<f64>>,
    masked: Option<Column<u8>>,
    selected: Option<Column<u8>>,
    tokens: Option<Column<u32>>,
    parents: Option<Column<u32>>,
    leaves: Option<Column<u32>>,
    options: Option<Bound<'py, PyDict>>,
) -> PyResult<Pair<'py>> {
    let estimator = Estimator::preset(&preset).map_err(|error| raise(py, &error))?;
    let estimator = configure(estimator, options)?;
    let trees = match (parents, leaves) {
        (Some(parents), Some(leaves)) => Some((parents.into_inner(), leaves.into_inner())),
        (None, None) => None,
        _ => return Err(argument(py, "parents and leaves are the two columns of a forest; give both or none")),
    };
    let found = call(py, true, || {
        let forest = trees.map(|(parents, leaves)| Forest::new(parents, leaves)).transpose()?;
        estimator.estimate(&Batch {
            rewards: &rewards,
            group: group.as_deref(),
            subgroup: subgroup.as_deref(),
            agent: agent.as_deref(),
            anchor: anchor.as_deref(),
            trajectory: trajectory.as_deref(),
            step: step.as_deref(),
            step_rewards: step_rewards.as_deref(),
            masked: masked.as_deref(),
            selected: selected.as_deref(),
            tokens: tokens.as_deref(),
            forest: forest.as_ref(),
        })
    })?;
    advantages(py, &found)
}

/// Advantages of rows relative to the groups they are in, over any columns of keys.
#[pyfunction]
#[pyo3(signature = (rewards, scopes, *, trajectory=None, masked=None, tokens=None, **options))]
pub fn group_advantages<'py>(
    py: Python<'py>,
    rewards: Column<f64>,
    scopes: Vec<Vec<Column<u32>>>,
    trajectory: Option<Column<u32>>,
    masked: Option<Column<u8>>,
    tokens: Option<Column<u32>>,
    options: Option<Bound<'py, PyDict>>,
) -> PyResult<Pair<'py>> {
    let estimator = configure(Estimator::groups(), options)?;
    let found = call(py, true, || {
        let scopes: Vec<Scope> =
            scopes.iter().map(|columns| Scope::Keys(columns.iter().map(|column| &**column).collect())).collect();
        let batch = Batch {
            rewards: &rewards,
            trajectory: trajectory.as_deref(),
            masked: masked.as_deref(),
            tokens: tokens.as_deref(),
            ..Batch::default()
        };
        core::group_advantages(&batch, &scopes, estimator.options())
    })?;
    advantages(py, &found)
}

/// V(s), V(s) - V(parent) and V(s) - V(root) of all nodes.
#[pyfunction]
#[pyo3(signature = (parents, leaves, rewards, *, backup=None, visits=None, gamma=0.9))]
pub fn node_values<'py>(
    py: Python<'py>,
    parents: Column<u32>,
    leaves: Column<u32>,
    rewards: Column<f64>,
    backup: Option<Text<'_>>,
    visits: Option<Column<u32>>,
    gamma: f64,
) -> PyResult<(Memoryview<'py>, Memoryview<'py>, Memoryview<'py>)> {
    let backup = backup.as_deref().unwrap_or("leaf_mean");
    let found = call(py, true, || {
        let forest = Forest::new(parents.into_inner(), leaves.into_inner())?;
        let mut found = NodeValues::default();
        found.named(backup, &forest, &rewards, visits.as_deref(), gamma)?;
        Ok(found)
    })?;
    Ok((view(py, &found.values)?, view(py, &found.local)?, view(py, &found.global)?))
}

/// The forest of steps of a forest of nodes.
#[pyfunction]
#[pyo3(signature = (parents, kinds, leaves, /))]
pub fn step_forest(py: Python<'_>, parents: Column<u32>, kinds: Column<u8>, leaves: Column<u32>) -> PyResult<Pair<'_>> {
    let steps = call(py, true, || Forest::new(parents.into_inner(), leaves.into_inner())?.steps(&kinds))?;
    Ok((view(py, steps.parents())?, view(py, steps.leaves())?))
}

/// Discounted returns of steps within their trajectories.
#[pyfunction]
#[pyo3(signature = (rewards, trajectory, *, step=None, gamma=0.95))]
pub fn step_returns(
    py: Python<'_>,
    rewards: Column<f64>,
    trajectory: Column<u32>,
    step: Option<Column<u32>>,
    gamma: f64,
) -> PyResult<Memoryview<'_>> {
    let returns = call(py, true, || core::step_returns(&rewards, &trajectory, step.as_deref(), gamma))?;
    view(py, &returns)
}

/// Advantages of rollouts on the nodes they share.
#[pyfunction]
#[pyo3(signature = (values, parents, leaves, *, kept=None))]
pub fn to_nodes(
    py: Python<'_>,
    values: Column<f64>,
    parents: Column<u32>,
    leaves: Column<u32>,
    kept: Option<Column<u8>>,
) -> PyResult<Pair<'_>> {
    let found = call(py, true, || {
        let forest = Forest::new(parents.into_inner(), leaves.into_inner())?;
        core::to_nodes(&forest, &values, kept.as_deref())
    })?;
    advantages(py, &found)
}

/// Values of rows or nodes on their tokens, and the mask of those to train.
#[pyfunction]
#[pyo3(signature = (values, offsets, *, kept=None, mask=None, flags=None))]
pub fn to_tokens(
    py: Python<'_>,
    values: Column<f64>,
    offsets: Column<u64>,
    kept: Option<Column<u8>>,
    mask: Option<Column<u8>>,
    flags: Option<Column<u8>>,
) -> PyResult<Pair<'_>> {
    let trained = match (&mask, &flags) {
        (None, None) => Trained::All,
        (Some(mask), None) => Trained::Mask(mask),
        (None, Some(flags)) => Trained::Flags(flags),
        _ => return Err(argument(py, "mask and flags both say which tokens are trained; give one of them")),
    };
    let (landed, mask) = call(py, true, || core::to_tokens(&values, kept.as_deref(), &offsets, trained))?;
    Ok((view(py, &landed)?, view(py, &mask)?))
}

/// The options of every preset.
#[pyfunction]
pub fn presets(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let table = PyDict::new(py);
    for name in Estimator::PRESETS {
        let estimator = Estimator::preset(name).map_err(|error| raise(py, &error))?;
        let row = PyDict::new(py);
        row.set_item("lands", if estimator.on_nodes() { "nodes" } else { "rows" })?;
        for (option, setting) in estimator.settings() {
            match setting {
                Setting::Text(text) => row.set_item(option, text)?,
                Setting::Number(number) => row.set_item(option, number)?,
                Setting::Flag(flag) => row.set_item(option, flag)?,
            }
        }
        table.set_item(name, row)?;
    }
    Ok(table)
}

fn configure(mut estimator: Estimator, options: Option<Bound<'_, PyDict>>) -> PyResult<Estimator> {
    for (name, value) in options.iter().flatten() {
        let name: Text = name.extract()?;
        // That there is no such option matters more than its type: it may be a column under a wrong name.
        estimator.check(&name).map_err(|error| raise(value.py(), &error))?;
        let setting = setting(&value)
            .ok_or_else(|| PyTypeError::new_err(format!("{} must be a string, a number or a bool", &*name)))?;
        estimator.set(&name, &setting).map_err(|error| raise(value.py(), &error))?;
    }
    Ok(estimator)
}

fn setting(value: &Bound<'_, PyAny>) -> Option<Setting> {
    let flag = value.extract().map(Setting::Flag);
    let number = |_| value.extract().map(Setting::Number);
    flag.or_else(number).or_else(|_| value.extract().map(Setting::Text)).ok()
}

fn advantages<'py>(py: Python<'py>, found: &Advantages) -> PyResult<Pair<'py>> {
    Ok((view(py, &found.values)?, view(py, &found.kept)?))
}
