"""A forest of a million nodes: time to build, bytes a node beyond payload, every estimator, peak memory.

`trunkline-bench forest` does it in a process of its own, so that peak memory is that of the forest alone. What
pytest-benchmark records is the whole of it, once; the figures are in `extra_info` and on the screen. A node is a
prompt, a model turn of 48 tokens or an observation of 32, with a message of its own. A delta is taken after each
rollout.
"""

from __future__ import annotations

import subprocess

import pytest

import programs

NODES = 1_000_000


@pytest.mark.benchmark(group="forest")
@pytest.mark.parametrize("each", [100, 10_000], ids=["100 nodes a tree", "10,000 nodes a tree"])
def test_million_nodes(benchmark, each: int, capsys):
    program = programs.build("trunkline-bench")

    def report() -> str:
        command = [program, "forest", str(NODES), str(each)]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    printed = benchmark.pedantic(report, rounds=1)
    figures = {}
    for line in printed.splitlines():
        name, number, unit = line.split("\t")
        figures[name] = f"{number} {unit}"
    benchmark.extra_info.update(figures)
    with capsys.disabled():
        print(f"\n{NODES:,} nodes in trees of {each:,}")
        for name, figure in figures.items():
            print(f"  {name:34} {figure}")
