//! Estimators by name.

use super::options::{Centre, Combine, Options, Scale, Singleton, Whiten, ZeroVariance};
use super::scope::Scopes;

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
            Self::Paper => &["count_masked", "drop_zero"],
            Self::Edges => &["scale", "ddof", "eps", "count_masked", "drop_zero"],
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
pub(super) fn find(name: &str) -> Option<(Method, Options)> {
    let base = Options::default;
    let verl = || Options { singleton: Singleton::Raw, subgroup_singleton: Singleton::Raw, ..base() };
    let centred = || Options { scale: Scale::None, eps: 0.0, ..verl() };
    let scopes = Scopes::of;
    let groups = |options| Some((Method::Groups, options));
    match name {
        // Chains: one scope, the task.
        "verl_grpo" | "skyrl" | "arpo_soft" => groups(verl()),
        "verl_grpo_vectorized" => groups(Options { var_floor: 1e-6, ..verl() }),
        "trl" => groups(Options { eps: 1e-4, ..base() }),
        "art" => groups(Options { ddof: 0.0, drop_zero: true, ..base() }),
        // Its deviation of one row is NaN.
        "slime" => groups(Options { singleton: Singleton::Error, subgroup_singleton: Singleton::Error, ..base() }),
        "rllm" => groups(Options { ddof: 0.0, ..verl() }),
        "prime_rl" => groups(Options { scale: Scale::None, eps: 0.0, ..base() }),
        "max_rl" => groups(Options { scale: Scale::Mean, eps: 0.0, ..base() }),
        "dr_grpo" => groups(centred()),
        "rloo" => groups(Options { centre: Centre::LeaveOneOut, ..centred() }),
        "rloo_vectorized" => groups(Options { centre: Centre::LeaveOneOut, singleton: Singleton::Zero, ..centred() }),
        "reinforce_pp_baseline" => groups(Options { whiten: Whiten::Batch, ..centred() }),
        "pass_at_k" => groups(Options { centre: Centre::RunnerUp, singleton: Singleton::Error, ..base() }),
        "dr_mas" => groups(Options { scopes: scopes("group+agent"), ..verl() }),
        // Trees: several scopes.
        "tree_grpo" => groups(Options { scopes: scopes("group,group+subgroup"), ..base() }),
        "tree_grpo_published" => groups(Options { scopes: scopes("group,group+subgroup"), ..verl() }),
        "tree_grpo_inter" => groups(base()),
        "tree_grpo_intra" => groups(Options { scopes: scopes("group+subgroup"), ..base() }),
        "tree_2norm" => groups(Options { scopes: scopes("group,group+subgroup"), combine: Combine::Nested, ..verl() }),
        "treepo_average" => groups(treepo(Combine::Mean)),
        "treepo_size" => groups(treepo(Combine::SizeWeighted)),
        // Steps.
        "gigpo_mean" => Some((Method::Steps, Options { subgroup_singleton: Singleton::Zero, ..centred() })),
        "gigpo_mean_std" => Some((Method::Steps, Options { subgroup_singleton: Singleton::Zero, ..verl() })),
        // Nodes.
        "arpo_hard" => Some((Method::Hard, verl())),
        "tree_grpo_diff" => Some((Method::Differences, base())),
        "treerl_code" => Some((Method::Code, Options { singleton: Singleton::Error, ..base() })),
        "treerl_paper" => Some((Method::Paper, base())),
        "spo_rloo" => Some((Method::Edges, spo(Scale::None))),
        "spo_grpo" => Some((Method::Edges, spo(Scale::Std))),
        "treepo_segments" => Some((Method::Segments, Options { relative: true, ..base() })),
        _ => None,
    }
}

/// Subtrees of every depth, without those of one rollout.
fn treepo(combine: Combine) -> Options {
    Options {
        scopes: Scopes::of("subtree"),
        scale: Scale::None,
        eps: 0.0,
        singleton: Singleton::Raw,
        subgroup_singleton: Singleton::Skip,
        zero_variance: ZeroVariance::Keep,
        combine,
        whiten: Whiten::Batch,
        ..Options::default()
    }
}

fn spo(scale: Scale) -> Options {
    Options { scale, ddof: 0.0, eps: 1e-8, drop_zero: true, ..Options::default() }
}
