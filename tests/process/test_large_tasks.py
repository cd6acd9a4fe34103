"""Tasks, replies and rows that are larger than a frame between two processes."""

from __future__ import annotations

import sqlite3

import pytest
from atlas import agent, tasks
from fault_server import FaultServer, Peer, http

from trunkline.llm.config import LLM
from trunkline.llm.request import Sampling
from trunkline.protocol.messages import MAX_FRAME
from trunkline.runner.run import arun
from trunkline.store.reader import RunReader
from trunkline.strategies.chain import Chain
from trunkline.types import Termination

MEGABYTE = "x" * 1_000_000
DRAWS = MAX_FRAME // len(MEGABYTE) + 3


def reply(content: str, **more: object) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"} | more
    return http({"choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": 7}})


async def test_answers_of_one_task_above_a_frame_are_kept_and_resumed(tmp_path):
    count = 0

    async def answer(peer: Peer) -> None:
        nonlocal count
        count += 1
        await peer.send(reply(f"{count} {MEGABYTE}"))

    out = tmp_path / "run"
    async with FaultServer(answer) as server:
        options = {
            "llm": LLM(server.url, api_key="k", siblings=False),
            "strategy": Chain(DRAWS),
            "out": out,
        }
        await arun(agent(), tasks()[:1], **options, workers=1)
        with RunReader.open(out) as reader:
            assert reader.check() == []
            before = list(reader.rollouts())
        assert sum(len(row.answer or "") for _, row in before) > MAX_FRAME
        with sqlite3.connect(out) as file:
            # As if the run had been killed before the task was reported.
            file.execute("DELETE FROM trees")
            file.execute("DELETE FROM rollouts")
            file.execute("UPDATE meta SET value = 'running' WHERE key = 'state'")
        file.close()
        await arun(agent(), tasks()[:1], **options, workers=0, resume=True)
        assert count == DRAWS
    with RunReader.open(out) as reader:
        assert reader.check() == []
        assert list(reader.rollouts()) == before


@pytest.mark.breaks_rollouts
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("asked", [False, True])
async def test_token_ids_unasked_are_dropped_and_too_many_end_their_rollout_alone(tmp_path, workers, asked):
    ids = [1] * 5_300_000
    large = reply("hello", token_ids=ids)
    assert 13 * len(ids) > MAX_FRAME
    player = agent(sampling=Sampling(logprobs=True)) if asked else agent()
    async with FaultServer(large, reply("hello", token_ids=[1])) as server:
        llm = LLM(server.url, api_key="k", siblings=False, max_retries=0, max_concurrency=1)
        result = await arun(player, tasks()[:1], llm=llm, strategy=Chain(2), out=tmp_path / "run", workers=workers)
    ends = sorted(str(one.termination) for one in result["France"].rollouts)
    assert ends == (["answer", "llm_error"] if asked else ["answer", "answer"])
    failed = [one.error for one in result["France"].rollouts if one.termination == Termination.LLM_ERROR]
    assert [failure.message for failure in failed] == (
        ["the reply has 5300000 token ids; at most 1048576 are kept"] if asked else []
    )
    with RunReader.open(tmp_path / "run") as reader:
        assert reader.check() == []
        tree = reader.tree("France")
    kept = [len(tree.core.tokens_of(node) or ()) for node in range(len(tree.core))]
    assert sum(kept) == (1 if asked else 0)
