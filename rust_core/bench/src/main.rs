//! Kernels of the core beside their floors. `benches/test_kernels.py` drives this program and reads its lines:
//!
//! * `trunkline-bench list` prints the names of all cases.
//! * `trunkline-bench forest NODES EACH` builds trees of EACH nodes and prints what they cost.
//! * `trunkline-bench NAME` prints `item<TAB>items<TAB>floor`, then for every line it reads measures once and prints
//!   nanoseconds a call of the kernel and of the floor. It ends with its input.

mod advantage;
mod case;
mod forest;
mod lanes;
mod pack;
mod prefix;
mod reply;
mod schedule;
mod select;
mod tree;

use std::io::{BufRead, Write};
use std::process::ExitCode;

use case::{Case, Measure};

/// A case's name and what sets it up.
type Entry = (&'static str, fn() -> Case);

/// Every case.
const CASES: &[Entry] = &[
    ("advantage/arpo_hard", || advantage::nodes("arpo_hard")),
    ("advantage/child_mean", advantage::child_mean),
    ("advantage/discounted", advantage::discounted),
    ("advantage/dr_grpo", || advantage::rows("dr_grpo")),
    ("advantage/dr_mas", || advantage::rows("dr_mas")),
    ("advantage/gigpo_mean", || advantage::rows("gigpo_mean")),
    ("advantage/gigpo_mean_std", || advantage::rows("gigpo_mean_std")),
    ("advantage/leaf_mean", advantage::leaf_mean),
    ("advantage/max_rl", || advantage::rows("max_rl")),
    ("advantage/pass_at_k", || advantage::rows("pass_at_k")),
    ("advantage/reinforce_pp_baseline", || advantage::rows("reinforce_pp_baseline")),
    ("advantage/rloo", || advantage::rows("rloo")),
    ("advantage/spo_grpo", || advantage::nodes("spo_grpo")),
    ("advantage/spo_rloo", || advantage::nodes("spo_rloo")),
    ("advantage/to_tokens", advantage::to_tokens),
    ("advantage/tree_2norm", || advantage::rows("tree_2norm")),
    ("advantage/tree_grpo", || advantage::rows("tree_grpo")),
    ("advantage/tree_grpo_diff", || advantage::nodes("tree_grpo_diff")),
    ("advantage/tree_grpo_intra", || advantage::rows("tree_grpo_intra")),
    ("advantage/treepo_average", || advantage::nodes("treepo_average")),
    ("advantage/treepo_segments", || advantage::nodes("treepo_segments")),
    ("advantage/treepo_size", || advantage::nodes("treepo_size")),
    ("advantage/treerl_code", || advantage::nodes("treerl_code")),
    ("advantage/treerl_paper", || advantage::nodes("treerl_paper")),
    ("advantage/verl_grpo", || advantage::rows("verl_grpo")),
    ("lanes/gather", lanes::gather),
    ("lanes/ones", lanes::ones),
    ("lanes/scatter", lanes::scatter),
    ("ledger/reserve", schedule::reserve),
    ("pack/padded", pack::padded),
    ("pack/ragged", pack::ragged),
    ("pack/tree", pack::tree),
    ("prefix/append", prefix::append),
    ("prefix/fresh", prefix::fresh),
    ("prefix/insert", prefix::insert),
    ("prefix/longest", prefix::longest),
    ("prefix/short", prefix::short),
    ("reply/logprobs", reply::logprobs),
    ("reply/small", reply::small),
    ("schedule/next", schedule::next),
    ("select/scores", select::scores),
    ("select/surprisal", select::surprisal),
    ("select/uct", select::uct),
    ("select/uniform", select::draw),
    ("tree/body", tree::body),
    ("tree/intern", tree::intern),
    ("tree/turn", tree::turn),
];

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    let mut out = std::io::stdout().lock();
    let done = if name == "list" {
        CASES.iter().try_for_each(|(name, _)| writeln!(out, "{name}"))
    } else if name == "forest" {
        number(2).and_then(|nodes| forest::report(nodes, number(3)?, &mut out))
    } else if let Some((_, make)) = CASES.iter().find(|(known, _)| *known == name) {
        serve(&mut Measure::new(make()), &mut out)
    } else {
        Err(std::io::Error::other(format!("{name:?} is not a case; `list` prints them")))
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

/// An argument that is a number.
fn number(place: usize) -> std::io::Result<usize> {
    let text = std::env::args().nth(place).unwrap_or_default();
    text.parse().map_err(|_| std::io::Error::other(format!("argument {place} is {text:?}; it must be a number")))
}

fn serve(measure: &mut Measure, out: &mut impl Write) -> std::io::Result<()> {
    let Case { item, items, floor, .. } = measure.case();
    writeln!(out, "{item}\t{items}\t{floor}")?;
    out.flush()?;
    for line in std::io::stdin().lock().lines() {
        line?;
        let (kernel, floor) = measure.round();
        writeln!(out, "{kernel:.1}\t{floor:.1}")?;
        out.flush()?;
    }
    Ok(())
}
