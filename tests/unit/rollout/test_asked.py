"""A turn that is given up for other weights ends its block and nothing else."""

from __future__ import annotations

import asyncio

import pytest

from trunkline.agent import Agent, CompiledAgent
from trunkline.rollout.sampling.inflight import WeightGate
from trunkline.tree.records import version_in


async def asked(weights: WeightGate, seen: list[str]) -> None:
    with await weights.begin() as turn:
        seen.append("asked")
        await asyncio.get_running_loop().create_future()
    seen.append(f"given up: {turn.given_up}")


async def test_a_turn_that_is_given_up_ends_quietly_and_the_next_waits_for_the_change():
    weights, seen, quiet = WeightGate("old"), list[str](), list[str]()
    turn = asyncio.create_task(asked(weights, seen))
    await asyncio.sleep(0)
    weights.hold(abort=True, quiet=lambda: quiet.append("quiet"))
    assert not quiet
    await turn
    assert (seen, quiet, turn.cancelling()) == (["asked", "given up: True"], ["quiet"], 0)
    later = asyncio.create_task(asked(weights, seen))
    await asyncio.sleep(0)
    assert len(seen) == 2
    weights.change("new")
    await asyncio.sleep(0.01)
    assert seen[2:] == ["asked"]
    later.cancel()
    with pytest.raises(asyncio.CancelledError):
        await later


def test_turns_under_two_versions_are_never_one_node():
    compiled = CompiledAgent(Agent(model="m"))
    namespaces = [compiled.namespace, compiled.under("old").namespace, compiled.under("new").namespace]
    assert len(set(namespaces)) == 3
    assert [version_in(namespace) for namespace in namespaces] == [None, "old", "new"]


@pytest.mark.parametrize("first", ["hold", "cancel"])
async def test_whoever_else_cancels_it_meanwhile_is_heard(first: str):
    weights, seen = WeightGate(), list[str]()
    turn = asyncio.create_task(asked(weights, seen))
    await asyncio.sleep(0)
    if first == "cancel":
        turn.cancel()
    weights.hold(abort=True, quiet=lambda: None)
    if first == "hold":
        turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert seen == ["asked"]


async def test_turns_in_flight_end_by_themselves_where_nothing_is_given_up():
    weights, quiet, backs = WeightGate(), list[str](), [asyncio.Event(), asyncio.Event()]

    async def one(back: asyncio.Event) -> bool:
        with await weights.begin() as turn:
            await back.wait()
        return turn.given_up

    turns = [asyncio.create_task(one(back)) for back in backs]
    await asyncio.sleep(0)
    weights.hold(abort=False, quiet=lambda: quiet.append("quiet"))
    for back, turn in zip(backs, turns, strict=True):
        assert not quiet
        back.set()
        assert not await turn
    assert quiet == ["quiet"]
