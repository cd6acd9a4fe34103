"""One rollout that breaks, whatever breaks it, leaves its slower siblings alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from atlas import agent, tasks

from trunkline._core import base_seed
from trunkline.llm.types import Reply, ReplyChoice, Request
from trunkline.runner.run import arun
from trunkline.scoring.rewards import exact_match
from trunkline.store.reader import RunReader
from trunkline.strategies.chain import Chain
from trunkline.types import Termination

GOOD = ReplyChoice("<answer>Paris</answer>", None, [], "stop")


class Scripted:
    """Gives the first draw something odd at once, and the others a good reply a little later."""

    def __init__(self, odd: object) -> None:
        self.odd = odd
        self.first: int | None = None

    async def complete(self, request: Request) -> Reply:
        seed = json.loads(request.body)["seed"]
        if self.first is None:
            self.first = seed
        if seed == self.first:
            if isinstance(self.odd, Exception):
                raise self.odd
            return self.odd
        await asyncio.sleep(0.03)
        return Reply([GOOD], 5, 0, 2, 1, 10)


def reply(choice: ReplyChoice, **figures: int) -> Reply:
    return Reply(
        **{"choices": [choice], "prompt": 5, "cached": 0, "generated": 2, "attempts": 1, "micros": 1} | figures
    )


@pytest.mark.breaks_rollouts
@pytest.mark.parametrize(
    ("odd", "ends"),
    [
        ({"error": {"message": "overloaded"}}, Termination.LLM_ERROR),
        (reply(ReplyChoice("\ud800", None, [], "stop")), Termination.ANSWER),
        (reply(ReplyChoice("x", "\udfff", [], "st\ud800op")), Termination.ANSWER),
        (reply(ReplyChoice("x", None, [], "stop"), prompt=-5, cached=10**30, generated=2**40), Termination.ANSWER),
        (reply(ReplyChoice("I must not", None, [], "content_filter")), Termination.CONTENT_FILTER),
        (reply(ReplyChoice("I was ab", None, [], "length")), Termination.MAX_TOKENS),
        (reply(ReplyChoice("I was ab, ab, ab", None, [], "repetition")), Termination.MAX_TOKENS),
        (reply(ReplyChoice("", None, [], "stop")), Termination.ANSWER),
        (RuntimeError("\x1b[31m key sk-abcdefghijklmnopqrstuvwx broke"), Termination.LLM_ERROR),
    ],
)
async def test_siblings_of_an_odd_reply_go_on(tmp_path: Path, odd: object, ends: Termination):
    result = await arun(
        agent(), tasks()[:1], llm=Scripted(odd), strategy=Chain(4), reward=exact_match, out=tmp_path / "r"
    )
    rollouts = result["France"].rollouts
    assert [r.termination for r in rollouts[1:]] == [Termination.ANSWER] * 3
    assert [r.reward for r in rollouts[1:]] == [1.0] * 3
    assert rollouts[0].termination == ends
    assert not rollouts[0].reward > 0
    with RunReader.open(result.path) as reader:
        assert reader.check() == []
    stored = (tmp_path / "r").read_bytes()
    assert b"sk-abcdefghijklmnopqrstuvwx" not in stored
    assert b"\x1b[31m" not in stored


def test_seeds_are_pinned():
    """A changed seed changes every run ever made: these values may only change with a new major version."""
    assert base_seed(0, "q", (), 0) == 2083888169
    assert base_seed(7, "q", (0, 3), 2) == 1379179121
    assert base_seed(7, "q", (0, 3), 2) != base_seed(7, "q", (0, 2), 2)


def test_seeds_depend_on_every_part_and_leave_room_for_draws():
    seen = {
        base_seed(run, task, path, turn)
        for run in (0, 1, 2**63 - 1)
        for task in ("a", "b", "\ud800")
        for path in ((), (0, 0), (0, 1), (0, 0, 2, 1))
        for turn in (0, 1, 50)
    }
    assert len(seen) == 3 * 3 * 4 * 3
    assert all(0 <= seed < 2**31 - 2**16 for seed in seen)
