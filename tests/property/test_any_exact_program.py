"""Any program with token ids, in any order of replies: its tree holds what each role was given and what it said."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plays import cuts, play
from program_plans import Twice, lines, scripted, slow
from toy_model import ToyLLM, known

from trunkline._core import TURN, CoreTree, harvest, pack_ragged
from trunkline.errors import BadRequest
from trunkline.llm.token_ids.renderers import renderers
from trunkline.llm.types import Reply, Request
from trunkline.rollout.sampling.token_prompts import TokenPromptBuilder


class Slow(ToyLLM):
    """The toy model, which takes its time, and refuses some prompts."""

    wait: Callable[[str], int] = staticmethod(lambda model: 0)

    async def complete(self, request: Request) -> Reply:
        """Complete one request."""
        for _ in range(self.wait(request.role)):
            await asyncio.sleep(0)
        if request.role == "c" and len(request.body) % 3 == 0:
            raise BadRequest("no")
        return await super().complete(request)


def check_samples(core: CoreTree) -> None:
    """Each token that a rollout sampled is trained once in its samples, after what its model was given."""
    columns = harvest([core])
    every = [*columns.leaves, *columns.segment_leaves]
    rows = pack_ragged(
        columns.parents, every, columns.offsets, columns.ids, columns.logprobs, columns.versions, columns.flags
    )
    owners = [*range(len(columns.leaves)), *columns.segment_rollouts]
    said = set(known(core))
    for rollout in range(core.rollouts):
        path = [node for node in core.path(core.rollout(rollout).leaf) if core.node(node).kind == TURN]
        sampled = sorted(i for node in path for i in core.tokens_of(node).ids)
        trained: list[int] = []
        for row, owner in enumerate(owners):
            if owner == rollout:
                start, end = rows.offsets[row], rows.offsets[row + 1]
                ids, mask = list(rows.ids[start:end]), list(rows.loss_mask[start:end])
                trained += [i for i, on in zip(ids, mask, strict=True) if on]
                edges = [place for place in range(len(ids)) if mask[place] and not mask[place - 1]]
                for place in edges:
                    assert any(tuple(ids[:place]) == before for before, _ in said), "what the model was given"
        assert sorted(trained) == sampled


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("toy")


@pytest.mark.parametrize("api", ["completions", "chat"])
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(lines, st.integers(0, 1000), st.integers(0, 20))
def test_any_exact_program(api: str, folder: Path, plan: list[Any], seed: int, place: int):
    llms: list[Slow] = []

    def grown(core: CoreTree | None = None, wait: Callable[[str], int] | None = None) -> Any:
        llm = Slow(folder, api)
        llm.wait = wait or llm.wait
        llms.append(llm)
        prompts = TokenPromptBuilder(llm.tokens, renderers(llm.tokens))
        return play(scripted(plan), llm, core, Twice(place), token_prompts=prompts)

    async def check() -> None:
        whole = await grown()
        core = whole.tree.core
        assert {core.rollout(number).termination for number in range(core.rollouts)} == {"answer"}
        assert {own for _, own in known(core)} == {own for _, own in llms[0].calls}
        if api == "completions":
            assert set(known(core)) == set(llms[0].calls)
        if known(core):
            assert whole.tree.tokens.exact
            if api == "completions":
                check_samples(core)
        other = await grown(wait=slow(seed))
        assert other.tree.digest() == whole.tree.digest(), "latency"
        points = cuts(other.deltas)
        for cut in random.Random(seed).sample(points, min(len(points), 4)):
            again = await grown(cut, slow(seed + 1))
            assert again.tree.digest() == whole.tree.digest(), "broken off"
            assert sorted(known(again.tree.core)) == sorted(known(core))

    asyncio.run(check())
