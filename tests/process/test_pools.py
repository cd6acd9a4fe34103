"""The same runs over every pool."""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from atlas import CAPITALS, agent, stall, tasks
from foreign import capital_cities, error, message, serving
from trunkline_children import children

from trunkline.errors import ConfigError, EndpointError, RunFileError
from trunkline.llm.config import LLM
from trunkline.runner.plan import plan
from trunkline.runner.run import arun, run, stream
from trunkline.scoring.rewards import exact_match
from trunkline.store.reader import RunReader
from trunkline.strategies.chain import Chain
from trunkline.types import Task, Termination


def llm(url: str, **changes: object) -> LLM:
    return LLM(url, max_concurrency=8, max_retries=0, **changes)


def test_a_server_in_another_style_is_understood(where: dict[str, Any], tmp_path: Path):
    with serving(capital_cities) as server:
        result = run(
            agent(),
            tasks(),
            llm=llm(server.url),
            strategy=Chain(2),
            reward=exact_match,
            **where,
            out=tmp_path / "r",
        )
    trees = list(result)
    assert [tree.task.id for tree in trees] == list(CAPITALS)
    for tree in trees:
        assert tree.answer == CAPITALS[tree.task.id]
        assert tree.reward == 1.0
        assert tree.usage.unreported == tree.usage.calls > 0
    with RunReader.open(result.path) as reader:
        assert reader.check() == []
    broken = [m for m in result["Brazil"].rollouts[0].messages if m["role"] == "tool"]
    assert "JSON" in broken[0]["content"], "broken arguments come back as an observation"
    unknown = [m for m in result["France"].rollouts[0].messages if m["role"] == "tool"]
    assert "nothing" in unknown[1]["content"]
    assert "lookup" in unknown[1]["content"], "an unknown tool is answered with the known ones"


@pytest.mark.breaks_rollouts
def test_failures_are_data_and_leave_the_others_alone(where: dict[str, Any], tmp_path: Path):
    def sometimes(body: dict) -> object:
        text = body["messages"][0]["content"]
        if "Chile" in text:
            return error(400, "this model's maximum context length is 10 tokens", "context_length_exceeded")
        if "Japan" in text:
            return error(422, "I do not like it")
        if "Benin" in text:
            return error(503, "overloaded", kind="server_error")
        return message(f"<answer>{CAPITALS[text.removeprefix('Capital of ').rstrip('?')]}</answer>")

    with serving(sometimes) as server:
        result = run(agent(), tasks(), llm=llm(server.url), reward=exact_match, **where, out=tmp_path / "r")
    ends = {tree.task.id: tree.rollouts[0] for tree in result}
    assert ends["Chile"].termination == Termination.MAX_CONTEXT
    assert ends["Japan"].termination == Termination.BAD_REQUEST
    assert "I do not like it" in ends["Japan"].error.message
    assert ends["Japan"].error.kind == "BadRequest"
    assert ends["Benin"].termination == Termination.LLM_ERROR
    assert all(math.isnan(ends[name].reward) for name in ("Japan", "Benin"))
    assert ends["France"].reward == ends["Brazil"].reward == 1.0


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda _b: error(401, "Incorrect API key provided", "invalid_api_key"), "OPENAI_API_KEY"),
        (lambda _b: error(404, "The model `m` does not exist", "model_not_found"), "model"),
        (lambda _b: error(429, "You exceeded your current quota", "insufficient_quota"), "quota"),
    ],
)
def test_an_endpoint_that_serves_nobody_stops_the_run(where: dict[str, Any], tmp_path: Path, answer, says: str):
    began = time.monotonic()
    with serving(answer) as server, pytest.raises(EndpointError, match=says):
        run(agent(), tasks(), llm=llm(server.url), **where, out=tmp_path / "r")
    assert time.monotonic() - began < 10
    assert list(tmp_path.iterdir()) == [], "nothing half-written is left"


def test_ten_requests_refused_alike_stop_the_run(where: dict[str, Any], tmp_path: Path):
    many = [Task.ask(f"q{i}") for i in range(400)]
    with serving(lambda _b: error(400, "unknown field 'max_tokens'")) as server:
        with pytest.raises(EndpointError, match=r"first 10 requests.*unknown field"):
            run(agent(), many, llm=llm(server.url), **where, out=tmp_path / "r")
        assert len(server.bodies) < 200


@pytest.mark.breaks_rollouts
def test_fewer_refusals_than_that_are_rows(where: dict[str, Any], tmp_path: Path):
    with serving(lambda _b: error(400, "no")) as server:
        result = run(agent(), tasks(), llm=llm(server.url), reward=exact_match, **where, out=tmp_path / "r")
    summary = result.summary()
    assert summary.failed == 5
    assert summary.accuracy is None


def test_unreachable_endpoint(where: dict[str, Any], tmp_path: Path):
    with pytest.raises(EndpointError, match=r"127\.0\.0\.1:9"):
        run(agent(), tasks(), llm=llm("http://127.0.0.1:9/v1"), **where, out=tmp_path / "r")
    assert list(tmp_path.iterdir()) == []


def test_limits_end_rollouts_by_their_names(where: dict[str, Any]):
    def never(_body: dict) -> dict:
        return message(None, [("lookup", '{"country": "Chile"}')])

    def cut(_body: dict) -> dict:
        reply = message("I was about to")
        reply["choices"][0]["finish_reason"] = "length"
        return reply

    one = tasks()[:1]
    with serving(never) as server:
        turns = run(agent(max_turns=3), one, llm=llm(server.url), **where)
        calls = run(agent(max_tool_calls=2), one, llm=llm(server.url), **where)
        assert [r.termination for t in turns for r in t.rollouts] == [Termination.MAX_TURNS]
        assert [r.turns for t in turns for r in t.rollouts] == [3]
        assert [r.termination for t in calls for r in t.rollouts] == [Termination.TOOL_LIMIT]
    with serving(cut) as server:
        tokens = run(agent(), one, llm=llm(server.url), **where)
        assert [r.termination for t in tokens for r in t.rollouts] == [Termination.MAX_TOKENS]


def test_an_existing_file_is_never_touched(where: dict[str, Any], tmp_path: Path):
    out = tmp_path / "r"
    out.write_text("mine")
    with pytest.raises(RunFileError, match="r is"):
        run(agent(), tasks(), llm=llm("http://127.0.0.1:9/v1"), **where, out=out)
    assert out.read_text() == "mine"


def test_bad_calls_leave_nothing(tmp_path: Path):
    with pytest.raises(ConfigError, match="no tasks"):
        run(agent(), [], llm=llm("http://127.0.0.1:9/v1"), out=tmp_path / "r")
    with pytest.raises(ConfigError, match="two tasks have the id 'France'"):
        run(agent(), tasks() + tasks()[:1], llm=llm("http://127.0.0.1:9/v1"), out=tmp_path / "r")
    with pytest.raises(TypeError, match="wokers"):
        run(agent(), tasks(), wokers=2)
    assert list(tmp_path.iterdir()) == []


def test_what_describes_a_run_is_kept_as_far_as_a_file_can_hold_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["script", "\udcff.jsonl"])
    with serving(capital_cities) as server:
        run(agent(), tasks()[:1], llm=llm(server.url), workers=0, labels={"file": "\udcff.jsonl"}, out=tmp_path / "r")
    with RunReader.open(tmp_path / "r") as reader:
        assert reader.settings["labels"] == {"file": "\ufffd.jsonl"}
        assert json.loads(reader.meta["command"]) == ["script", "\ufffd.jsonl"]


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("id", "a\ud800", r"task 'a\\ud800': id holds a lone surrogate, '\\ud800', which no file can: remove it"),
        ("messages", [{"role": "user", "content": "\udfff?"}], r"task 'a': messages holds a lone surrogate"),
        ("reference", ("\udfff",), r"task 'a': reference holds a lone surrogate, '\\udfff'"),
        ("metadata", {"\ud800": 1}, "task 'a': metadata holds a lone surrogate"),
        ("metadata", {"row": object()}, "task 'a': metadata cannot be stored as JSON: .*object"),
        ("metadata", {"row": 10**30}, "task 'a': metadata cannot be stored as JSON: can't serialize ints"),
    ],
    ids=["id", "messages", "reference", "key", "object", "long number"],
)
def test_what_no_file_can_hold_is_named_before_there_is_one(tmp_path: Path, field: str, value: Any, why: str):
    given = {"id": "a", "messages": [{"role": "user", "content": "?"}], field: value}
    for ask in (plan, run):
        with pytest.raises(ConfigError, match=why):
            ask(agent(), [Task(**given)], llm=llm("http://127.0.0.1:9/v1"), out=tmp_path / "r")
    assert list(tmp_path.iterdir()) == []


async def test_inside_a_running_loop(where: dict[str, Any]):
    with serving(capital_cities) as server:
        result = await arun(agent(), tasks(), llm=llm(server.url), **where)
        assert {t.answer for t in result} == set(CAPITALS.values())
        blocking = run(agent(), tasks()[:1], llm=llm(server.url), **where)
        assert [t.answer for t in blocking] == ["Paris"]


async def test_trees_stream_out_as_they_are_done(where: dict[str, Any]):
    with serving(capital_cities) as server:
        seen = {tree.task.id: tree.answer async for tree in stream(agent(), tasks(), llm=llm(server.url), **where)}
    assert seen == CAPITALS


async def test_closing_a_stream_stops_the_run(where: dict[str, Any]):
    many = [Task.ask("Capital of France?", id=str(i)) for i in range(200)]
    with serving(capital_cities, delay=0.02) as server:
        trees = stream(agent(), many, llm=llm(server.url), **where)
        assert (await anext(trees)).answer == "Paris"
        await trees.aclose()
        sent = len(server.bodies)
        await asyncio.sleep(0.3)
        assert len(server.bodies) == sent < 800


async def test_cancelling_leaves_no_process(where: dict[str, Any]):
    with serving(capital_cities, delay=5) as server:
        running = asyncio.ensure_future(arun(agent(tools=[stall]), tasks(), llm=llm(server.url), **where))
        while len(server.bodies) < 5:
            await asyncio.sleep(0.02)
        began = time.monotonic()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert time.monotonic() - began < 5
    assert not children()
