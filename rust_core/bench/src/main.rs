//! Kernels of the core beside their floors. `benches/test_kernels.py` drives this program and reads its lines:
//!
//! * `trunkline-bench list` prints the names of all cases.
//! * `trunkline-bench NAME` prints `item<TAB>items<TAB>floor`, then for every line it reads measures once and prints
//!   nanoseconds a call of the kernel and of the floor. It ends with its input.

mod case;
mod lanes;
mod reply;

use std::io::{BufRead, Write};
use std::process::ExitCode;

use case::{Case, Measure};

/// A case's name and what sets it up.
type Entry = (&'static str, fn() -> Case);

/// Every case.
const CASES: &[Entry] =
    &[("lanes/ones", lanes::ones), ("reply/logprobs", reply::logprobs), ("reply/small", reply::small)];

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    let mut out = std::io::stdout().lock();
    let done = if name == "list" {
        CASES.iter().try_for_each(|(name, _)| writeln!(out, "{name}"))
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
