"""Runs in which rollouts broke: the warning, the error that has the run, and what may break without one."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scored_runs import BROKE, RIGHT, write

import trunkline as tl
from trunkline.errors import BrokenRolloutsWarning, ConfigError
from trunkline.llm.types import Reply, ReplyChoice
from trunkline.runner.broken import broken_lines, check_fail_on_error, judge
from trunkline.runner.result import Run
from trunkline.strategies.base import Fork, Move, Strategy, View

TASKS = [tl.Task.ask(f"What is {name}?", "yes", id=name) for name in "abcd"]
AGENT = tl.Agent(model="m")


class Breaks:
    """Answers ``yes``, but for tasks of some names."""

    def __init__(self, names: str, message: str = "no") -> None:
        self.names, self.message = names, message

    async def complete(self, request):
        if any(f"What is {name}?".encode() in request.body for name in self.names):
            raise ValueError(self.message)
        return Reply([ReplyChoice("yes", None, [], "stop")], 1, 0, 1, 1, 0)


def test_a_run_that_broke_warns_at_the_line_of_the_call_with_causes_and_the_command(tmp_path: Path):
    out = tmp_path / "a b.run"
    llm = Breaks("ab", "key sk-abcdefghijkl\n\x1b[2J")
    with pytest.warns(BrokenRolloutsWarning) as warned:
        run = tl.run(AGENT, TASKS, llm=llm, strategy=tl.Chain(2), out=out)
    (one,) = warned
    assert one.filename == __file__
    lines = str(one.message).splitlines()
    assert lines[0] == "4 of 8 rollouts broke"
    assert lines[1] == "  4: Breaks raised ValueError: key (not stored)\\n\\x1b[2J"
    assert lines[2].startswith(f"to retry them: trunkline resume '{out}' --retry broken (in Python: tl.run(")
    assert len(run) == 4
    with pytest.warns(BrokenRolloutsWarning, match="4 of 8"):
        tl.run(AGENT, TASKS, llm=llm, strategy=tl.Chain(2), out=out, resume=True)


async def test_all_ways_to_run_warn_or_raise_and_silence_is_for_runs_that_are_whole():
    options = {"llm": Breaks("a"), "fail_on_error": True}
    with pytest.raises(tl.RunFailed, match="1 of 4 rollouts broke") as raised:
        await tl.arun(AGENT, TASKS, **options)
    assert "keep the run file: tl.run(..., out=FILE)" in str(raised.value)
    assert len(raised.value.run) == 4, "its temporary file is there as long as the error"
    with pytest.raises(tl.RunFailed), tl.Pool("inline") as pool:
        pool.run(AGENT, TASKS, **options)
    trees = tl.stream(AGENT, TASKS, **options)
    seen = [(await anext(trees)).task.id for _ in TASKS]
    assert sorted(seen) == ["a", "b", "c", "d"]
    with pytest.raises(tl.RunFailed):
        await anext(trees)
    with pytest.warns(BrokenRolloutsWarning, match="1 of 4"):
        await tl.arun(AGENT, TASKS, llm=Breaks("a"), fail_on_error=0.25)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await tl.arun(AGENT, TASKS, llm=Breaks(""), fail_on_error=True)


class Fails(Strategy):
    """Fails in the middle of a task, once its only rollout has ended."""

    def rollouts(self) -> int:
        return 1

    def start(self, view: View) -> list[Fork]:
        return [Fork()]

    def ended(self, view: View) -> list[Move]:
        raise ZeroDivisionError("of the strategy")


def test_a_task_that_broke_as_a_whole_counts_and_says_why():
    with pytest.raises(tl.RunFailed) as raised:
        tl.run(AGENT, TASKS, llm=Breaks(""), strategy=Fails(), fail_on_error=True)
    lines = str(raised.value).splitlines()
    assert lines[0] == "4 of 4 tasks broke as a whole"
    assert "raised in ended()" in lines[1]
    assert "of the strategy" in lines[1]


@settings(max_examples=40)
@given(st.lists(st.booleans(), min_size=1, max_size=12), st.one_of(st.floats(0, 0.99), st.integers(0, 12)))
def test_a_share_is_below_one_and_a_count_is_from_one_on(tmp_path_factory, broke: list[bool], most: float):
    path = tmp_path_factory.mktemp("r") / "a.run"
    run = Run(write(path, {"a": [BROKE if one else RIGHT for one in broke]}), "done")
    summary = run.summary()
    threshold = check_fail_on_error(most)
    assert threshold is not None
    allowed = most * len(broke) if most < 1 else most
    assert judge(summary, threshold) == (sum(broke) > allowed)
    assert bool(broken_lines(run, summary)) == any(broke)


@pytest.mark.parametrize("wrong", ["yes", -1, 1.5, math.nan, math.inf, None])
def test_other_values_are_errors_before_anything_is_sent(wrong: object):
    with pytest.raises(ConfigError, match=r"^fail_on_error is .*; give True"):
        tl.plan(AGENT, TASKS, llm="http://127.0.0.1:9/v1", fail_on_error=wrong)
    assert check_fail_on_error(False) is None
    assert check_fail_on_error(True) == 0.0


def test_progress_is_auto_a_function_or_nothing(capfd: pytest.CaptureFixture[str]):
    with pytest.raises(ConfigError, match=r"^progress is 'yes'; give \"auto\", None, or a function"):
        tl.run(AGENT, TASKS, llm=Breaks(""), progress="yes")
    shots: list[int] = []
    watched: list[int] = []
    tl.run(
        AGENT,
        TASKS,
        llm=Breaks(""),
        progress=lambda shot: shots.append(shot.tasks_done),
        watch=lambda shot: watched.append(shot.tasks_done),
    )
    assert shots == watched
    assert shots[-1] == 4
    tl.run(AGENT, TASKS, llm=Breaks(""), progress="auto")
    assert capfd.readouterr().err == "", "no terminal, no line"
