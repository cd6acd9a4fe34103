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
use trunkline_core::advantage::Estimator;

/// A case's name and what sets it up.
type Entry = (&'static str, fn() -> Case);

/// Every case but those of presets, which are named `advantage/PRESET`.
const CASES: &[Entry] = &[
    ("advantage/child_mean", advantage::child_mean),
    ("advantage/discounted", advantage::discounted),
    ("advantage/leaf_mean", advantage::leaf_mean),
    ("advantage/to_nodes", advantage::to_nodes),
    ("advantage/to_tokens", advantage::to_tokens),
    ("lanes/ones", lanes::ones),
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
    ("select/scores", select::scores),
    ("select/surprisal", select::surprisal),
    ("select/uct", select::uct),
    ("select/uniform", select::draw),
    ("tree/align", tree::align),
    ("tree/body", tree::body),
    ("tree/ids", tree::body_of_ids),
    ("tree/intern", tree::intern),
    ("tree/pieces", tree::body_of_pieces),
    ("tree/turn", tree::turn),
];

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    let mut out = std::io::stdout().lock();
    let done = if name == "list" {
        list(&mut out)
    } else if name == "forest" {
        number(2).and_then(|nodes| forest::report(nodes, number(3)?, &mut out))
    } else if let Some(case) = case(&name) {
        serve(&mut Measure::new(case), &mut out)
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

fn list(out: &mut impl Write) -> std::io::Result<()> {
    Estimator::PRESETS.iter().try_for_each(|name| writeln!(out, "advantage/{name}"))?;
    CASES.iter().try_for_each(|(name, _)| writeln!(out, "{name}"))
}

fn case(name: &str) -> Option<Case> {
    let known = CASES.iter().find(|(known, _)| *known == name).map(|(_, make)| make());
    known.or_else(|| advantage::preset(name.strip_prefix("advantage/")?))
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
