"""Any program, whoever answers when: the same tree, also where it is broken off, forked, or broken off after that."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plays import Actors, cuts, play, turns
from program_plans import Twice, lines, scripted, slow

from trunkline._core import MESSAGE
from trunkline.errors import BadRequest


def says(messages: list[dict[str, Any]], model: str) -> Any:
    said = "|".join(str(one["content"]) for one in messages)
    return BadRequest("no") if model == "c" and len(said) % 3 == 0 else f"{model}{len(said)}"


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(lines, st.integers(0, 1000), st.integers(0, 20))
def test_any_program(plan: list[Any], seed: int, place: int):
    async def check() -> None:
        program = scripted(plan)
        whole = await play(program, Actors(says), strategy=Twice(place))
        ends = [whole.tree.core.rollout(number) for number in range(whole.tree.core.rollouts)]
        assert {end.termination for end in ends} == {"answer"}, [end.error for end in ends]
        paths = [[whole.tree.core.node(node).kind for node in whole.tree.core.path(end.leaf)] for end in ends]
        assert len({path.count(MESSAGE) for path in paths}) == 1, "told once"
        other = await play(program, Actors(says, slow(seed)), strategy=Twice(place))
        assert other.tree.digest() == whole.tree.digest(), "latency"
        points = cuts(other.deltas)
        for core in random.Random(seed).sample(points, min(len(points), 6)):
            before = turns(core)
            again = await play(program, Actors(says, slow(seed + 1)), core, strategy=Twice(place))
            assert again.tree.digest() == whole.tree.digest(), f"broken off with {before} turns"

    asyncio.run(check())
