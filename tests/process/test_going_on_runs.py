"""Runs that go on from another, and what happens to them: deaths, long histories, streams, files that are none."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from atlas import CAPITALS, agent, suicide, tasks
from foreign import error, message, serving
from goers import Few, More, Squeamish
from judges import Pairs

from trunkline.controller import scheduler as dispatch
from trunkline.errors import ConfigError
from trunkline.llm.config import LLM
from trunkline.observability.observers import Progress
from trunkline.runner.broken import judge
from trunkline.runner.plan import plan
from trunkline.runner.result import Run
from trunkline.runner.run import run, stream
from trunkline.scoring.filters import ZeroVariance
from trunkline.scoring.notes import dropped, read
from trunkline.scoring.rewards import exact_match
from trunkline.store.reader import RunReader
from trunkline.strategies.chain import Chain
from trunkline.types import Termination

pytestmark = pytest.mark.breaks_rollouts


def answer(body: dict) -> dict:
    """Answers at once."""
    return message(CAPITALS[asked(body)])


def asked(body: dict) -> str:
    return body["messages"][0]["content"].removeprefix("Capital of ").rstrip("?")


def call_the_tool(body: dict) -> dict:
    """Calls whatever tool there is, then answers."""
    if any(m["role"] == "tool" for m in body["messages"]):
        return answer(body)
    country = asked(body)
    name = body["tools"][0]["function"]["name"]
    return message(None, [(name, json.dumps({"country": country}))])


def first(tmp_path: Path, **options: object) -> Run:
    """An earlier run whose server answers at once."""
    with serving(answer) as server:
        given = {"llm": LLM(server.url), "strategy": Chain(2), "workers": 0, "seed": 3, "reward": exact_match}
        return run(agent(tools=[suicide]), tasks(), out=tmp_path / "first", **(given | options))


def test_a_worker_that_dies_keeps_what_the_earlier_run_had(tmp_path: Path):
    earlier = first(tmp_path)
    with serving(call_the_tool) as server:
        llm = LLM(server.url, max_concurrency=2)
        on = run(agent(tools=[suicide]), llm=llm, strategy=More(), workers=1, reward=exact_match,
                 continue_from=earlier, out=tmp_path / "on")  # fmt: skip
    with RunReader.open(tmp_path / "on") as reader:
        assert reader.check() == []
    brazil = on["Brazil"].rollouts
    assert brazil[-1].error is None or "SIGKILL" in brazil[-1].error.message
    # The fork's delta may have left the worker, or not.
    assert [rollout.termination for rollout in brazil] in (["answer", "answer", "lost"], ["answer", "answer"])
    assert [rollout.reward for rollout in brazil[:2]] == [1.0, 1.0]
    assert [tree.rollouts[-1].termination for tree in on if tree.task.id != "Brazil"] == ["answer"] * 4


@pytest.mark.parametrize("workers", [0, 1])
def test_long_histories_travel_in_several_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int):
    earlier = first(tmp_path)
    with serving(answer) as server:
        options = {"llm": LLM(server.url), "strategy": More(2), "reward": exact_match, "continue_from": earlier}
        whole = run(agent(tools=[suicide]), workers=0, **options)
        sent: list[int] = []
        made = dispatch.EarlierDeltas
        monkeypatch.setattr(dispatch, "_WORK_BYTES", 1)
        monkeypatch.setattr(
            dispatch, "EarlierDeltas", lambda task, part, taken: sent.append(len(part)) or made(task, part, taken)
        )
        parts = run(agent(tools=[suicide]), workers=workers, **options)
    assert {tree.task.id: tree.digest() for tree in parts} == {tree.task.id: tree.digest() for tree in whole}
    with RunReader.open(earlier.path) as reader:
        deltas = [len(reader.deltas(number)) for number in range(len(tasks()))]
    assert sent == [1] * sum(deltas)
    assert all(len(tree.rollouts) == 4 for tree in parts)


def test_nothing_to_do_is_a_run_that_is_done(tmp_path: Path):
    earlier = first(tmp_path)
    with serving(answer) as server:
        on = run(agent(tools=[suicide]), llm=LLM(server.url), strategy=More(0), workers=0, reward=exact_match,
                 continue_from=earlier)  # fmt: skip
        assert server.bodies == []
    assert on.state == "done"
    assert {tree.task.id: tree.digest() for tree in on} == {tree.task.id: tree.digest() for tree in earlier}
    summary = on.summary()
    assert (summary.usage.calls, summary.rollouts, summary.rate) == (0, 10, 0.0)


def test_rollouts_that_an_earlier_run_did_not_score_are_scored(tmp_path: Path):
    earlier = first(tmp_path, reward=None)
    with serving(answer) as server:
        on = run(agent(tools=[suicide]), llm=LLM(server.url), strategy=More(0), workers=0, reward=exact_match,
                 continue_from=earlier)  # fmt: skip
    assert [rollout.reward for tree in on for rollout in tree.rollouts] == [1.0] * 10


async def test_a_stream_goes_on_too(tmp_path: Path):
    earlier = run_apart(tmp_path)
    with serving(answer) as server:
        options = {"llm": LLM(server.url), "strategy": Chain(), "workers": 0, "reward": exact_match}
        found = {tree.task.id: len(tree.rollouts) async for tree in stream(agent(), continue_from=earlier, **options)}
    assert found == {task.id: 2 for task in tasks()}


def run_apart(tmp_path: Path) -> Path:
    """An earlier run, made beside the loop of a test."""
    with serving(answer) as server:
        return run(agent(), tasks(), llm=LLM(server.url), workers=0, out=tmp_path / "apart").path


def test_rollouts_that_had_broken_before_are_named_and_not_counted_against_this_run(tmp_path: Path):
    with serving(call_the_tool) as server:
        llm = LLM(server.url, max_concurrency=2)
        brazil = [task for task in tasks() if task.id == "Brazil"]
        run(agent(tools=[suicide]), brazil, llm=llm, workers=1, out=tmp_path / "broken")
    with serving(answer) as server:
        on = run(agent(tools=[suicide]), llm=LLM(server.url), strategy=More(), workers=0,
                 continue_from=tmp_path / "broken")  # fmt: skip
    assert [rollout.termination for rollout in on["Brazil"].rollouts] == [Termination.LOST, Termination.ANSWER]
    summary = on.summary()
    assert (summary.failed, summary.taken.failed) == (1, 1)
    assert judge(summary, 0) == 0


def test_what_broke_in_tasks_that_were_not_needed_excuses_nothing(tmp_path: Path):
    def only_france(body: dict) -> object:
        return answer(body) if asked(body) == "France" else error(400, "no", "bad")

    with serving(only_france) as server:
        llm = LLM(server.url, max_retries=0)
        run(agent(), tasks(), llm=llm, workers=0, seed=3, reward=exact_match, out=tmp_path / "first")
    replies = iter([answer])

    def once(body: dict) -> object:
        return next(replies, lambda _: error(400, "no", "bad"))(body)

    with serving(once) as server:
        llm = LLM(server.url, max_retries=0, max_concurrency=1)
        on = run(agent(), llm=llm, strategy=More(2), workers=0, reward=exact_match, groups=1,
                 continue_from=tmp_path / "first")  # fmt: skip
    assert [tree.task.id for tree in on] == ["France"]
    summary = on.summary()
    assert (summary.failed, summary.taken.failed, summary.taken.trees, summary.taken.rollouts) == (1, 0, 5, 5)
    assert judge(summary, 0) == 1, "four others had broken before, and one broke now"


def test_a_run_without_tasks_says_how_to_name_some():
    with pytest.raises(ConfigError, match="there are no tasks to run"):
        run(agent(), llm="http://127.0.0.1:9/v1")


@pytest.mark.parametrize("judging", [True, False])
def test_what_filters_said_of_the_earlier_group_is_forgotten_and_the_larger_group_is_judged_anew(
    tmp_path: Path, judging: bool
):
    def wrong_later(body: dict) -> dict:
        return message("Atlantis")

    earlier = first(tmp_path, filters=[ZeroVariance()])
    assert all(dropped(read(rollout.note)) for tree in earlier for rollout in tree.rollouts), "every reward is 1"
    with serving(wrong_later) as server:
        on = run(agent(tools=[suicide]), llm=LLM(server.url), strategy=More(), workers=0, reward=exact_match,
                 continue_from=earlier, filters=[ZeroVariance()] if judging else [])  # fmt: skip
    assert [[rollout.reward for rollout in tree.rollouts] for tree in on] == [[1.0, 1.0, 0.0]] * 5
    assert not any(read(rollout.note) for tree in on for rollout in tree.rollouts)
    assert (on.summary().groups_kept, on.summary().filters) == (5, [])
    with RunReader.open(on.path) as reader:
        assert reader.check() == []


def test_what_an_earlier_run_judged_is_judged_again(tmp_path: Path):
    """The filter drops groups of two: by then they have three."""
    earlier = first(tmp_path, filters=[Pairs()])
    assert earlier.summary().groups_kept == 0
    with serving(answer) as server:
        options = {"llm": LLM(server.url), "strategy": More(), "workers": 0, "reward": exact_match}
        plain = run(agent(tools=[suicide]), continue_from=earlier, **options)
        again = run(agent(tools=[suicide]), continue_from=earlier, filters=[Pairs(3)], **options)
    for found, kept, judged in ((plain, 5, 0), (again, 0, 15)):
        assert found.summary().groups_kept == kept
        assert sum(one.dropped for one in found.summary().filters) == judged
        with RunReader.open(found.path) as reader:
            assert reader.check() == []
    said = {rollout.note for tree in again for rollout in tree.rollouts}
    assert all(note.count("pairs") == 1 for note in said)


def test_tasks_that_enough_groups_made_needless_are_taken_over_and_count_for_nothing(tmp_path: Path):
    with serving(lambda body: error(400, "no", "bad") if "Benin" in str(body) else answer(body)) as server:
        earlier = run(agent(), tasks(), llm=LLM(server.url, max_retries=0), strategy=Chain(2), workers=0,
                      reward=exact_match, out=tmp_path / "first")  # fmt: skip
    seen: list[Progress] = []
    with serving(answer) as server:
        on = run(agent(), llm=LLM(server.url), strategy=More(), workers=0, reward=exact_match, groups=2,
                 continue_from=earlier, watch=seen.append)  # fmt: skip
    assert [tree.task.id for tree in on] == ["France", "Brazil"]
    with RunReader.open(on.path) as reader:
        assert reader.check() == [], "what was not needed is not missing"
    summary = on.summary()
    assert (summary.taken.trees, summary.taken.rollouts) == (5, 10), "all of them are in the file"
    assert (summary.taken.ended, summary.taken.failed) == (4, 0), "two of these tasks have ended here"
    assert summary.rate > 0
    broken = msgspec.structs.replace(summary, failed=2)
    assert judge(broken, 0) == 1, "what broke in Benin, there, excuses nothing here"


def test_progress_counts_what_this_run_does(tmp_path: Path):
    with serving(lambda body: error(400, "no", "bad") if "Benin" in str(body) else answer(body)) as server:
        earlier = run(agent(), tasks(), llm=LLM(server.url, max_retries=0), strategy=Chain(2), workers=0,
                      out=tmp_path / "first")  # fmt: skip
    seen: list[Progress] = []

    def watch(shot: Progress) -> None:
        seen.append(msgspec.structs.replace(shot))

    with serving(answer) as server:
        run(agent(), llm=LLM(server.url), strategy=Few(), workers=0, continue_from=earlier, watch=watch)
    assert [(shot.rollouts, shot.rollouts_done, shot.failed) for shot in (seen[0], seen[-1])] == [(20, 0, 0), (5, 5, 0)]


def test_figures_of_each_task_leave_out_what_the_earlier_run_paid(tmp_path: Path):
    earlier = first(tmp_path)
    with serving(answer) as server:
        on = run(agent(tools=[suicide]), llm=LLM(server.url), strategy=More(), workers=0, reward=exact_match,
                 continue_from=earlier)  # fmt: skip
    summary = on.summary()
    assert (summary.usage.calls, summary.paths) == (5, 5), "one turn for each of five chains, and no more as chains"
    assert [(task.rollouts, task.usage.calls, task.paths) for task in on.by_task()] == [(3, 1, 1)] * 5


def test_a_strategy_that_breaks_on_one_tree_ends_that_task_alone(tmp_path: Path):
    earlier = first(tmp_path)
    with serving(answer) as server:
        on = run(agent(tools=[suicide]), llm=LLM(server.url), strategy=Squeamish(), workers=0,
                 reward=exact_match, continue_from=earlier)  # fmt: skip
    summary = on.summary()
    assert (on.state, summary.finished, summary.broken, summary.usage.calls) == ("done", 5, 1, 4)


def test_a_dry_run_looks_at_the_trees(tmp_path: Path):
    earlier = first(tmp_path)
    given = {"llm": "http://127.0.0.1:9/v1", "strategy": More(), "workers": 0, "continue_from": earlier}
    given["reward"] = exact_match
    found = plan(agent(tools=[suicide]), **given)
    assert (found.taken.trees, found.taken.rollouts, found.taken.growing) == (5, 10, 0)
    with pytest.raises(ConfigError, match=r'the prompt of task "France" must be as in'):
        plan(agent(tools=[suicide], system="Be brief."), **given)


def test_what_a_server_refused_in_an_earlier_run_does_not_end_this_one(tmp_path: Path):
    with serving(lambda body: answer(body) if "France" in str(body) else error(400, "no", "bad")) as server:
        llm = LLM(server.url, max_retries=0)
        earlier = run(agent(), tasks(), llm=llm, strategy=Chain(3), workers=0, out=tmp_path / "first")
        assert earlier.summary().failed == 12
        on = run(agent(), tasks()[1:], llm=LLM(server.url), strategy=More(0), workers=0, continue_from=earlier)
    assert on.state == "done"
