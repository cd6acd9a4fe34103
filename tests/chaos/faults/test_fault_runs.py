"""Whole runs against servers that fail: how each rollout ends, and that the key is nowhere."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time

import pytest
from atlas import agent, tasks
from fault_client import KEY
from fault_server import GOOD, OK, FaultServer, Peer, completion, http, problem
from places import SUPPORT

from trunkline.errors import EndpointError, TrunklineError
from trunkline.llm.config import LLM
from trunkline.runner.run import arun
from trunkline.store.reader import RunReader
from trunkline.strategies.chain import Chain
from trunkline.types import Termination


async def no_wait(seconds: float) -> None:
    """Stand in for asyncio.sleep."""


@pytest.mark.breaks_rollouts
@pytest.mark.parametrize(
    ("answer", "ends"),
    [
        (http(problem("Please reduce the length", "context_length_exceeded"), 400), Termination.MAX_CONTEXT),
        (http(problem("no such option"), 400), Termination.BAD_REQUEST),
        (http(problem("flagged", "content_filter"), 400), Termination.CONTENT_FILTER),
        (http(problem("boom"), 500), Termination.LLM_ERROR),
        (http(b"{"), Termination.LLM_ERROR),
    ],
    ids=["max_context", "bad_request", "content_filter", "llm_error", "no_completion"],
)
async def test_a_fault_ends_its_rollout_and_no_other(transport, tmp_path, answer, ends):
    async with FaultServer(answer, OK) as server:
        spec = LLM(server.url, api_key=KEY, max_retries=0, siblings=False)
        llm = spec.open(transport=transport(8), sleep=no_wait)
        try:
            result = await arun(agent(), tasks()[:1], llm=llm, strategy=Chain(3), out=tmp_path / "run")
        finally:
            await llm.close()
    ended = [rollout.termination for rollout in result["France"].rollouts]
    assert sorted(ended) == sorted([ends, Termination.ANSWER, Termination.ANSWER])
    with RunReader.open(result.path) as reader:
        assert reader.check() == []


def echo(status: int):
    """Answer with the request's own head as the message."""

    async def answer(peer: Peer) -> None:
        said = peer.seen.head.decode("latin-1")
        await peer.send(http({"error": {"message": said, "code": said}}, status, {"X-Echo": KEY}))

    return answer


SCRIPT = """
import logging, sys
sys.path.insert(0, sys.argv[3])
import trunkline as tl
from atlas import agent, tasks
if __name__ == "__main__":
    logging.basicConfig(level=logging.DEBUG)
    llm = tl.LLM(sys.argv[1], max_retries=1)
    tl.run(agent(), tasks(), llm=llm, strategy=tl.Chain(2), out=sys.argv[2], workers=1)
"""


@pytest.mark.asyncio(loop_factories=["asyncio"])
@pytest.mark.parametrize("statuses", [(500, 200, 400), (401,)])
async def test_a_server_that_echoes_the_key_cannot_make_it_leak(tmp_path, statuses):
    """The key is in the environment of a run of its own process with a worker, with every log record on stderr."""
    script, out = tmp_path / "script.py", tmp_path / "run"
    script.write_text(SCRIPT)
    async with FaultServer(*map(echo, statuses)) as server:
        command = [sys.executable, str(script), server.url, str(out), str(SUPPORT)]
        process = await asyncio.create_subprocess_exec(
            *command, env=os.environ | {"OPENAI_API_KEY": KEY}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        said = b"".join(await process.communicate())
        assert server.seen
        assert all(f"Authorization: Bearer {KEY}".encode() in seen.head for seen in server.seen)
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path != script)
    assert KEY.encode() not in said
    assert KEY.encode() not in kept
    assert (b"[key]" in said) or (b"[key]" in kept)


async def test_the_host_that_a_redirect_names_gets_nothing(transport):
    async with FaultServer(OK) as other:
        moved = http(b"", 307, {"Location": other.url + "/chat/completions"})
        async with FaultServer(moved) as server:
            llm = LLM(server.url, api_key=KEY).open(transport=transport(8))
            try:
                with pytest.raises(TrunklineError, match="redirects are not followed"):
                    await arun(agent(), tasks()[:1], llm=llm)
            finally:
                await llm.close()
        assert other.connections == 0


@pytest.mark.breaks_rollouts
async def test_a_draw_that_the_server_cannot_read_ends_alone(transport, tmp_path):
    """llama.cpp answers 500 where one of the draws of a request is no call that it can parse."""
    said = "The model produced output that does not match the expected peg-native format"

    async def answer(peer: Peer) -> None:
        body = json.loads(peer.seen.body)
        draws = range(body["seed"], body["seed"] + body.get("n", 1))
        if any(seed % 4 == 0 for seed in draws):
            await peer.send(http(problem(said), 500))
            return
        choice = completion("Paris")["choices"][0]
        await peer.send(http(GOOD | {"choices": [choice | {"index": index} for index in range(len(draws))]}))

    async with FaultServer(answer) as server:
        llm = LLM(server.url, api_key=KEY).open(transport=transport(8), sleep=no_wait)
        try:
            result = await arun(agent(), tasks()[:3], llm=llm, strategy=Chain(4), out=tmp_path / "run")
        finally:
            await llm.close()
    ended = [rollout.termination for tree in result for rollout in tree.rollouts]
    assert sorted(ended) == sorted([Termination.ANSWER] * 9 + [Termination.LLM_ERROR] * 3)
    assert len(server.seen) == 3 * (1 + 4)


@pytest.mark.parametrize("answer", [http(b"", 307, {"Location": "/v2"}), http(problem("no such path"), 404)])
async def test_one_odd_status_ends_no_run_that_was_served(transport, tmp_path, answer):
    async with FaultServer(OK, OK, answer, OK) as server:
        spec = LLM(server.url, api_key=KEY, max_concurrency=1, siblings=False)
        llm = spec.open(transport=transport(8), sleep=no_wait)
        try:
            result = await arun(agent(), tasks()[:1], llm=llm, strategy=Chain(6), out=tmp_path / "run")
        finally:
            await llm.close()
    assert [rollout.termination for rollout in result["France"].rollouts] == [Termination.ANSWER] * 6
    assert len(server.seen) == 7


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (http(problem("no"), 401), "OPENAI_API_KEY"),
        (http(problem("no"), 403), "OPENAI_API_KEY"),
        (http(problem("no such model", "model_not_found"), 404), "check its name"),
        (http(problem("no", "insufficient_quota"), 429), "OPENAI_API_KEY"),
    ],
    ids=["401", "403", "404", "quota"],
)
async def test_what_serves_nobody_ends_a_large_run_soon_and_after_few_requests(transport, answer, words):
    async with FaultServer(answer) as server:
        llm = LLM(server.url, api_key=KEY, siblings=False).open(transport=transport(256))
        begun = time.monotonic()
        try:
            with pytest.raises(EndpointError, match=words):
                await arun(agent(), tasks(), llm=llm, strategy=Chain(40))
        finally:
            await llm.close()
    assert len(server.seen) <= 10
    assert time.monotonic() - begun < 20
