"""The study: cells of an arm and a seed, each a line of ``results.jsonl`` once done; a second call makes missing ones.

``python -m rl_tools.study`` runs the example (2 arms, 4 seeds); ``--quick`` a small one; ``--study`` all of
PREREGISTRATION.md; ``--budgets`` and ``--rates`` its pilot; ``--questions`` what one budget buys at 3, 5 and 10 steps.
``python -m rl_tools.analyse`` makes tables and a figure of it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

import trunkline as tl
from rl_tools.analyse import read
from rl_tools.policy import imitate, load
from rl_tools.task import questions, write_tokenizer
from rl_tools.train import Rollouts, arms, evaluate, learn, shape

HERE = Path(__file__).parent
CODE = ("task.py", "policy.py", "server.py", "train.py")
"""The files that decide what a cell finds; what is set here is in the cell."""

IMITATED = 1000
SIZE = 8
TREE = (2, 5, 1)
LARGE = 32
BUDGET = 120_000
UPDATES = 82
RATES = {"chains": 2e-4, "tree_grpo": 2e-4, "treerl": 2e-4, "tree_outcome": 2e-4}
"""The pilot sets TREE, B, U and the rates (PREREGISTRATION.md)."""

CANDIDATES = ((2, 5, 1), (3, 3, 1), (2, 3, 2), (4, 2, 1))
"""M, N and L that are compared with 8 chains."""
TRIED = (1e-4, 2e-4, 4e-4)
SEEDS = tuple(range(12))
CHECKPOINTS = (10, 11, 12)
EXAMPLE_SEEDS, EXAMPLE_CHECKPOINTS = (200, 201, 202, 203), (5, 6)
BUDGET_SEEDS, RATE_SEEDS, PILOT_CHECKPOINTS = (100, 101), (110, 111), (3, 4)
LONG = 20
"""The imitation that saw questions of 3, 5 and 10 steps."""


class Cell(NamedTuple):
    """One training run.

    Attributes:
        part: Of the study.
        arm: A name of :func:`train.arms`.
        seed: Of questions and draws.
        checkpoint: The seed of the imitation it starts from.
        rate: The learning rate.
        tokens: Generated tokens at which it ends, or None.
        updates: Updates after which it ends, or None.
        size: Chains of a question; arms of a quarter budget have a quarter of them.
        tree: M, N and L of its trees.
        imitated: Batches of the imitation.
        held_out: Questions of the evaluation at the end; 0 for none.
        http: Whether rollouts ask a server.
    """

    part: str
    arm: str
    seed: int
    checkpoint: int
    rate: float
    tokens: int | None = None
    updates: int | None = None
    size: int = SIZE
    tree: tuple[int, int, int] = TREE
    imitated: int = IMITATED
    held_out: int = 300
    http: bool = False


def rate_of(arm: str) -> float:
    """Return the rate of an arm; one that has none has that of the arm it is another form of."""
    return RATES.get(arm, RATES["tree_grpo" if arm == "quarter_trees" else "chains"])


def cells(
    part: str,
    names: Iterable[str],
    seeds: Sequence[int] = SEEDS,
    checkpoints: Sequence[int] = CHECKPOINTS,
    **options: Any,
) -> Iterator[Cell]:
    """Yield cells seed by seed, so that a part that was interrupted has all arms of some seeds."""
    for seed in seeds:
        for arm in names:
            yield Cell(part, arm, seed, checkpoints[seed % len(checkpoints)], rate_of(arm), **options)


def quick() -> list[Cell]:
    """Two arms, one seed, a few updates: whether it works, not what comes of it."""
    seeds = EXAMPLE_SEEDS[:1], EXAMPLE_CHECKPOINTS
    return list(cells("quick", ("chains", "tree_grpo"), *seeds, updates=25, imitated=700, held_out=100))


def example() -> list[Cell]:
    """Two arms, four seeds that the study does not use."""
    return list(cells("example", ("chains", "tree_grpo"), EXAMPLE_SEEDS, EXAMPLE_CHECKPOINTS, tokens=BUDGET))


def study() -> list[Cell]:
    """Parts b, c and d of PREREGISTRATION.md."""
    return [
        *cells("d", ("chains_avoid", "chains_ladder"), tokens=BUDGET),  # those that take longest first
        *cells("b", ("chains", "tree_grpo", "treerl", "tree_outcome"), tokens=BUDGET),
        *cells("c", ("chains", "quarter_trees", "quarter_chains"), updates=UPDATES, size=LARGE),
    ]


def budgets() -> list[Cell]:
    """Chains, and each candidate of M, N and L, for the first updates of other seeds."""
    found = []
    for seed, checkpoint in zip(BUDGET_SEEDS, PILOT_CHECKPOINTS, strict=True):
        cell = Cell("budgets", "chains", seed, checkpoint, 2e-4, updates=15, held_out=0)
        found.append(cell)
        found += [cell._replace(arm="tree_grpo", tree=candidate) for candidate in CANDIDATES]
    return found


def rates() -> list[Cell]:
    """Each arm at each rate on other seeds."""
    return [
        Cell("rates", arm, seed, checkpoint, rate, tokens=BUDGET)
        for seed, checkpoint in zip(RATE_SEEDS, PILOT_CHECKPOINTS, strict=True)
        for arm in RATES
        for rate in TRIED
    ]


def code_version() -> str:
    """Return trunkline's version, and a digest of the example's files that decide what a cell finds."""
    text = b"".join((HERE / name).read_bytes() for name in CODE)
    return f"trunkline {tl.__version__}, example {hashlib.sha256(text).hexdigest()[:12]}"


def commit() -> str:
    """Return the commit of this checkout, with ``-dirty`` where files were changed since; empty outside a checkout."""
    asked = ["git", "-C", str(HERE), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def line_of(cell: Cell, folder: str) -> dict[str, Any]:
    """Run a cell and return its line."""
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    model = load(cell.checkpoint, imitations(Path(folder), cell.imitated))
    tokenizer = str(Path(folder) / "tokenizer")
    arm = arms(cell.size, cell.tree)[cell.arm]
    # Chains are what others are compared with: how good their policies were before, on questions of its own.
    start_count = cell.held_out if cell.arm == "chains" else 0
    before = evaluate(model, tokenizer, "start", count=start_count) if start_count else {}
    start = time.perf_counter()
    ends = {"tokens": cell.tokens, "updates": cell.updates}
    lines = learn(arm, model, tokenizer, seed=cell.seed, rate=cell.rate, **ends, http=cell.http)
    trained = time.perf_counter()
    # The study's own held-out questions are looked at by its cells alone.
    name = "study" if cell.part in {"b", "c", "d"} else cell.part
    final = evaluate(model, tokenizer, name, count=cell.held_out) if cell.held_out else {}
    curve = {name: [short(line[name]) for line in lines] for name in lines[0]}
    return {
        "cell": cell._asdict(),
        "code": code_version(),
        "commit": commit(),
        "machine": f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}",
        "started": started,
        "seconds": round(trained - start, 1),
        "evaluation_seconds": round(time.perf_counter() - trained, 1),
        "before": before,
        "final": final,
        "curve": curve,
    }


def short(value: float) -> float:
    return int(value) if float(value).is_integer() else float(f"{value:.4g}")


def imitations(folder: Path, batches: int) -> Path:
    return folder / f"imitation of {batches} batches"


def key(cell: dict[str, Any]) -> str:
    return json.dumps(cell, sort_keys=True)


def done(path: Path) -> set[str]:
    """Return the cells that a file of results has, and cut off a last line that was not written to its end.

    Raises:
        SystemExit: The file has lines that cannot be read, or those of other code.
    """
    if not path.exists():
        return set()
    found = set()
    for number, record in enumerate(read(path), 1):
        if record["code"] != code_version():
            raise SystemExit(
                f"{path}: line {number} is of {record['code']!r}, and this is {code_version()!r}: take another --out"
            )
        found.add(key(record["cell"]))
    os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
    return found


def append(path: Path, record: dict[str, Any]) -> None:
    """Write a line to the disk."""
    with path.open("ab") as file:
        file.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def one_thread() -> None:
    torch.set_num_threads(1)


def in_processes(works: Sequence[Callable[[], Any]], jobs: int) -> Iterator[Any]:
    """Yield results as they come, of so many processes of one thread each."""
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), one_thread) as pool:
        open_ones = {pool.submit(work) for work in works}
        try:
            while open_ones:
                ended, open_ones = wait(open_ones, return_when=FIRST_COMPLETED)
                for one in sorted(ended, key=lambda one: one.exception() is not None):
                    yield one.result()  # one that failed raises, after those that did not
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def run(wanted: Sequence[Cell], out: Path, jobs: int, work: Callable[[Cell, str], dict[str, Any]] = line_of) -> None:
    """Run the cells that ``out/results.jsonl`` does not have, and what they start from."""
    out.mkdir(parents=True, exist_ok=True)
    write_tokenizer(out / "tokenizer")
    known = done(out / "results.jsonl")
    left = [cell for cell in wanted if key(json.loads(json.dumps(cell._asdict()))) not in known]
    print(f"{len(wanted) - len(left)} of {len(wanted)} cells are done; code: {code_version()}", flush=True)
    needed = sorted({(cell.checkpoint, cell.imitated) for cell in left})
    prepare(needed, out, jobs)
    for record in in_processes([partial(work, cell, str(out)) for cell in left], jobs):
        append(out / "results.jsonl", record)
        print(summary(record), flush=True)


def prepare(needed: Sequence[tuple[int, int]], out: Path, jobs: int, **options: Any) -> None:
    """Imitate where no checkpoint is."""
    missing = [one for one in needed if not (imitations(out, one[1]) / f"imitation-{one[0]}.pt").exists()]
    works = [partial(imitate, seed, imitations(out, batches), batches=batches, **options) for seed, batches in missing]
    for took in in_processes(works, jobs) if works else ():
        append(out / "imitation.jsonl", took)
        print("imitation", took, flush=True)


def summary(record: dict[str, Any]) -> str:
    cell, curve = record["cell"], record["curve"]
    last = curve["reward"][-10:]
    return (
        f"{cell['part']} {cell['arm']} seed {cell['seed']} rate {cell['rate']:g} tree {cell['tree']}: "
        f"{len(curve['reward'])} updates, {curve['generated'][-1]:,.0f} generated tokens, {record['seconds']} s, "
        f"training accuracy {curve['reward'][0]:.2f} to {sum(last) / len(last):.2f}, held out {record['final']}"
    )


def count_questions(steps: int, strategy: tuple[int, ...], folder: str) -> dict[str, Any]:
    """Measure what a question of so many steps costs with so many chains (C,), or a tree (M, N, L)."""
    model = load(LONG, imitations(Path(folder), IMITATED))
    made: Any = tl.Chain(*strategy) if len(strategy) == 1 else tl.TreeGRPO(*strategy)
    with Rollouts(model, str(Path(folder) / "tokenizer"), steps) as rollouts:
        trees = rollouts.run(questions(f"counted {steps}", 100, steps=(steps,)), made, seed=0)
        counts = rollouts.engine.counts
    size = {"asked": len(trees), "generated": counts.generated / len(trees), "prompt": counts.prompt / len(trees)}
    fits = {"questions": BUDGET / size["generated"]}
    return {"steps": steps, "strategy": strategy, "code": code_version()} | size | fits | shape(trees)


def ask_questions(out: Path, jobs: int) -> None:
    """Write ``questions.jsonl`` anew."""
    out.mkdir(parents=True, exist_ok=True)
    write_tokenizer(out / "tokenizer")
    prepare([(LONG, IMITATED)], out, jobs, steps=(3, 5, 10))
    works = [
        partial(count_questions, steps, strategy, str(out))
        for steps in (3, 5, 10)
        for strategy in ((SIZE,), TREE, (LARGE,))
    ]
    (out / "questions.jsonl").unlink(missing_ok=True)
    for found in in_processes(works, jobs):
        append(out / "questions.jsonl", found)
        print(found, flush=True)


def check_folder(parser: argparse.ArgumentParser, out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {out} cannot be a folder ({error.strerror}): take another one")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_mutually_exclusive_group()
    for part in (quick, study, budgets, rates):
        flag = f"--{part.__name__}"
        parts.add_argument(flag, dest="part", action="store_const", const=part, default=example, help=part.__doc__)
    parts.add_argument("--questions", action="store_true", help="what one budget buys at 3, 5 and 10 steps")
    parser.add_argument("--out", type=Path, default=Path("runs/rl_tools"), help="folder (default: runs/rl_tools)")
    parser.add_argument("--jobs", type=int, default=2, help="processes, one thread each (default: 2)")
    parser.add_argument("--http", action="store_true", help="ask an OpenAI-compatible server over the policy")
    given = parser.parse_args(arguments)
    check_folder(parser, given.out)
    if given.questions and given.http:
        parser.error("--questions counts tokens of the engine itself: leave out --http")
    if given.jobs < 1:
        parser.error(f"--jobs must be at least 1, not {given.jobs}")
    if given.questions:
        ask_questions(given.out, given.jobs)
    else:
        run([cell._replace(http=given.http) for cell in given.part()], given.out, given.jobs)


if __name__ == "__main__":
    main(sys.argv[1:])
