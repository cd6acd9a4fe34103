"""Runs that are gone on with in their own file."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path

import msgspec
import pytest
from atlas import CAPITALS, agent, lookup, stall, tasks
from foreign import capital_cities, message, serving
from resuming import digests, kill, renumber, start, undo, wait_for

from trunkline.errors import ConfigError, RunFileError
from trunkline.llm.config import LLM
from trunkline.llm.pricing import Price
from trunkline.rollout.budget import Budget
from trunkline.runner.plan import PreparedRun, plan
from trunkline.runner.run import run, stream
from trunkline.scoring.filters import FILTERS
from trunkline.scoring.rewards import exact_match
from trunkline.store.lock import is_written
from trunkline.store.reader import RunReader
from trunkline.store.schema import delta_key, delta_keys
from trunkline.store.state import resumptions
from trunkline.strategies.chain import Chain
from trunkline.types import Task


def once(server, out: Path, only: int | None = None, **options):
    """A run of the atlas, resumed where it is there."""
    given = {"strategy": Chain(2), "seed": 7, "workers": 0, "resume": True, "llm": LLM(server.url)}
    return run(agent(), tasks()[:only], out=out, **given | options)


def calls_in(path: Path) -> int:
    """Calls in a run file; none where there is no file yet."""
    if not path.exists():
        return 0
    with RunReader.open(path) as reader:
        return sum(1 for _ in reader.calls())


def test_a_run_that_is_killed_again_and_again_comes_to_the_same_trees(tmp_path: Path):
    out = tmp_path / "r"
    with serving(capital_cities, delay=0.1) as server:
        undisturbed = digests(once(server, tmp_path / "undisturbed").path)
        paid, kept = len(server.bodies), 0
        for _ in range(3):
            sent = len(server.bodies)
            most = sent + 4
            process = start(server.url, out)
            wait_for(lambda most=most: len(server.bodies) >= most)
            kill(process)
            wait_for(lambda: not is_written(out))
            assert digests(out).items() <= undisturbed.items()
            before, kept = kept, calls_in(out)
            assert len(server.bodies) - sent - (kept - before) <= 8 + 2 * 64, "more was in flight than may be"
        sent = len(server.bodies)
        result = once(server, out)
    assert digests(out) == undisturbed
    assert result.state == "done"
    assert len(server.bodies) - sent <= paid - kept, "what is in the file is not paid again"
    with RunReader.open(out) as reader:
        assert 2 <= len(resumptions(reader.meta)) <= 3, "the first may have been killed before there was a file"


def test_a_finished_run_is_returned_and_nothing_is_run(tmp_path: Path):
    with serving(capital_cities) as server:
        first = once(server, tmp_path / "r")
        sent, bytes_ = len(server.bodies), first.path.read_bytes()
        again = once(server, tmp_path / "r")
        assert len(server.bodies) == sent
    assert (again.state, again.path) == ("done", first.path)
    assert first.path.read_bytes() == bytes_
    assert len(again) == 5


def test_only_what_is_missing_is_run(tmp_path: Path):
    with serving(capital_cities) as server:
        result = once(server, tmp_path / "r")
        before, seconds = digests(result.path), result.summary().seconds
        undo(result.path, "Benin", "Chile")
        server.bodies.clear()
        time.sleep(0.2)
        result = once(server, tmp_path / "r")
        asked = {body["messages"][0]["content"] for body in server.bodies}
    assert asked == {"Capital of Benin?", "Capital of Chile?"}
    assert digests(result.path) == before
    assert seconds < result.summary().seconds < seconds + 30
    with RunReader.open(result.path) as reader:
        calls = list(reader.calls())
        ends = [resumption.finished for resumption in resumptions(reader.meta)]
    late, early = ([call.started for task, call in calls if (task > 2) == again] for again in (True, False))
    assert len(late) > 1
    assert min(late) > max(early), "times go on"
    assert len({call.endpoint for _, call in calls}) == 1
    assert ends == [3]


async def test_a_stream_yields_what_is_finished_first(tmp_path: Path):
    with serving(capital_cities) as server:
        given = {"strategy": Chain(2), "seed": 7, "workers": 0, "llm": LLM(server.url), "resume": True}
        whole = [tree async for tree in stream(agent(), tasks(), out=tmp_path / "r", **given)]
        undo(tmp_path / "r", "France", "Japan")
        names = [tree.task.id async for tree in stream(agent(), tasks(), out=tmp_path / "r", **given)]
        again = [tree.task.id async for tree in stream(agent(), tasks(), out=tmp_path / "r", **given)]
    assert names[:3] == ["Brazil", "Benin", "Chile"]
    assert sorted(names) == sorted(again) == sorted(CAPITALS)
    assert len(whole) == 5


async def test_a_stream_of_a_run_that_was_killed_once_all_was_done_ends(tmp_path: Path):
    with serving(capital_cities) as server:
        path = once(server, tmp_path / "r").path
        undo(path)
        sent = len(server.bodies)
        given = {"strategy": Chain(2), "seed": 7, "workers": 0, "llm": LLM(server.url), "resume": True}
        async with asyncio.timeout(20):
            names = [tree.task.id async for tree in stream(agent(), tasks(), out=path, **given)]
        assert len(server.bodies) == sent
    assert names == list(CAPITALS)
    with RunReader.open(path) as reader:
        assert reader.meta["state"] == "done"


def test_a_field_that_is_named_otherwise_in_order_only_is_the_same(tmp_path: Path):
    def with_metadata(**metadata: str) -> list[Task]:
        return [msgspec.structs.replace(task, metadata=metadata) for task in tasks()]

    with serving(capital_cities) as server:
        given = {"strategy": Chain(2), "seed": 7, "workers": 0, "llm": LLM(server.url), "out": tmp_path / "r"}
        run(agent(), with_metadata(a="1", b="2"), **given)
        undo(tmp_path / "r", "Japan")
        assert run(agent(), with_metadata(b="2", a="1"), resume=True, **given).state == "done"
        undo(tmp_path / "r", "Japan")
        with pytest.raises(ConfigError, match="has other metadata here"):
            run(agent(), with_metadata(a="1", b="3"), resume=True, **given)


def test_a_field_of_a_hostile_file_is_shown_on_one_line(tmp_path: Path):
    with serving(capital_cities) as server:
        path = once(server, tmp_path / "r").path
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE meta SET value = json_set(value, '$.\"x\x1b[31m\"', 1) WHERE key = 'settings'")
        connection.close()
        with pytest.raises(ConfigError) as refused:
            once(server, path)
    assert r"x\x1b[31m: 1 there, nothing here" in str(refused.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"strategy": Chain(3)}, "strategy.options.n: 2 there, 3 here"),
        ({"reward": exact_match}, 'reward: nothing there, "exact_match" here'),
        ({"seed": 8}, "seed: 7 there, 8 here"),
        ({"task_budget": Budget(calls=50)}, r"task_budget: nothing there, \{.*50"),
        ({"enough": 1}, "stopping.enough: nothing there, 1 here"),
        ({"filters": [next(iter(FILTERS.values()))()], "reward": exact_match}, "filters: "),
        ({"groups": 2}, "refill: nothing there"),
    ],
)
def test_settings_that_mean_something_else_are_refused_with_the_difference(tmp_path: Path, change: dict, words: str):
    with serving(capital_cities) as server:
        path = once(server, tmp_path / "r").path
        sent = len(server.bodies)
        undo(path, "Japan")
        held = path.read_bytes()
        with pytest.raises(ConfigError, match=words) as refused:
            once(server, path, **change)
        assert len(server.bodies) == sent
    assert "--force" in str(refused.value)
    assert path.read_bytes() == held


def test_other_agents_and_tasks_are_refused_even_by_force(tmp_path: Path):
    with serving(capital_cities) as server:
        path = once(server, tmp_path / "r").path
        undo(path, "Japan")
        llm = LLM(server.url)
        with pytest.raises(ConfigError, match=r'agent\.system: "" there, "Be brief." here'):
            run(agent(system="Be brief."), tasks(), strategy=Chain(2), llm=llm, out=path, resume=True)
        with pytest.raises(ConfigError, match=r"agent\.tools: .*lookup.* there"):
            run(agent(tools=[lookup, stall]), tasks(), strategy=Chain(2), llm=llm, out=path, resume=True)
        with pytest.raises(ConfigError, match="other tasks: 5 there, 4 here"):
            once(server, path, only=4, resume="force")
        others = [*tasks()[:4], tasks()[4].ask("Capital of Chile, please?", "Santiago", id="Chile")]
        with pytest.raises(ConfigError, match='"Chile" has other messages here'):
            run(agent(), others, strategy=Chain(2), llm=llm, out=path, resume="force")


def test_force_goes_on_and_is_recorded(tmp_path: Path):
    with serving(capital_cities) as server:
        path = once(server, tmp_path / "r").path
        undo(path, "Japan")
        result = once(server, path, strategy=Chain(3), resume="force")
    assert len(result["Japan"].rollouts) == 3
    assert len(result["France"].rollouts) == 2
    with RunReader.open(path) as reader:
        (resumption,) = resumptions(reader.meta)
        assert reader.settings["strategy"]["options"]["n"] == 3
    assert (resumption.forced, resumption.changed) == (True, ["strategy.options.n: 2 there, 3 here"])


def test_where_and_how_fast_may_change_and_is_recorded(tmp_path: Path):
    with serving(capital_cities) as server, serving(capital_cities) as other:
        path = once(server, tmp_path / "r", llm=LLM(server.url, price=Price(prompt=1, generated=1))).path
        undo(path, "Japan")
        llm = LLM(other.url, max_concurrency=3, timeout=9, price=Price(prompt=2, generated=2))
        once(server, path, llm=llm, workers=1, budget=Budget(calls=100), durable=True, labels={"who": "me"})
        assert {body["messages"][0]["content"] for body in other.bodies} == {"Capital of Japan?"}
    with RunReader.open(path) as reader:
        (resumption,) = resumptions(reader.meta)
        assert set(reader.prices) == {server.url, other.url}, "what was paid there keeps its price"
        assert {endpoint.endpoint for endpoint in reader.summary().endpoints} == {server.url, other.url}
    fields = {line.partition(":")[0] for line in resumption.changed}
    assert {"llm.max_concurrency", "llm.timeout", "llm.base_urls[0]", "budget", "labels.who"} <= fields
    assert not resumption.forced


def test_the_seed_is_that_of_the_run(tmp_path: Path):
    with serving(capital_cities) as server:
        path = once(server, tmp_path / "r", seed=None).path
        whole = digests(path)
        undo(path, "Japan")
        once(server, path, seed=None)
    assert digests(path) == whole


def test_a_budget_that_is_spent_ends_a_run_until_there_is_more(tmp_path: Path):
    with serving(capital_cities) as server:
        poor = {"budget": Budget(rollouts=4), "llm": LLM(server.url, max_concurrency=1)}
        first = once(server, tmp_path / "r", **poor)
        sent = len(server.bodies)
        assert (first.state, once(server, tmp_path / "r", **poor).state) == ("budget", "budget")
        assert len(server.bodies) == sent
        more = once(server, tmp_path / "r", budget=Budget(rollouts=100))
    assert (more.state, len(more)) == ("done", 5)


def test_groups_that_were_kept_count_after_a_kill(tmp_path: Path):
    with serving(capital_cities) as server:
        given = {"groups": 3, "max_tasks": 5}
        path = once(server, tmp_path / "r", **given).path
        whole = digests(path)
        assert list(whole) == ["France", "Brazil", "Japan"]
        undo(path, "Brazil")
        server.bodies.clear()
        result = once(server, path, **given)
    assert {body["messages"][0]["content"] for body in server.bodies} == {"Capital of Brazil?"}
    assert (digests(path), result.state) == (whole, "done")


def test_a_run_that_goes_on_from_another_is_resumed_without_it(tmp_path: Path):
    with serving(capital_cities) as server:
        first = once(server, tmp_path / "first").path
        path = once(server, tmp_path / "r", continue_from=first).path
        whole = digests(path)
        first.unlink()
        undo_own(path)
        given = {"strategy": Chain(2), "workers": 0, "llm": LLM(server.url), "out": path, "resume": True}
        run(agent(), continue_from=first, **given)
        with pytest.raises(ConfigError, match=r"continues\.run: "):
            run(agent(), continue_from=tmp_path / "another", **given)
    assert digests(path) == whole


def undo_own(path: Path) -> None:
    """Take away what a run that goes on from another made of Japan."""
    with sqlite3.connect(path) as connection:
        ((number, deltas),) = connection.execute(
            "SELECT task, taken.deltas FROM taken JOIN tasks USING (task) WHERE id = 'Japan'"
        )
        connection.execute(
            "DELETE FROM deltas WHERE delta BETWEEN ? AND ?", (delta_key(number, deltas), delta_keys(number)[1])
        )
        for table in ("trees", "rollouts", "calls", "uses"):
            connection.execute(f"DELETE FROM {table} WHERE task = ?", (number,))
        renumber(connection)
    connection.close()


def test_a_file_that_was_only_begun_is_begun_again(tmp_path: Path):
    with serving(capital_cities) as server:
        (tmp_path / "r").touch()
        with pytest.raises(RunFileError, match="is there and is empty"):
            once(server, tmp_path / "r", resume=False)
        assert once(server, tmp_path / "r").state == "done"
        first = once(server, tmp_path / "first").path
        started = once(server, tmp_path / "s", continue_from=first).path
        # Killed while it took the first one over.
        with sqlite3.connect(started) as connection:
            connection.execute("UPDATE meta SET value = 'beginning' WHERE key = 'state'")
            connection.execute("DELETE FROM taken WHERE task > 1")
        connection.close()
        again = once(server, started, continue_from=first)
    with RunReader.open(again.path) as reader:
        assert len(list(reader.taken())) == 5
        assert reader.check() == []


def test_two_at_once_are_refused_with_the_name_of_the_first(tmp_path: Path):
    def slow(body: dict):
        return message("<answer>Paris</answer>")

    with serving(slow, delay=2) as server:
        process = start(server.url, tmp_path / "r")
        wait_for(lambda: server.bodies)
        with pytest.raises(RunFileError, match=f"is being written by process {process.pid} on "):
            once(server, tmp_path / "r")
        kill(process)
        wait_for(lambda: not is_written(tmp_path / "r"))
        PreparedRun(
            agent(), tasks(), strategy=Chain(2), llm=LLM(server.url), out=tmp_path / "r", resume=True
        )._writer.finish("interrupted")


def test_a_plan_of_a_run_that_is_there_says_how_far_it_is(tmp_path: Path):
    with serving(capital_cities) as server:
        path = once(server, tmp_path / "r").path
        undo(path, "Japan")
        held = path.read_bytes()
        llm = LLM(server.url)
        planned = plan(agent(), tasks(), strategy=Chain(2), llm=llm, out=path, resume=True)
        assert (planned.finished, planned.settings["seed"]) == (4, 7)
    assert path.read_bytes() == held


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"resume": "yes", "out": "r"}, "resume must be true, false or 'force'"),
        ({"resume": True}, "resume=True needs out=PATH"),
        ({"durable": 1}, "durable must be true or false"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict, words: str):
    with pytest.raises(ConfigError, match=words):
        plan(agent(), tasks(), llm=LLM("http://127.0.0.1:1/v1"), **options)
