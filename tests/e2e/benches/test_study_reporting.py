"""What reports cost: the counts of the study against the trees, and its longer outputs against the shorter ones."""

from __future__ import annotations

import asyncio

import pytest

from studies.engine import SimLLM
from studies.growth import agent, grow
from studies.reporting import GROWN, PRICES, Cost, lengthened, reporting_markdown, run_reporting
from trunkline.agent import CompiledAgent
from trunkline.llm.request import Sampling
from trunkline.scoring.reports.segments import GENERATED, segments
from trunkline.sim.server.options import Settings
from trunkline.tree.views import Kind


def test_requests_are_leaves_from_scratch_and_segments_where_all_is_shared():
    found = run_reporting("one trunk", 4, 1, outputs=1500)
    assert found.costs["never"].requests == found.leaves > 1
    assert found.costs["always"].requests == found.segments > found.leaves
    # Who reads the trunk once reads less, and writes more.
    assert found.costs["always"].prompt < found.costs["never"].prompt
    assert found.costs["always"].generated > found.costs["never"].generated
    autos = [found.costs[f"auto {price:g}"].requests for price in PRICES]
    assert autos == sorted(autos, reverse=True)
    assert all(found.leaves <= requests <= found.segments for requests in autos)
    table = reporting_markdown([found]).splitlines()
    assert {line.count("|") for line in table} == {table[0].count("|")}
    assert table[-1].startswith(f"| one trunk | 4 | 1,500 | {found.leaves:.1f} |")


def test_a_price_counts_what_was_cached_at_its_share():
    cost = Cost(2, prompt=100, uncached=40, generated=10)
    assert [cost.priced(price) for price in (1, 0.5, 0)] == [100 + GENERATED * 10, 70 + GENERATED * 10, 80]


@pytest.mark.parametrize("characters", [0, 900])
def test_longer_outputs_leave_everything_else_as_it_was(lookups, characters):
    compiled = CompiledAgent(agent("sim-agent:default", Sampling(temperature=1.0)))
    tree = asyncio.run(grow(lookups[0], compiled, GROWN["trees"], SimLLM(Settings()), 0))
    made = lengthened(tree, characters)
    made.core.check()
    assert [(one.path, one.termination, one.answer) for one in made.rollouts] == [
        (one.path, one.termination, one.answer) for one in tree.rollouts
    ]
    assert sorted((len(one.nodes), one.leaf) for one in segments(made)) == sorted(
        (len(one.nodes), one.leaf) for one in segments(tree)
    )
    for one, other in zip(made.rollouts, tree.rollouts, strict=True):
        for node, was in zip(one.nodes, other.nodes, strict=True):
            assert (node.kind, node.agent) == (was.kind, was.agent)
            if node.kind is not Kind.OBSERVATION:
                assert (node.message, node.aside) == (was.message, was.aside)
            else:
                assert node.text.startswith(was.text)
                assert len(node.text) == max(len(was.text), characters)
