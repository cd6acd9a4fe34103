"""Calls on their way from a request to the run file, over real sockets and through real workers."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from atlas import agent, suicide, tasks
from call_logs import delta_with
from foreign import capital_cities, error, message, serving

from trunkline._core import CoreTree
from trunkline.errors import ConfigError, EndpointError
from trunkline.llm.batch.batcher import BatchLLM
from trunkline.llm.config import LLM
from trunkline.llm.openai_client import ClientLLM
from trunkline.llm.pricing import Price
from trunkline.llm.types import Reply, ReplyChoice, Request
from trunkline.observability.observers import Progress
from trunkline.protocol.messages import Batch
from trunkline.rollout.budget import Budget
from trunkline.runner.result import Run
from trunkline.runner.run import arun, run
from trunkline.store.reader import RunReader
from trunkline.store.writer import RunWriter
from trunkline.strategies.chain import Chain
from trunkline.tree.views import Tree
from trunkline.types import Task, Termination
from trunkline.worker.outbox import Outbox, TreeSink, settle

USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 60}}
PRICE = Price(prompt=1, cached=0.5, generated=2)


def with_usage(body: dict) -> dict:
    return capital_cities(body) | {"usage": USAGE}


def counted(path: Path) -> dict[int, int]:
    """How many calls of each task are in the file."""
    with sqlite3.connect(path) as connection:
        found = dict(connection.execute("SELECT task, count(*) FROM calls GROUP BY task").fetchall())
    connection.close()
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_every_request_is_a_row_with_what_it_cost(workers: int, tmp_path: Path):
    seen: list[Progress] = []
    with serving(with_usage) as first, serving(with_usage) as second:
        llm = LLM(first.url, second.url, max_concurrency=8, price=PRICE)
        result = run(
            agent(),
            tasks(),
            llm=llm,
            strategy=Chain(2),
            workers=workers,
            out=tmp_path / "r",
            watch=lambda shot: seen.append(msgspec.structs.replace(shot)),
        )
        sent = {server.url: len(server.bodies) for server in (first, second)}
    calls = list(result.calls())
    summary = result.summary()
    by_url = {url: [call for _, call in calls if call.endpoint.startswith(url)] for url in sent}
    assert {url: len(made) for url, made in by_url.items()} == sent
    assert {endpoint.requests for endpoint in summary.endpoints} == set(sent.values()) - {0}
    assert summary.usage.calls == len(calls) == sum(sent.values())
    assert {name for name, _ in calls} == {task.id for task in tasks()}
    for _, call in calls:
        assert (call.draws, call.prompt, call.cached, call.generated, call.attempts) == (1, 100, 60, 20, 1)
        assert 0 < call.first <= call.micros < 60_000_000
        assert 0 <= call.started < summary.seconds * 1e6
    assert max(call.started for _, call in calls) > min(call.started for _, call in calls)
    each = (40 * 1 + 60 * 0.5 + 20 * 2) / 1e6
    assert summary.spent.money == pytest.approx(len(calls) * each)
    assert summary.per_task == pytest.approx(len(calls) * each / 5)
    assert sum(cost.money for cost in result.costs().values()) == pytest.approx(summary.spent.money)
    last = seen[-1]
    assert (last.prompt, last.generated, last.retries) == (100 * len(calls), 20 * len(calls), 0)
    assert len(last.latencies) == len(calls)
    with RunReader.open(result.path) as reader:
        assert reader.check() == []


def test_attempts_that_were_needed_are_in_the_row(tmp_path: Path):
    refused: set[str] = set()

    def grudging(body: dict) -> object:
        text = body["messages"][0]["content"]
        if len(body["messages"]) == 1 and text not in refused:
            refused.add(text)
            return error(503, "overloaded", kind="server_error")
        return message("<answer>x</answer>")

    with serving(grudging) as server:
        result = run(agent(), tasks(), llm=LLM(server.url), workers=0, out=tmp_path / "r")
    assert [(call.attempts, call.prompt, call.cached, call.generated) for _, call in result.calls()] == [
        (2, -1, -1, -1)
    ] * 5
    (endpoint,) = result.summary().endpoints
    assert (endpoint.retries, endpoint.unreported, endpoint.spent) == (5, 5, None)
    with RunReader.open(result.path) as reader:
        assert reader.check() == []


@pytest.mark.parametrize("workers", [0, 2])
def test_retries_are_counted_by_cause_over_all_sittings_of_a_run(workers: int, tmp_path: Path):
    asked: dict[str, int] = {}

    def grudging(body: dict) -> object:
        text = body["messages"][0]["content"]
        asked[text] = nth = asked.get(text, -1) + 1
        return error(429, "later") if nth == 0 else {} if nth == 1 else message("<answer>x</answer>")

    seen: list[dict[str, int]] = []
    given = {"out": tmp_path / "r", "resume": True, "watch": lambda shot: seen.append(dict(shot.retry_causes))}
    with serving(grudging) as server:
        for calls in (2, 100):
            limit = Budget(calls=calls)
            result = run(agent(), tasks(), llm=LLM(server.url), workers=workers, budget=limit, **given)
            summary = result.summary()
            rows = sum(call.attempts - 1 for _, call in result.calls())
            assert sum(summary.retry_causes.values()) == rows == summary.usage.retries
    assert summary.retry_causes == {"429": 5, "unusable reply": 5} == seen[-1]
    assert all(sum(earlier.values()) <= sum(later.values()) for earlier, later in pairwise(seen))


@pytest.mark.breaks_rollouts
@pytest.mark.parametrize("together", [True, False])
def test_what_failed_for_good_is_a_row_and_its_attempts_count_once(together: bool, tmp_path: Path):
    failing = ("France", "Peru")

    def grudging(body: dict) -> object:
        if any(name in body["messages"][0]["content"] for name in failing):
            return error(503, "overloaded", kind="server_error")
        return several(body)

    with serving(grudging) as server:
        llm = LLM(server.url, max_retries=1, price=PRICE, siblings=together)
        result = run(agent(), tasks(), llm=llm, strategy=Chain(3), workers=0, out=tmp_path / "r")
        asked = len(server.bodies)
    calls = [call for _, call in result.calls()]
    broken = [call for call in calls if call.failed]
    assert {call.endpoint for call in calls} == {server.url}
    assert sum(call.attempts for call in calls) == asked, "every request that was sent is in a row"
    summary = result.summary()
    assert summary.failed == 3 * sum(name in task.messages[0]["content"] for task in tasks() for name in failing) > 0
    assert len(broken) == (summary.failed // 3 if together else summary.failed)
    assert all(call.micros > 0 and call.attempts == 2 for call in broken)
    (endpoint,) = summary.endpoints
    assert (endpoint.failed, endpoint.requests) == (len(broken), len(calls) - len(broken))
    assert summary.usage.retries == endpoint.retries == len(broken)
    assert summary.spent.unpriced == len(broken)
    with RunReader.open(result.path) as reader:
        assert reader.check() == []


@pytest.mark.breaks_rollouts
def test_what_a_dead_worker_paid_stays_in_the_file(tmp_path: Path):
    def call_the_tool(body: dict) -> dict:
        country = body["messages"][0]["content"].removeprefix("Capital of ").rstrip("?")
        return (
            message(None, [("suicide", f'{{"country": "{country}"}}')]) if len(body["messages"]) == 1 else message("x")
        )

    with serving(call_the_tool) as server:
        llm = LLM(server.url, max_concurrency=2)
        result = run(agent(tools=[suicide]), tasks(), llm=llm, workers=2, out=tmp_path / "r")
    with RunReader.open(result.path) as reader:
        assert reader.check() == [], "every turn in the file has its call"
        turns = {
            number: sum(r.usage.calls for r in reader.tree(name).rollouts)
            for number, name in enumerate(reader.task_ids())
        }
    assert Termination.LOST in {r.termination for tree in result for r in tree.rollouts}
    assert counted(result.path) == {number: count for number, count in turns.items() if count}


class Boastful:
    """An LLM of the user's own that says impossible things of itself."""

    def __init__(self, **said: object) -> None:
        self.said = said

    async def complete(self, request: Request) -> Reply:
        reply = Reply([ReplyChoice("<answer>Paris</answer>", None, [], "stop")], 5, 9, 2, 1, 10)
        return msgspec.structs.replace(reply, **self.said)

    async def close(self) -> None:
        raise AssertionError("it is not ours to close")


def test_impossible_figures_of_an_llm_are_not_believed(tmp_path: Path):
    endpoint = "\ud800\x1b[2J https://user:hunter2@h/v1?key=hunter2 " + "x" * 10_000
    result = run(
        agent(), tasks(), llm=Boastful(endpoint=endpoint, queue=2**70, first=-9, micros=2**62), out=tmp_path / "r"
    )
    calls = [call for _, call in result.calls()]
    assert {(c.queue, c.first, c.micros) for c in calls} == {(0, -1, 0)}
    assert all(len(c.endpoint) <= 220 and "hunter2" not in c.endpoint for c in calls)
    assert b"hunter2" not in result.path.read_bytes()
    with RunReader.open(result.path) as reader:
        assert reader.check() == []


class Meddling:
    """An LLM of the user's own that has bytes read for it, and then says other things of the reply."""

    def __init__(self, **said: object) -> None:
        self.said = said

    async def complete(self, request: Request) -> Reply:
        reply = request.take(b'{"choices":[{"message":{"content":"<answer>Paris</answer>"}}]}', 0, 1, 5)
        for field, value in self.said.items():
            setattr(reply, field, value)
        return reply

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    "said",
    [
        {"endpoint": None},
        {"endpoint": []},
        {"queue": 1.5, "first": "x", "micros": None},
        {"attempts": 2**70, "prompt": 2**70, "cached": -7, "generated": True},
    ],
    ids=lambda said: next(iter(said)),
)
def test_a_reply_that_somebody_spoilt_ends_no_run(said: dict[str, object], tmp_path: Path):
    result = run(agent(), tasks(), llm=Meddling(**said), out=tmp_path / "r")
    assert {r.termination for tree in result for r in tree.rollouts} == {Termination.ANSWER}
    for _, call in result.calls():
        assert (call.prompt, call.cached, call.generated, call.attempts, call.queue, call.first) == (
            -1,
            -1,
            -1,
            1,
            0,
            -1,
        )
    with RunReader.open(result.path) as reader:
        assert reader.check() == []


@pytest.mark.parametrize("said", [{"attempts": 2**40}, {"attempts": 2**70}, {"micros": 2**70}], ids=str)
def test_figures_that_no_tree_can_count_are_not_believed(said: dict[str, int], tmp_path: Path):
    result = run(agent(), tasks(), llm=Boastful(**said), out=tmp_path / "r")
    assert {r.termination for tree in result for r in tree.rollouts} == {Termination.ANSWER}
    assert result.summary().usage.retries == 0
    assert {(call.attempts, call.micros) for _, call in result.calls()} <= {(1, 10), (1, 0)}


class Priced(Boastful):
    """An LLM of the user's own that says what it costs."""

    price: object = PRICE


@pytest.mark.parametrize("kind", ["own", "batch", "client"])
async def test_any_llm_can_have_a_price(kind: str, tmp_path: Path):
    openai = pytest.importorskip("openai")
    completed = {"text": "<answer>x</answer>", "usage": USAGE}
    with serving(with_usage) as server:
        async with openai.AsyncOpenAI(api_key="x", base_url=server.url) as client:
            llm = {
                "own": Priced(prompt=100, cached=60, generated=20),
                "batch": BatchLLM(lambda prompts: [completed] * len(prompts), price=PRICE),
                "client": ClientLLM(client, price=PRICE),
            }[kind]
            result = await arun(agent(), tasks(), llm=llm, out=tmp_path / "r")
    spent, count = result.summary().spent, len(list(result.calls()))
    assert (spent.priced, spent.unpriced) == (count, 0)
    assert spent.money == pytest.approx(count * (40 * 1 + 60 * 0.5 + 20 * 2) / 1e6)
    with RunReader.open(result.path) as reader:
        assert reader.settings["llm"] == {"kind": type(llm).__name__, "price": {"*": msgspec.to_builtins(PRICE)}}
        assert reader.check() == []


@pytest.mark.breaks_rollouts
@pytest.mark.parametrize("kind", ["batch", "client"])
async def test_a_failed_request_names_who_was_asked_as_an_answered_one_does(kind: str, tmp_path: Path):
    openai = pytest.importorskip("openai")
    with serving(lambda _: error(400, "no")) as server:
        async with openai.AsyncOpenAI(api_key="x", base_url=server.url) as client:
            llm = BatchLLM(lambda _: []) if kind == "batch" else ClientLLM(client)
            with contextlib.suppress(EndpointError):
                await arun(agent(), tasks()[:1], llm=llm, out=tmp_path / "r")
    assert [(call.endpoint, call.failed) for _, call in Run(tmp_path / "r", "done").calls()] == [
        ("BatchLLM" if kind == "batch" else server.url, True)
    ]


def test_what_is_no_price_is_refused_by_name():
    openai = pytest.importorskip("openai")
    llm = Priced()
    llm.price = 3
    for make, name in (
        (lambda: run(agent(), tasks(), llm=llm), r"Priced\.price"),
        (lambda: BatchLLM(list, price=3), "BatchLLM: price"),
        (lambda: ClientLLM(openai.AsyncOpenAI(api_key="x"), price=3), "ClientLLM: price"),
    ):
        with pytest.raises(ConfigError, match=f"{name} must be a Price, not 3"):
            make()


def several(body: dict) -> dict:
    """As many choices as were asked for, and the usage of all."""
    one = message("<answer>x</answer>")["choices"][0]
    choices = [one | {"index": index} for index in range(body.get("n", 1))]
    return message("") | {"choices": choices, "usage": USAGE | {"completion_tokens": 20 * len(choices)}}


def test_siblings_are_one_row_and_kept_answers_are_rows_that_cost_nothing(tmp_path: Path):
    with serving(several) as server:
        llm = LLM(server.url, price=PRICE)
        for name in ("first", "again"):
            run(
                agent(),
                tasks(),
                llm=llm,
                strategy=Chain(4),
                seed=3,
                workers=0,
                cache=tmp_path / "c",
                out=tmp_path / name,
            )
        assert len(server.bodies) == 5
    first, again = (Run(tmp_path / name, "done") for name in ("first", "again"))
    assert [(call.draws, call.generated, call.attempts) for _, call in first.calls()] == [(4, 80, 1)] * 5
    assert [(c.endpoint, c.draws, c.attempts) for _, c in again.calls()] == [("cache", 1, 0)] * 20
    (endpoint,) = again.summary().endpoints
    assert (endpoint.requests, endpoint.kept, again.summary().spent.money) == (0, 20, 0)
    assert first.summary().spent.money == pytest.approx(5 * (40 * 1 + 60 * 0.5 + 80 * 2) / 1e6)
    assert {tree.task.id: tree.digest() for tree in first} == {tree.task.id: tree.digest() for tree in again}
    for result in (first, again):
        with RunReader.open(result.path) as reader:
            assert reader.check() == []


def test_a_reply_settles_to_its_row():
    reply = Reply([ReplyChoice("", None, [], "")] * 3, 10, -1, 6, 2, 1_500_000, "m", "http://h/v1", 7, 9)
    row = settle(msgspec.structs.replace(reply, agent="solver", ended=2_000_000))
    assert msgspec.structs.astuple(row) == ("http://h/v1", 3, 10, -1, 6, 2, 7, 9, 1_500_000, 500_000, "solver")


def test_a_secret_is_hidden_before_a_name_is_cut():
    told = f"{'x' * 190} sk-hunter2hunter2"
    assert "hunter" not in settle(Reply([], 1, 1, 1, 1, 1, endpoint=told)).endpoint


async def test_a_call_leaves_once_with_the_next_delta_of_its_tree_or_alone():
    sent: list[Batch] = []
    outbox = Outbox(8, sent.append, lambda problem: pytest.fail(str(problem)))
    growths = [TreeSink(outbox, number, Tree(Task.ask(str(number)))) for number in range(2)]
    for growth in growths:
        growth.called(Reply([], 1, 0, 1, 1, 1, endpoint=str(growth.index)))
    outbox.note(growths[0])
    outbox.flush()
    for growth in reversed(growths):
        growth.tree.core.append(0, 1, b'{"a":1}')
        growth.grew()
    outbox.flush()
    growths[0].tree.core.append(0, 1, b'{"b":1}')
    growths[0].grew()
    outbox.flush()
    outbox.close()
    found = [(d.task, d.seq, [call.endpoint for call in d.calls]) for batch in sent for d in batch.deltas]
    assert sorted(found) == [(0, 0, ["0"]), (0, 1, []), (0, 2, []), (1, 0, ["1"])]
    await asyncio.sleep(0)


def test_a_snapshot_counts_what_was_sent(tmp_path: Path):
    shot = Progress(1, 1)
    one = [ReplyChoice("", None, [], "")]
    replies = [
        Reply(one, 10, 0, 3, 3, 2_000_000),
        Reply(one, -1, -1, 5, 1, 1),
        Reply(one, 10, 0, 3, 0, 1),
        Reply([], -1, -1, -1, 6, 9_000_000),
    ]
    delta = delta_with(CoreTree(), [settle(reply) for reply in replies])
    with RunWriter.create(tmp_path / "r", {}, [Task.ask("q")]) as writer:
        shot.called(writer.commit([(0, 0, delta)]))
    assert (shot.prompt, shot.generated, shot.retries, list(shot.latencies)) == (10, 3, 7, [2.0, 1e-6])
    assert (shot.percentile(0.5), shot.percentile(0.95)) == (1e-6, 2.0)
    assert Progress(1, 1).percentile(0.5) is None, "before the first call"


def test_a_run_object_counts_its_trees_without_its_calls(tmp_path: Path):
    result = run(agent(), tasks(), llm=Boastful(), out=tmp_path / "r")
    with sqlite3.connect(result.path) as connection:
        connection.execute("UPDATE calls SET queue = 'long'")
    connection.close()
    assert len(Run(result.path, "done")) == 5
