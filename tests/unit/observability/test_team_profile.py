"""A run by agent: calls, tokens, time and rows, by its rows and trees."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from pathlib import Path

import msgspec
import pytest
from duo_team import TASKS, Duo, generate, says
from foreign import message, serving
from goers import More
from hypothesis import given
from hypothesis import strategies as st

from trunkline.agent import Agent
from trunkline.errors import ConfigError, DamagedRunFile, LLMError
from trunkline.llm.batch.batcher import BatchLLM
from trunkline.llm.config import LLM
from trunkline.llm.types import Reply, ReplyChoice, Request
from trunkline.observability.prometheus import PrometheusServer
from trunkline.rollout.programs.context import ProgramContext
from trunkline.runner.result import Run
from trunkline.runner.run import run
from trunkline.store.reader import RunReader
from trunkline.store.schema import CallRow
from trunkline.store.stats.profile import AgentProfile, Profile, RoleRows, RowCounts, Spans, profile, union
from trunkline.strategies.base import Fork, View
from trunkline.strategies.chain import Chain

USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 60}}


def answer(body: dict) -> dict:
    return message(says(body["messages"][-1]["content"])) | {"usage": USAGE}


def by_name(found: Profile) -> dict[str, AgentProfile]:
    return {agent.name: agent for agent in found.agents}


class AfterSteps:
    """A chain, and a fork behind each of its steps."""

    def rollouts(self) -> int:
        return 4

    def start(self, view: View) -> list[Fork]:
        return [Fork()]

    def ended(self, view: View) -> list[Fork]:
        seen = [node.id for node in view.tree.rollouts[0].nodes if node.text == "Once more."]
        return [Fork(node) for node in seen[:-1]] if len(view.rollouts) == 1 else []


def play(path: Path, tasks: int = 3, **options: object) -> Run:
    team = Duo(model="m", **{key: options.pop(key) for key in list(options) if key in Duo.__struct_fields__})
    return run(team, TASKS[:tasks], **({"llm": BatchLLM(generate), "seed": 3, "out": path} | options))


def test_rows_of_each_role_are_those_that_were_asked_for(tmp_path: Path):
    found = by_name(play(tmp_path / "r").profile())
    # Approved in round 1, 2 and 3: six rows of nine that a batch of three carries; in round 2 no digit is said.
    assert found["solver"].rows == RoleRows(
        active=6, inactive=0, valid=4, rounds=3, whole=9, active_ratio=6 / 9, valid_share=4 / 6
    )
    assert found["verifier"].rows == RoleRows(
        active=6, inactive=0, valid=6, rounds=3, whole=9, active_ratio=6 / 9, valid_share=1.0
    )
    assert {name: agent.calls for name, agent in found.items()} == {"solver": 6, "verifier": 6}
    counts = RowCounts()
    with RunReader.open(tmp_path / "r") as reader:
        for number in (2, 0, 1):
            counts.add(reader.deltas(number))
    assert counts.by_role() == {name: agent.rows for name, agent in found.items()}, "the longest may come first"


def test_rows_that_are_not_active_are_told_apart_and_are_in_no_ratio(tmp_path: Path):
    found = by_name(play(tmp_path / "r", early_termination=False, rounds=4).profile())
    # Approved in round 2, it is asked once more, in round 3; approved in 1, no more, as round 2 is even.
    rows = found["solver"].rows
    assert (rows.active, rows.inactive, rows.rounds, rows.whole) == (6, 1, 3, 9)
    assert rows.active_ratio == 6 / 9
    assert found["solver"].calls == rows.active + rows.inactive


@pytest.mark.parametrize("workers", [0, 2])
def test_agents_add_up_to_the_run(workers: int, tmp_path: Path):
    with serving(answer, delay=0.02) as server, PrometheusServer() as metrics:
        llm = LLM(server.url, max_concurrency=8)
        result = play(tmp_path / "r", llm=llm, workers=workers, strategy=Chain(4), metrics=metrics)
        counted = {
            name: metrics.registry.get_sample_value(
                "trunkline_calls_total", {"endpoint": server.url, "agent": name, "outcome": "answered"}
            )
            for name in ("solver", "verifier")
        }
    found, summary = result.profile(), result.summary()
    agents = by_name(found)
    assert set(agents) == {"solver", "verifier"}
    assert sum(agent.calls for agent in found.agents) == summary.usage.calls
    assert sum(agent.rows.active + agent.rows.inactive for agent in found.agents) == summary.usage.calls
    assert sum(agent.prompt for agent in found.agents) == summary.prompt == 100 * summary.usage.calls
    assert sum(agent.cached for agent in found.agents) == summary.usage.cached
    assert sum(agent.generated for agent in found.agents) == summary.usage.generated
    assert sum(agent.share for agent in found.agents) == pytest.approx(1)
    assert max(agent.busy for agent in found.agents) <= found.busy <= sum(agent.busy for agent in found.agents)
    assert 0 < found.busy <= 1
    assert counted == {name: agent.calls for name, agent in agents.items()}
    with RunReader.open(result.path) as reader:
        assert reader.check() == []
        assert reader.agents() == ["solver", "verifier"]


def test_without_profiling_calls_are_the_teams_and_the_rest_is_the_same(tmp_path: Path):
    named, plain = (play(tmp_path / str(on), profiling=on) for on in (True, False))
    assert [tree.digest() for tree in named] == [tree.digest() for tree in plain]
    found = by_name(plain.profile())
    assert {name: agent.calls for name, agent in found.items()} == {"team": 12, "solver": 0, "verifier": 0}
    assert found["solver"].times is None
    rows = {name: agent.rows for name, agent in by_name(named.profile()).items()}
    assert {name: agent.rows for name, agent in found.items()} == rows | {"team": None}
    with RunReader.open(plain.path) as reader:
        assert (reader.check(), reader.agents()) == ([], [""])
    with pytest.raises(ConfigError, match="profiling must be true or false"):
        Duo(model="m", profiling="yes")


def test_a_run_that_goes_on_has_a_profile(tmp_path: Path):
    seen: list[Profile] = []

    def look(prompts: list) -> list[str]:
        if (tmp_path / "r").exists():
            with RunReader.open(tmp_path / "r") as reader:
                seen.append(reader.profile())
        time.sleep(0.06)  # longer than what has grown waits for company
        return generate(prompts)

    play(tmp_path / "r", llm=BatchLLM(look))
    calls = [sum(agent.calls for agent in each.agents) for each in seen]
    assert calls == sorted(calls)
    assert 0 < calls[-1] < 12
    assert sum(agent.rows.active for agent in seen[-1].agents) == calls[-1]


@pytest.mark.breaks_rollouts
def test_rows_that_a_fork_begins_with_count_once_as_rows_and_for_each_rollout_in_the_ratio(tmp_path: Path):
    result = play(tmp_path / "r", strategy=AfterSteps(), steps=True)
    found, summary = result.profile(), result.summary()
    assert summary.paths > summary.usage.calls, "something is shared"
    assert sum(agent.rows.active for agent in found.agents) == summary.usage.calls
    assert sum(agent.rows.active_ratio * agent.rows.whole for agent in found.agents) == pytest.approx(summary.paths)


def test_rows_of_an_earlier_run_are_no_rows_of_this_one(tmp_path: Path):
    with RunReader.open(play(tmp_path / "r").path) as reader:
        trees = [reader.deltas(number) for number in range(3)]
    whole, none, part = RowCounts(), RowCounts(), RowCounts()
    for deltas in trees:
        whole.add(deltas)
        none.add(deltas, len(deltas))
        part.add(deltas, len(deltas) // 2)
    for name, rows in whole.by_role().items():
        later = none.by_role()[name]
        assert (later.active, later.valid) == (0, 0)
        assert (later.active_ratio, later.whole) == (rows.active_ratio, rows.whole)
        assert part.by_role()[name].active <= rows.active


def test_a_run_that_goes_on_from_another_has_the_rows_that_are_its_own(tmp_path: Path):
    first = play(tmp_path / "first")
    again = play(tmp_path / "again", strategy=More(2), continue_from=first.path)
    before, found = by_name(first.profile()), by_name(again.profile())
    for name, agent in found.items():
        was = before[name].rows
        assert (agent.calls, agent.rows.active, agent.rows.valid) == (12, 2 * was.active, 2 * was.valid)
        # Three chains a task, of which one is the earlier run's.
        assert (agent.rows.rounds, agent.rows.whole, agent.rows.active_ratio) == (3, 27, 18 / 27)
    assert sum(agent.calls for agent in again.profile().agents) == again.summary().usage.calls
    with RunReader.open(again.path) as reader:
        assert reader.check() == []


@pytest.mark.breaks_rollouts
def test_calls_that_failed_have_an_agent(tmp_path: Path):
    class Broken:
        async def complete(self, request: Request) -> Reply:
            if b"Verify" in request.body:
                raise LLMError("no", attempts=2)
            return Reply([ReplyChoice("7", None, [], "stop")], 9, 0, 2, 1, 10)

        async def close(self) -> None: ...

    found = by_name(play(tmp_path / "r", llm=Broken()).profile())
    assert (found["verifier"].calls, found["verifier"].failed, found["verifier"].unreported) == (3, 3, 0)
    assert (found["verifier"].rows.active, found["verifier"].rows.rounds) == (0, 1)
    assert (found["solver"].calls, found["solver"].failed, found["solver"].prompt) == (3, 0, 27)


async def pair(rollout: ProgramContext) -> str:
    """Two agents at the same time, the slow one first."""
    asked = (rollout.ask(Agent(model=name, name=name)) for name in ("slow", "fast"))
    return " ".join([said.text for said in await asyncio.gather(*asked)])


def test_a_call_is_over_when_its_reply_is_read_and_not_when_its_turn_lands(tmp_path: Path):
    answered = asyncio.Event()

    class Two:
        async def complete(self, request: Request) -> Reply:
            start = time.perf_counter_ns()
            if json.loads(request.body)["model"] == "slow":
                await answered.wait()
                await asyncio.sleep(0.1)
            answered.set()
            micros = (time.perf_counter_ns() - start) // 1000
            return Reply([ReplyChoice("x", None, [], "stop")], 5, 0, 2, 1, micros)

        async def close(self) -> None: ...

    result = run(Agent(model="m"), TASKS[:1], program=pair, llm=Two(), out=tmp_path / "r")
    ended = {call.agent: call.started + call.micros for _, call in result.calls()}
    assert ended["slow"] - ended["fast"] >= 90_000
    assert {agent.name: agent.rows for agent in result.profile().agents} == {"slow": None, "fast": None}


def test_shares_of_wall_time_are_those_of_a_scripted_clock():
    def call(agent: str, started: int, micros: int, queue: int = 0, attempts: int = 1) -> tuple[int, CallRow]:
        return 0, CallRow("e", 1, 10, 5, 2, attempts, queue, -1, micros, started, agent)

    calls = [
        call("a", 0, 2_000_000),
        call("a", 1_000_000, 2_000_000, queue=500_000),  # out from 1.5 to 3
        call("b", 6_000_000, 1_000_000),
        call("", 6_500_000, 1_500_000),
        call("b", 0, 9_000_000, attempts=0),  # out of a cache
    ]
    found = profile("team", 10.0, calls, [], [], ["t"])
    agents = by_name(found)
    assert (agents["a"].busy, agents["b"].busy, agents["team"].busy) == pytest.approx((0.3, 0.1, 0.15))
    assert (found.busy, found.out) == pytest.approx((0.5, 0.6))
    assert (agents["a"].seconds, agents["a"].at_once, agents["a"].share) == pytest.approx((4, 0.4, 4 / 6.5))
    assert (agents["a"].prompt, agents["a"].cached, agents["a"].generated) == (20, 10, 4)
    assert (agents["a"].times.p50, agents["a"].times.max) == (2.0, 2.0)


@given(st.lists(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=8), max_size=3))
def test_a_union_is_that_of_sets(groups: list[list[tuple[int, int]]]):
    every = []
    for group in groups:
        spans = Spans()
        for begin, length in group:
            spans.add(begin, begin + length)
        every.append(spans)
        assert spans.length == sum(length for _, length in group)
    moments = {at for group in groups for begin, length in group for at in range(begin, begin + length)}
    assert union(*every) == len(moments)


def test_notes_that_no_team_made_are_damage(tmp_path: Path):
    async def noted(rollout: ProgramContext) -> str:
        return (await rollout.ask(note=lambda _choice: "mine")).text

    def answering(prompts: list) -> list[str]:
        return ["x"] * len(prompts)

    result = run(Agent(model="m"), TASKS[:1], program=noted, llm=BatchLLM(answering), out=tmp_path / "r")
    assert result.profile().agents[0].rows is None
    with RunReader.open(result.path) as reader:
        reader.settings["team"] = {"roles": {}}
        with pytest.raises(DamagedRunFile, match="task number 0"):
            reader.profile()


def test_a_time_that_cannot_be_is_damage(tmp_path: Path):
    path = play(tmp_path / "r", tasks=1).path
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE calls SET started = 9223372036854775807, micros = 9")
    connection.close()
    with RunReader.open(path) as reader, pytest.raises(DamagedRunFile, match="a time that cannot be"):
        reader.profile()


def test_a_profile_is_json(tmp_path: Path):
    found = play(tmp_path / "r", tasks=1).profile()
    assert msgspec.json.decode(msgspec.json.encode(found), type=Profile) == found
