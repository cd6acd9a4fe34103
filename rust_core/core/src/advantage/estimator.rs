//! An estimator: a preset by name, its options, and what it makes of a batch.

use crate::advantage::batch::{Advantages, Batch, to_nodes};
use crate::advantage::groups::{drop_zero, within};
use crate::advantage::options::{
    Centre, Combine, EstimatorOptions, Scale, Scope, Scopes, Setting, Singleton, Whiten, ZeroVariance, check, need,
    unknown,
};
use crate::advantage::{process, steps, treerl};
use crate::error::Result;
use crate::forest::Forest;

/// A way to turn rewards into advantages, by name, with options to change.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimator {
    method: Method,
    options: EstimatorOptions,
}

impl Estimator {
    /// The names of all presets.
    pub const PRESETS: &'static [&'static str] = NAMES;

    /// The estimator of a preset.
    ///
    /// # Errors
    /// [`Error::Value`](crate::Error::Value) listing the presets if there is none of this name.
    pub fn preset(name: &str) -> Result<Self> {
        let (method, options) = find(name).ok_or_else(|| unknown("preset", name, NAMES))?;
        Ok(Self { method, options })
    }

    /// The estimator of [`super::group_advantages`] with its default options.
    #[must_use]
    pub fn groups() -> Self {
        Self { method: Method::Groups, options: EstimatorOptions::default() }
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
    pub const fn options(&self) -> &EstimatorOptions {
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
        let rows = rows(batch, &EstimatorOptions { drop_zero: false, ..self.options.clone() })?;
        to_nodes(forest, &rows.values, Some(&rows.kept)).map(|found| found.values)
    }

    fn nodes(&self, batch: &Batch, forest: &Forest) -> Result<Advantages> {
        let options = &self.options;
        let rewards = batch.counted(options.count_masked);
        let values = match self.method {
            Method::Differences => process::differences(forest, &rewards, options)?,
            Method::Code => treerl::node_rewards(forest, batch, &rewards, options)?,
            Method::Paper => process::gains_by_leaves(forest, &rewards)?,
            Method::Edges | Method::ScaledEdges => process::edges(forest, &rewards, options)?,
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

fn rows(batch: &Batch, options: &EstimatorOptions) -> Result<Advantages> {
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

/// How an estimator works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// Rows within groups.
    Groups,
    /// Trajectories within groups, and steps within anchors.
    Steps,
    /// Rows within groups, averaged over the rollouts that pass a node.
    Hard,
    /// Tree-GRPO's node scores.
    Differences,
    /// `TreeRL`'s code.
    Code,
    /// `TreeRL`'s paper.
    Paper,
    /// SPO's edges.
    Edges,
    /// The same over the deviation among siblings.
    ScaledEdges,
    /// `TreePO`'s segments.
    Segments,
}

const GROUPS: &[&str] = &[
    "scopes",
    "unit",
    "centre",
    "scale",
    "ddof",
    "eps",
    "var_floor",
    "singleton",
    "subgroup_singleton",
    "zero_variance",
    "combine",
    "count_masked",
    "whiten",
    "drop_zero",
];
const STEPS: &[&str] = &[
    "centre",
    "scale",
    "ddof",
    "eps",
    "var_floor",
    "singleton",
    "subgroup_singleton",
    "zero_variance",
    "count_masked",
    "drop_zero",
    "gamma",
    "step_weight",
];

impl Method {
    /// The options it has.
    pub(super) const fn options(self) -> &'static [&'static str] {
        match self {
            Self::Groups | Self::Hard => GROUPS,
            Self::Steps => STEPS,
            Self::Differences => &["margin", "count_masked", "drop_zero"],
            Self::Code => &["singleton", "damping", "signal", "fill", "count_masked", "drop_zero"],
            Self::Paper | Self::Edges => &["count_masked", "drop_zero"],
            Self::ScaledEdges => &["ddof", "eps", "count_masked", "drop_zero"],
            Self::Segments => &["relative", "count_masked", "drop_zero"],
        }
    }

    /// Whether its values are those of nodes.
    pub(super) const fn on_nodes(self) -> bool {
        !matches!(self, Self::Groups | Self::Steps)
    }
}

/// All presets, in alphabetical order.
pub(super) const NAMES: &[&str] = &[
    "arpo_hard",
    "arpo_soft",
    "art",
    "dr_grpo",
    "dr_mas",
    "gigpo_mean",
    "gigpo_mean_std",
    "max_rl",
    "pass_at_k",
    "prime_rl",
    "reinforce_pp_baseline",
    "rllm",
    "rloo",
    "rloo_vectorized",
    "skyrl",
    "slime",
    "spo_grpo",
    "spo_rloo",
    "tree_2norm",
    "tree_grpo",
    "tree_grpo_diff",
    "tree_grpo_inter",
    "tree_grpo_intra",
    "tree_grpo_published",
    "treepo_average",
    "treepo_segments",
    "treepo_size",
    "treerl_code",
    "treerl_paper",
    "trl",
    "verl_grpo",
    "verl_grpo_vectorized",
];

/// The estimator of a name, with its options. A preset named after a framework does what that framework does.
pub(super) fn find(name: &str) -> Option<(Method, EstimatorOptions)> {
    let base = EstimatorOptions::default;
    let verl = || EstimatorOptions { singleton: Singleton::Raw, subgroup_singleton: Singleton::Raw, ..base() };
    let centred = || EstimatorOptions { scale: Scale::None, eps: 0.0, ..verl() };
    let scopes = Scopes::of;
    let groups = |options| Some((Method::Groups, options));
    match name {
        // Chains: one scope, the task.
        "verl_grpo" | "verl_grpo_vectorized" | "skyrl" | "arpo_soft" => groups(verl()),
        "trl" => groups(EstimatorOptions { eps: 1e-4, ..base() }),
        "art" => groups(EstimatorOptions { ddof: 0.0, drop_zero: true, ..base() }),
        // Its deviation of one row is NaN.
        "slime" => {
            groups(EstimatorOptions { singleton: Singleton::Error, subgroup_singleton: Singleton::Error, ..base() })
        }
        "rllm" => groups(EstimatorOptions { ddof: 0.0, ..verl() }),
        "prime_rl" => groups(EstimatorOptions { scale: Scale::None, eps: 0.0, ..base() }),
        "max_rl" => groups(EstimatorOptions { scale: Scale::Mean, eps: 0.0, ..base() }),
        "dr_grpo" => groups(centred()),
        "rloo" => groups(EstimatorOptions { centre: Centre::LeaveOneOut, ..centred() }),
        "rloo_vectorized" => {
            groups(EstimatorOptions { centre: Centre::LeaveOneOut, singleton: Singleton::Zero, ..centred() })
        }
        "reinforce_pp_baseline" => groups(EstimatorOptions { whiten: Whiten::Batch, ..centred() }),
        "pass_at_k" => groups(EstimatorOptions { centre: Centre::RunnerUp, singleton: Singleton::Error, ..base() }),
        "dr_mas" => groups(EstimatorOptions { scopes: scopes("group+agent"), ..verl() }),
        // Trees: several scopes.
        "tree_grpo" => groups(EstimatorOptions { scopes: scopes("group,group+subgroup"), ..base() }),
        "tree_grpo_published" => groups(EstimatorOptions { scopes: scopes("group,group+subgroup"), ..verl() }),
        "tree_grpo_inter" => groups(base()),
        "tree_grpo_intra" => groups(EstimatorOptions { scopes: scopes("group+subgroup"), ..base() }),
        "tree_2norm" => {
            groups(EstimatorOptions { scopes: scopes("group,group+subgroup"), combine: Combine::Nested, ..verl() })
        }
        "treepo_average" => groups(treepo(Combine::Mean)),
        "treepo_size" => groups(treepo(Combine::SizeWeighted)),
        // Steps.
        "gigpo_mean" => Some((Method::Steps, EstimatorOptions { subgroup_singleton: Singleton::Zero, ..centred() })),
        "gigpo_mean_std" => Some((Method::Steps, EstimatorOptions { subgroup_singleton: Singleton::Zero, ..verl() })),
        // Nodes.
        "arpo_hard" => Some((Method::Hard, verl())),
        "tree_grpo_diff" => Some((Method::Differences, base())),
        "treerl_code" => Some((Method::Code, EstimatorOptions { singleton: Singleton::Error, ..base() })),
        "treerl_paper" => Some((Method::Paper, base())),
        "spo_rloo" => Some((Method::Edges, spo(Scale::None))),
        "spo_grpo" => Some((Method::ScaledEdges, spo(Scale::Std))),
        "treepo_segments" => Some((Method::Segments, EstimatorOptions { relative: true, ..base() })),
        _ => None,
    }
}

/// Subtrees of every depth, without those of one rollout.
fn treepo(combine: Combine) -> EstimatorOptions {
    EstimatorOptions {
        scopes: Scopes::of("subtree"),
        scale: Scale::None,
        eps: 0.0,
        singleton: Singleton::Raw,
        subgroup_singleton: Singleton::Skip,
        zero_variance: ZeroVariance::Keep,
        combine,
        whiten: Whiten::Batch,
        ..EstimatorOptions::default()
    }
}

fn spo(scale: Scale) -> EstimatorOptions {
    EstimatorOptions { scale, ddof: 0.0, eps: 1e-8, drop_zero: true, ..EstimatorOptions::default() }
}
