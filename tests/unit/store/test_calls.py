"""Calls in the run file: written with their deltas, read back, summed up, priced and checked."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import msgspec
import pytest
from call_logs import delta_with
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline import _core
from trunkline._core import checksum
from trunkline.errors import RunFileError, WorkerError
from trunkline.llm.pricing import Price
from trunkline.llm.types import Reply, ReplyChoice
from trunkline.store.derive import rows
from trunkline.store.reader import RunReader
from trunkline.store.schema import CALL_ROWS, SCHEMA_VERSION, TOOL_ROWS, CallRow, ToolRow
from trunkline.store.stats.calls import ESTIMATED_USAGE, CallStats, Spending, by_endpoint, percentile, total
from trunkline.store.writer import RunWriter
from trunkline.types import Task
from trunkline.worker.outbox import settle

TASKS = [Task.ask(f"Who is {n}?", "Ada", id=f"q{n}") for n in range(3)]
A, B = "http://a/v1", "http://b/v1"
PRICES = {A: Price(prompt=2.0, cached=0.5, generated=8.0), B: Price(prompt=0.0, generated=0.1)}


def call(endpoint: str = A, agent: str = "", **fields: int) -> CallRow:
    base = {
        "draws": 1,
        "prompt": 10,
        "cached": 4,
        "generated": 3,
        "attempts": 1,
        "queue": 5,
        "first": 70,
        "micros": 250,
    }
    return CallRow(endpoint, **(base | {"started": 0} | fields), agent=agent)


def grow(
    usages: list[tuple[int, int, int]], best: float = 1.0, agents: str = "", calls: Sequence[Sequence[CallRow]] = ()
) -> tuple[_core.CoreTree, list[bytes]]:
    """A tree with a one-turn rollout for each usage (prompt, cached, generated), and a delta for each, with calls."""
    core = _core.CoreTree()
    point = core.append(0, 1, b'{"role":"user","content":"?"}')
    deltas = []
    for draw, usage in enumerate(usages):
        rollout = core.open(point, [0, draw], draw)
        core.turn(
            rollout,
            json.dumps({"role": "assistant", "content": str(draw)}).encode(),
            core.name(agents[draw % len(agents)] if agents else ""),
            0,
            0,
            *usage,
            0,
            250,
        )
        core.close(rollout, "answer", "Ada")
        core.score(rollout, best * (draw == 0))
        deltas.append(delta_with(core, calls[draw] if draw < len(calls) else ()))
    return core, deltas


def write(
    path: Path, tasks: list[list[CallRow]], prices: dict[str, Price] | None = None, rewards: list[float] | None = None
) -> None:
    """A run whose tasks had these calls, one delta for each, and whose first tries have these rewards."""
    llm = {"price": prices or {}}
    with RunWriter.create(path, {"llm": llm}, TASKS[: len(tasks)], command=[]) as writer:
        for number, calls in enumerate(tasks):
            usage = [(c.prompt, c.cached, c.generated) for c in calls]
            core, deltas = grow(usage, 1.0 if rewards is None else rewards[number], calls=[[c] for c in calls])
            writer.commit([(number, seq, d) for seq, d in enumerate(deltas)], [(number, *rows(core))])


def edit(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as connection:
        for statement in statements:
            assert connection.execute(statement).rowcount > 0
    connection.close()


def problems(path: Path) -> list[str]:
    with RunReader.open(path) as reader:
        return reader.check()


figures = st.integers(-1, 2**31 - 1)
micros = st.integers(0, 10**15)
calls_of_any_kind = st.builds(
    CallRow,
    endpoint=st.sampled_from([A, B, "", "Someone's \u202e LLM"]),
    draws=st.integers(0, 64),
    prompt=figures,
    cached=figures,
    generated=figures,
    attempts=st.integers(0, 9),
    queue=micros,
    first=st.integers(-1, 10**15),
    micros=micros,
    started=micros,
    agent=st.sampled_from(["", "solver", "veri\x1bfier"]),
)


@settings(max_examples=15)
@given(batches=st.lists(st.lists(calls_of_any_kind, max_size=4), max_size=6))
def test_calls_are_read_as_they_were_written(tmp_path_factory: pytest.TempPathFactory, batches: list[list[CallRow]]):
    path = tmp_path_factory.mktemp("calls") / "run"
    with RunWriter.create(path, {}, TASKS[:1], command=[]) as writer:
        core, origin = _core.CoreTree(), writer._calls._began
        for seq, calls in enumerate(batches):
            begun = [msgspec.structs.replace(c, started=c.started + origin) for c in calls]
            writer.commit([(0, seq, delta_with(core, begun) if begun else b"delta")])
    with RunReader.open(path) as reader:
        assert list(reader.calls()) == [(0, c) for calls in batches for c in calls]


def test_an_endpoint_is_one_number_and_has_its_name_once(tmp_path: Path):
    write(tmp_path / "run", [[call(A), call(B)], [call(A), call("C"), call(B)]])
    with sqlite3.connect(tmp_path / "run") as connection:
        assert connection.execute("SELECT * FROM endpoints ORDER BY endpoint").fetchall() == [(0, A), (1, B), (2, "C")]
        assert connection.execute("SELECT endpoint FROM calls ORDER BY call").fetchall() == [
            (0,),
            (1,),
            (0,),
            (2,),
            (1,),
        ]
    connection.close()
    assert problems(tmp_path / "run") == []


def test_a_batch_that_comes_again_counts_its_calls_once(tmp_path: Path):
    core, deltas = grow([(10, 4, 3), (10, 4, 3)], calls=[[call()], [call()]])
    batch = ([(0, seq, delta) for seq, delta in enumerate(deltas)], [(0, *rows(core))])
    with RunWriter.create(tmp_path / "run", {}, TASKS[:1], command=[]) as writer:
        writer.commit(batch[0][:1])
        writer.commit(*batch)
        writer.commit(*batch)
    with RunReader.open(tmp_path / "run") as reader:
        assert reader.check() == []
        assert len(list(reader.calls())) == 2


def test_a_delta_that_comes_twice_at_once_counts_its_calls_once(tmp_path: Path):
    core, (delta,) = grow([(10, 4, 3)], calls=[[call()]])
    with RunWriter.create(tmp_path / "run", {}, TASKS[:1], command=[]) as writer:
        writer.commit([(0, 0, delta)] * 2, [(0, *rows(core))])
    with RunReader.open(tmp_path / "run") as reader:
        assert reader.check() == []
        assert [c.endpoint for _, c in reader.calls()] == [A]


def test_a_batch_that_is_refused_leaves_no_call_no_endpoint_and_no_agent(tmp_path: Path):
    core, deltas = grow([(10, 4, 3), (10, 4, 3)], agents="xz", calls=[[call(A, "x")], [call("C", "z")]])
    _, refused = grow([(10, 4, 3), (10, 4, 3)], agents="xy", calls=[[call(A, "x")], [call(B, "y")]])
    with RunWriter.create(tmp_path / "run", {}, TASKS[:1], command=[]) as writer:
        writer.commit([(0, 0, deltas[0])])
        with pytest.raises(WorkerError):
            writer.commit([(0, 1, refused[1]), (0, 0, b"other")])
        writer.commit([(0, 1, deltas[1])], [(0, *rows(core))])
    with RunReader.open(tmp_path / "run") as reader:
        assert [(c.endpoint, c.agent) for _, c in reader.calls()] == [(A, "x"), ("C", "z")]
        assert reader.agents() == ["x", "z"]
        assert reader.check() == []


def test_a_call_under_another_agent_than_its_turn_is_found(tmp_path: Path):
    made = [[call(agent="xy"[seq % 2])] for seq in range(4)]
    core, deltas = grow([(10, 4, 3)] * 4, agents="xy", calls=made)
    with RunWriter.create(tmp_path / "run", {}, TASKS[:1], command=[]) as writer:
        writer.commit([(0, seq, delta) for seq, delta in enumerate(deltas)], [(0, *rows(core))])
    assert problems(tmp_path / "run") == []
    edit(tmp_path / "run", "UPDATE calls SET agent = 0 WHERE call = 2")
    assert problems(tmp_path / "run") == [
        'task "q0": calls: those of "y" brought 1 completions, but 2 turns are in the deltas'
    ]
    edit(tmp_path / "run", "UPDATE agents SET name = '' WHERE agent = 0")
    assert problems(tmp_path / "run") == [
        "agents: its rows are not those that were written",
        'task "q0": calls: its rows are not those that were written',
    ], "who names nobody is anybody, but the names and the row were others"
    edit(tmp_path / "run", "DELETE FROM agents WHERE agent = 1")
    assert any("call 4: Expected `str`" in line for line in problems(tmp_path / "run"))


def settled(endpoint: str) -> CallRow:
    """The call of a reply from an endpoint, as a worker sends it."""
    return settle(Reply([ReplyChoice("x", None, [], "stop")], 10, 4, 3, 1, 250, "", endpoint, ended=250))


def test_no_key_reaches_the_names_of_endpoints(tmp_path: Path):
    names = ["http://user:hunter2@h/v1", "http://h/v1?api-key=hunter2", "Bearer hunter2hunter2", "sk-hunter2hunter2"]
    write(tmp_path / "run", [[settled(name) for name in names]])
    assert b"hunter2" not in (tmp_path / "run").read_bytes()
    with RunReader.open(tmp_path / "run") as reader:
        assert len(list(reader.calls())) == 4


def test_a_key_in_a_base_url_is_stored_nowhere_and_the_price_is_still_found(tmp_path: Path):
    url = "http://gateway/sk-hunter2hunter2/v1"
    write(tmp_path / "run", [[settled(url)]], {url: PRICES[A]})
    assert b"hunter2" not in (tmp_path / "run").read_bytes()
    with RunReader.open(tmp_path / "run") as reader:
        assert reader.summary().spent == Spending(pytest.approx(PRICES[A].of(10, 4, 3)), 1, 0)


def naive(calls: list[CallRow], endpoint: str) -> dict[str, object]:
    paid = [c for c in calls if c.endpoint == endpoint and c.attempts > 0]
    sent = [c for c in paid if c.draws > 0]
    counted = [c for c in sent if c.prompt >= 0 and c.generated >= 0]
    told = any(c.cached >= 0 for c in counted)
    price = PRICES.get(endpoint)
    priced = [c for c in paid if price and c.prompt >= 0 and c.generated >= 0]
    money = Fraction(0)
    for c in priced:
        hit = max(0, min(c.cached, c.prompt))
        cached = price.prompt if price.cached is None else price.cached
        for tokens, each in ((c.prompt - hit, price.prompt), (hit, cached), (c.generated, price.generated)):
            money += tokens * Fraction(each) / 1_000_000
    whole = sum(c.cached < 0 for c in priced) if price and price.cached is not None else 0
    return {
        "requests": len(sent),
        "kept": sum(c.endpoint == endpoint and c.attempts == 0 for c in calls),
        "draws": sum(c.draws for c in sent),
        "failed": len(paid) - len(sent),
        "retries": sum(c.attempts - 1 for c in paid),
        "prompt": sum(c.prompt for c in counted),
        "cached": sum(min(c.cached, c.prompt) for c in counted if c.cached >= 0) if told or not counted else None,
        "silent": sum(c.cached < 0 for c in counted),
        "generated": sum(c.generated for c in counted),
        "unreported": len(sent) - len(counted),
        "priced": (float(money), len(priced), len(paid) - len(priced), whole),
    }


@settings(max_examples=80)
@given(calls=st.lists(calls_of_any_kind, max_size=30), order=st.randoms())
def test_sums_by_endpoint_are_those_of_a_naive_reading(calls: list[CallRow], order):
    found = by_endpoint(calls, PRICES)
    assert [e.endpoint for e in found] == sorted({c.endpoint for c in calls})
    for endpoint in found:
        expected = naive(calls, endpoint.endpoint)
        money, *counts = expected.pop("priced")
        assert {name: getattr(endpoint, name) for name in expected} == expected
        assert endpoint.spent.money == pytest.approx(money, rel=1e-12)
        assert [endpoint.spent.priced, endpoint.spent.unpriced, endpoint.spent.silent] == counts
    shuffled = calls[:]
    order.shuffle(shuffled)
    assert by_endpoint(shuffled, PRICES) == found, "to the last bit, in any order"


@settings(max_examples=60)
@given(calls=st.lists(calls_of_any_kind, max_size=30), cut=st.integers(0, 30))
def test_statistics_are_those_of_a_naive_reading_however_the_calls_are_grouped(calls: list[CallRow], cut: int):
    whole, first, rest = CallStats(), CallStats(), CallStats()
    whole.add(*calls)
    first.add(*calls[:cut])
    for each in calls[cut:]:
        rest.add(each)
    assert first + rest == whole
    counted = [c for c in calls if c.prompt >= 0 and c.generated >= 0]
    assert whole == CallStats(
        calls=len(calls),
        draws=sum(c.draws for c in calls),
        plural=sum(c.draws != 1 for c in calls),
        retries=sum(max(0, c.attempts - 1) for c in calls),
        micros=sum(c.micros for c in calls),
        reported=len(counted),
        prompt=sum(c.prompt for c in counted),
        cached=sum(min(c.cached, c.prompt) for c in counted if c.cached >= 0),
        silent=sum(c.cached < 0 for c in counted),
        generated=sum(c.generated for c in counted),
    )


@settings(max_examples=60)
@given(times=st.lists(micros, min_size=1, max_size=200))
def test_percentiles_are_the_least_times_that_enough_calls_did_not_exceed(times: list[int]):
    (endpoint,) = by_endpoint([call(micros=t, queue=t // 2, first=-1) for t in times], {})
    for found, share in ((endpoint.total.p50, 50), (endpoint.total.p95, 95)):
        within = [sum(other <= t for other in times) * 100 >= share * len(times) for t in times]
        assert found == min(t for t, enough in zip(times, within, strict=True) if enough) / 1e6
    assert endpoint.total.max == max(times) / 1e6
    assert endpoint.queue.max == max(times) // 2 / 1e6
    assert endpoint.first is None


@pytest.mark.parametrize(
    ("count", "share", "rank"), [(1, 0.5, 1), (10, 0.5, 5), (11, 0.5, 6), (20, 0.95, 19), (21, 0.95, 20), (3, 0.0, 1)]
)
def test_a_percentile_is_the_nearest_rank(count: int, share: float, rank: int):
    assert percentile(range(1, count + 1), share) == rank


def test_generated_tokens_a_second_are_over_the_time_the_endpoint_was_in_use():
    overlapping = [
        call(started=1_000_000, micros=2_000_000, generated=30),
        call(started=2_000_000, micros=3_000_000, generated=10),
    ]
    assert by_endpoint(overlapping, {})[0].rate == pytest.approx(10.0)
    assert by_endpoint([call(micros=0)], {})[0].rate == 0.0


def test_replies_out_of_a_cache_cost_nothing_and_took_no_time():
    (only,) = by_endpoint([call(attempts=0)], PRICES)
    assert (only.requests, only.kept, only.prompt, only.total) == (0, 1, 0, None)
    assert only.spent == Spending(0.0, 0, 0)


def test_what_failed_for_good_took_attempts_and_nobody_knows_what_it_cost():
    failed = call(draws=0, prompt=-1, cached=-1, generated=-1, attempts=6, first=-1, micros=9_000_000)
    (only,) = by_endpoint([call(attempts=2), failed], PRICES)
    assert (only.requests, only.failed, only.retries, only.unreported, only.total.max) == (1, 1, 6, 0, 250 / 1e6)
    assert (only.spent.priced, only.spent.unpriced) == (1, 1)
    (none,) = by_endpoint([failed], {})
    assert (none.requests, none.failed, none.rate, none.total) == (0, 1, 0.0, None)


def test_what_was_not_reported_is_not_priced():
    calls = [call(), call(prompt=-1), call(generated=-1), call(cached=-1), call("http://elsewhere/v1")]
    first, second = by_endpoint(calls, PRICES)
    assert (first.spent.priced, first.spent.unpriced, first.spent.silent) == (2, 2, 1)
    silent = 10 * 2 + 3 * 8
    assert first.spent.money == pytest.approx((6 * 2 + 4 * 0.5 + 3 * 8 + silent) / 1e6), "unknown is uncached"
    assert second.spent == Spending(0.0, 0, 1)
    assert total([first, second]) == Spending(first.spent.money, 2, 3, 1)
    assert total(by_endpoint(calls, {})) is None, "without a price there is no sum, not a sum of 0"


def test_the_summary_prices_the_run_its_tasks_and_what_it_solved(tmp_path: Path):
    tasks = [[call(A), call(B)], [call(A, prompt=-1)], [call(A), call(A, cached=-1)]]
    write(tmp_path / "run", tasks, PRICES, rewards=[1.0, 1.0, 0.5])
    with RunReader.open(tmp_path / "run") as reader:
        summary, costs = reader.summary(), reader.costs()
    assert (summary.called, summary.solved) == (3, 2)
    assert (summary.spent.unpriced, summary.spent.silent) == (1, 1)
    assert summary.spent.money == math.fsum(e.spent.money for e in summary.endpoints)
    assert summary.spent.money == pytest.approx(math.fsum(c.money for c in costs.values()), rel=1e-12)
    assert list(costs) == ["q0", "q1", "q2"]
    assert costs["q1"] == Spending(0.0, 0, 1)
    assert summary.per_task == pytest.approx(summary.spent.money / 3)
    assert summary.per_solved == pytest.approx(summary.spent.money / 2)
    assert sum(e.requests for e in summary.endpoints) == summary.usage.calls


def test_nothing_is_said_to_cost_nothing_because_its_price_is_not_known(tmp_path: Path):
    write(tmp_path / "run", [[call(prompt=-1)], [call(attempts=0)]], PRICES)
    with RunReader.open(tmp_path / "run") as reader:
        summary = reader.summary()
    assert (summary.spent, summary.per_task, summary.per_solved) == (Spending(0.0, 0, 1), None, None)
    write(tmp_path / "kept", [[call(attempts=0)]], PRICES)
    with RunReader.open(tmp_path / "kept") as reader:
        assert reader.summary().per_task == 0.0


def test_what_was_cached_is_not_known_where_no_server_says_so(tmp_path: Path):
    write(tmp_path / "run", [[call(cached=-1)], [call(A, cached=-1), call(B)]])
    with RunReader.open(tmp_path / "run") as reader:
        summary, tasks = reader.summary(), reader.by_task()
    assert [endpoint.cached for endpoint in summary.endpoints] == [None, 4]
    assert (summary.cached, summary.uncached, summary.silent) == (4, 26, 2)
    assert [task.silent for task in tasks] == [True, False]
    write(tmp_path / "none", [[call(cached=-1)], [call(cached=-1, attempts=2)]])
    with RunReader.open(tmp_path / "none") as reader:
        summary = reader.summary()
        assert [agent.cached for agent in reader.profile().agents] == [None]
        assert reader.check() == []
    assert (summary.prompt, summary.cached, summary.uncached) == (20, None, None)


@pytest.mark.parametrize(("noted", "told"), [({A: 2, "elsewhere": 9}, [2, 0]), ([], [0, 0])])
def test_tokens_that_are_estimated_are_told_by_endpoint(tmp_path: Path, noted: object, told: list[int]):
    write(tmp_path / "run", [[call(A), call(B)]])
    with RunWriter.open(tmp_path / "run") as writer:
        writer.note(ESTIMATED_USAGE, noted)
    with RunReader.open(tmp_path / "run") as reader:
        summary = reader.summary()
    assert ([endpoint.estimated for endpoint in summary.endpoints], summary.estimated) == (told, sum(told))


def test_without_a_price_there_are_no_costs(tmp_path: Path):
    write(tmp_path / "run", [[call()]])
    with RunReader.open(tmp_path / "run") as reader:
        summary = reader.summary()
        assert reader.costs() == {}
    assert (summary.spent, summary.per_task, summary.per_solved) == (None, None, None)


@pytest.mark.parametrize("price", ['{"prompt":-1,"generated":0}', '{"prompt":1}', '"free"'])
def test_a_price_that_cannot_be_read_is_damage(tmp_path: Path, price: str):
    write(tmp_path / "run", [[call()]])
    edit(
        tmp_path / "run",
        f"""UPDATE meta SET value = '{{"llm":{{"price":{{"http://a/v1":{price}}}}}}}' WHERE key = 'settings'""",
    )
    with (
        RunReader.open(tmp_path / "run") as reader,
        pytest.raises(RunFileError, match=r"is damaged: meta\.settings: price"),
    ):
        reader.summary()


TAMPERED = [
    (["DELETE FROM calls WHERE call = 2"], "calls: 1 are missing between the first and the last"),
    (
        ["DELETE FROM calls WHERE call = 3"],
        'task "q1": calls: they brought 0 completions, but 1 turns are in the deltas',
    ),
    (
        ["UPDATE calls SET prompt = 11 WHERE call = 1"],
        'task "q0": calls: prompt is 21 in the rows and 20 in the deltas',
    ),
    (["UPDATE calls SET cached = 0 WHERE call = 1"], 'task "q0": calls: cached is 4 in the rows and 8 in the deltas'),
    (["UPDATE calls SET generated = -1 WHERE call = 1"], "calls: unreported is 1 in the rows and 0 in the deltas"),
    (["UPDATE calls SET prompt = -2 WHERE call = 1"], "call 1: prompt is -2"),
    (["UPDATE calls SET micros = -1 WHERE call = 1"], "call 1: micros is -1"),
    (["UPDATE calls SET micros = 'x\x1b' WHERE call = 1"], "call 1: Expected `int`, got `str`"),
    (["UPDATE calls SET seq = 9 WHERE call = 1"], "calls: 1 of task number 0 came with a delta that is not there"),
    (["UPDATE calls SET task = 77 WHERE call = 3"], "calls: rows of task number 77"),
    (["UPDATE calls SET task = 'x\x1b' WHERE call = 3"], "calls: rows of task number"),
    (["DELETE FROM endpoints"], "call 1: Expected `str`, got `null`"),
]


@pytest.mark.parametrize(("statements", "problem"), TAMPERED, ids=range(len(TAMPERED)))
def test_check_names_what_does_not_fit(tmp_path: Path, statements: list[str], problem: str):
    write(tmp_path / "run", [[call(), call()], [call()]])
    assert problems(tmp_path / "run") == []
    edit(tmp_path / "run", *statements)
    found = problems(tmp_path / "run")
    assert problem in "\n".join(found)
    assert all(line.isprintable() for line in found)


def test_a_row_with_a_checksum_of_its_own_is_held_against_its_delta(tmp_path: Path):
    core, (delta,) = grow([(10, 4, 3)], calls=[[call()]])
    tool = delta_with(core, [], [ToolRow(0, "search", False, 70, 1)])
    with RunWriter.create(tmp_path / "run", {}, TASKS[:1], command=[]) as writer:
        writer.commit([(0, 0, delta), (0, 1, tool)], [(0, *rows(core))])
    with sqlite3.connect(tmp_path / "run") as connection:
        for table, column, query in (("calls", "calls_sum", CALL_ROWS), ("uses", "tools_sum", TOOL_ROWS)):
            assert problems(tmp_path / "run") == []
            connection.execute(f"UPDATE {table} SET micros = micros + 1")
            sums = sum(checksum((row,)) for row in connection.execute(query))
            connection.execute(f"UPDATE trees SET {column} = ?", (sums,))
            connection.commit()
            assert problems(tmp_path / "run") == [f'task "q0": {table}: its rows are not those that were written']
            connection.execute(f"UPDATE {table} SET micros = micros - 1")
            sums = sum(checksum((row,)) for row in connection.execute(query))
            connection.execute(f"UPDATE trees SET {column} = ?", (sums,))
            connection.commit()
    connection.close()


def test_a_request_that_failed_is_not_held_against_the_turns(tmp_path: Path):
    failed = call(draws=0, prompt=-1, cached=-1, generated=-1, attempts=6, first=-1)
    core, (delta,) = grow([(10, 4, 3)], calls=[[failed, call()]])
    with RunWriter.create(tmp_path / "run", {}, TASKS[:1], command=[]) as writer:
        writer.commit([(0, 0, delta)], [(0, *rows(core))])
    assert problems(tmp_path / "run") == []
    edit(tmp_path / "run", "UPDATE calls SET prompt = 11 WHERE draws = 1")
    assert problems(tmp_path / "run") == ['task "q0": calls: prompt is 11 in the rows and 10 in the deltas']


def test_more_draws_than_turns_fit_and_their_usage_is_not_compared(tmp_path: Path):
    core, deltas = grow([(10, 4, 3), (-1, -1, -1)], calls=[[call(draws=4, generated=12)]])
    with RunWriter.create(tmp_path / "run", {}, TASKS[:1], command=[]) as writer:
        writer.commit([(0, 0, deltas[0]), (0, 1, deltas[1])], [(0, *rows(core))])
    assert problems(tmp_path / "run") == []
    edit(tmp_path / "run", "UPDATE calls SET draws = 1")
    assert problems(tmp_path / "run") == ['task "q0": calls: they brought 1 completions, but 2 turns are in the deltas']


def test_a_damaged_call_is_damage_for_readers_too(tmp_path: Path):
    write(tmp_path / "run", [[call()]])
    edit(tmp_path / "run", "UPDATE calls SET queue = 'long'")
    with RunReader.open(tmp_path / "run") as reader, pytest.raises(RunFileError, match="a row of calls"):
        reader.summary()


def test_calls_of_an_endpoint_that_is_gone_are_damage_and_not_left_out(tmp_path: Path):
    write(tmp_path / "run", [[call()]])
    edit(tmp_path / "run", "DELETE FROM endpoints")
    with RunReader.open(tmp_path / "run") as reader, pytest.raises(RunFileError, match="a row of calls"):
        reader.summary()


def test_a_run_of_the_schema_before_is_refused_by_its_number(tmp_path: Path):
    write(tmp_path / "run", [[call()]])
    with sqlite3.connect(tmp_path / "run") as connection:
        connection.execute("DROP TABLE calls")
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(
        RunFileError, match=f"is a Trunkline run of schema version 2, but {SCHEMA_VERSION} is read here"
    ):
        RunReader.open(tmp_path / "run")
