"""What reports on trees cost in tokens, shared and from scratch; and how long Trunkline itself takes for a tree.

The reports are those of the simulator's reporter, as long as those of a model that keeps to its words. The table is
that of `docs/decisions/reports.md`.
"""

from __future__ import annotations

import asyncio

import pytest

from studies.engine import SimLLM
from studies.reporting import GROWN, Reporting, reporting_markdown, run_reporting
from trunkline.scoring.reports.extractive import extract_tree
from trunkline.scoring.reports.reporter import Reporter
from trunkline.sim.server.options import Settings
from trunkline.tree.views import Tree
from trunkline.types import Task

QUESTIONS = 3
HOPS = (2, 4, 8)
OUTPUTS = (0, 1500)
KINDS = [(grown, hops) for grown in GROWN for hops in (HOPS if grown != "chains" else HOPS[1:2])]


def test_tokens_of_reports(benchmark, capsys: pytest.CaptureFixture[str]) -> None:
    """What counts are the tokens in the table; the time is that of growing and reporting all of its trees."""

    def measure() -> list[Reporting]:
        return [run_reporting(grown, hops, QUESTIONS, outputs) for outputs in OUTPUTS for grown, hops in KINDS]

    found = benchmark.pedantic(measure, rounds=1)
    with capsys.disabled():
        print("\n" + reporting_markdown(found))
    for one in found:
        assert one.costs["never"].requests == one.leaves
        assert one.costs["always"].requests == one.segments


def bushy() -> Tree:
    """64 leaves at depth 6, two ways to go on at each turn, outputs of 2,000 characters."""
    tree = Tree(Task.ask("what?"))
    core = tree.core
    prompt = core.append(0, 1, b'{"role":"user","content":"what?"}')
    names = core.name("agent"), core.name("model"), core.name("stop")
    output = b'{"role":"tool","tool_call_id":"t0000c000","content":"' + b"found " * 333 + b'"}'
    for leaf in range(64):
        rollout = core.open(prompt, [0, leaf])
        for depth in range(6):
            said = f'{{"role":"assistant","content":"I look at {leaf >> (5 - depth)}."}}'.encode()
            core.turn(rollout, said, *names, 500, 0, 20, 0, 1)
            core.observe(rollout, output, names[0], 1)
        core.close(rollout, "answer", str(leaf))
    return tree


def test_extracting_the_reports_of_a_tree(benchmark) -> None:
    tree = bushy()
    assert benchmark(lambda: extract_tree(tree, again=True)).written == 64


def test_writing_the_reports_of_a_tree(benchmark) -> None:
    """The simulated model's own time is in it, most of all."""
    tree = bushy()

    def write() -> int:
        reporter = Reporter(SimLLM(Settings(dials={"empty": 0.0})), "sim-reporter", share="always", again=True)
        return asyncio.run(reporter.write(tree)).written

    assert benchmark.pedantic(write, rounds=2) == 126
