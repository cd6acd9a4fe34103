"""Comparing two run files: which tasks count, what changed, and what cannot be compared."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from scored_runs import BROKE, RIGHT, WRONG, Tries, write

from trunkline.cli.show import compare as command
from trunkline.errors import RunFileError, UsageError
from trunkline.runner.amend import arescore, rescore
from trunkline.scoring.metrics import accuracy, majority_at_n, paired
from trunkline.store.reader import RunReader
from trunkline.store.stats.compare import compare
from trunkline.store.stats.metrics import run_metrics
from trunkline.tree.views import Trajectory
from trunkline.types import Task

HOSTILE = "q\x1b[2J\u202e"


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    first = write(
        tmp_path / "a.run",
        {
            "same": [RIGHT, RIGHT],
            "better": [WRONG, WRONG],
            "worse": [RIGHT, WRONG],
            HOSTILE: [RIGHT, WRONG],
            "broken": [RIGHT, RIGHT],
            "first": [RIGHT, WRONG],
        },
        more=[Task.ask("Never?", "no", id="begun")],
    )
    second = write(
        tmp_path / "b.run",
        {
            "second": [RIGHT, RIGHT],
            "broken": [BROKE, BROKE],
            HOSTILE: [RIGHT, BROKE],
            "worse": [WRONG, WRONG],
            "better": [RIGHT, RIGHT],
            "same": [RIGHT, RIGHT],
        },
        more=[Task.ask("Never?", "no", id="begun")],
    )
    return first, second


def test_tasks_are_matched_and_changes_are_sorted(pair: tuple[Path, Path]) -> None:
    found = compare(*pair)
    assert [(one.task, one.a, one.b, one.difference) for one in found.changed] == [
        ("better", 0.0, 1.0, 1.0), (HOSTILE, 0.5, 1.0, 0.5), ("worse", 0.5, 0.0, -0.5),
    ]  # fmt: skip
    assert (found.only_a, found.only_b) == (["first"], ["second"])
    assert (found.unfinished, found.unmeasured, found.different) == (["begun"], ["broken"], [])
    assert (found.paired.tasks, found.paired.better, found.paired.worse, found.paired.same) == (4, 2, 1, 1)
    assert found.paired.difference == pytest.approx(0.25)
    assert found.b.estimate.value - found.a.estimate.value == pytest.approx(found.paired.difference)
    assert (found.a.rollouts, found.a.estimate.scored, found.b.rollouts, found.b.estimate.scored) == (8, 8, 8, 7)
    assert (found.a.usage.prompt, found.a.usage.generated, found.a.spent) == (40, 16, None)
    assert (found.metric, found.reward) == ("accuracy", "exact")


def test_one_id_with_two_contents_is_an_error_that_names_it(pair: tuple[Path, Path], tmp_path: Path) -> None:
    answers = Task.ask("What is first?", ["first", "1st"], id="first")
    other = write(tmp_path / "c.run", {"same": [RIGHT], "begun": [RIGHT]}, more=[answers])
    with pytest.raises(UsageError, match=r'2 tasks of the same id have .*: "first", "begun"; .*--common'):
        compare(pair[0], other)
    found = compare(pair[0], other, common=True)
    assert (found.different, found.unfinished, found.paired.tasks) == (["first", "begun"], [], 1)


def test_a_run_and_itself_do_not_differ(pair: tuple[Path, Path]) -> None:
    found = compare(pair[0], pair[0])
    assert (found.changed, found.paired.p, found.paired.difference) == ([], 1.0, 0.0)
    assert found.paired.low is not None
    assert found.paired.low < 0
    assert found.a == found.b


@pytest.mark.parametrize(
    ("metric", "a", "b", "tasks"),
    [
        ("pass@2", 1.0, 1.0, 1),
        ("pass^2", 1.0, 0.0, 1),
        ("avg@2", 1.0, 0.5, 1),
        ("best", 1.0, 1.0, 2),
        ("majority", 1.0, 0.5, 2),
        ("majority@1", 1.0, 0.5, 2),
    ],
)
def test_other_metrics(tmp_path: Path, metric: str, a: float, b: float, tasks: int) -> None:
    """Of two tasks, the last has but one scored try in the first run."""
    first = write(tmp_path / "a", {"x": [RIGHT, RIGHT], "z": [RIGHT, BROKE]})
    second = write(tmp_path / "b", {"x": [RIGHT, WRONG], "z": [RIGHT, WRONG]})
    found = compare(first, second, metric)
    assert (found.a.estimate.value, found.b.estimate.value) == (a, b)
    assert (found.paired.tasks, found.unmeasured) == (tasks, ["z"][: 2 - tasks])


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    scored = write(tmp_path / "scored", {"x": [RIGHT, WRONG]})
    other = write(tmp_path / "other", {"x": [RIGHT, WRONG]}, reward="numeric")
    unscored = write(tmp_path / "unscored", {"x": [("yes", None)]}, reward=None)
    apart = write(tmp_path / "apart", {"y": [RIGHT]})
    with pytest.raises(UsageError, match=r'was scored by "exact" and .*other was scored by "numeric".*trunkline score'):
        compare(scored, other)
    with pytest.raises(UsageError, match="unscored: no rollout of a finished task is scored"):
        compare(scored, unscored)
    with pytest.raises(UsageError, match='no task in common; ids of the first are "x", of the second "y"'):
        compare(scored, apart)
    with pytest.raises(UsageError, match="pass@3 needs 3 scored tries of a task in both runs"):
        compare(scored, scored, "pass@3")
    with pytest.raises(UsageError, match='no metric "accuracies"'):
        compare(scored, scored, "accuracies")
    with pytest.raises(RunFileError, match="no such run file"):
        compare(scored, tmp_path / "none")


def shout(rollout: Trajectory) -> float:
    return float(rollout.answer == "yes")


async def in_part(path: Path) -> None:
    """Begin to score a run again, and stop."""
    asked = asyncio.Event()

    async def endless(rollout: Trajectory) -> float:
        asked.set()
        return await asyncio.get_running_loop().create_future()

    scoring = asyncio.create_task(arescore(path, endless))
    await asked.wait()
    scoring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scoring


def test_runs_that_were_scored_again(tmp_path: Path) -> None:
    """By another reward they are refused, and in part, too; by one reward they are compared."""
    first = write(tmp_path / "a", {"x": [RIGHT, WRONG], "y": [RIGHT, WRONG]})
    second = write(tmp_path / "b", {"x": [RIGHT, RIGHT], "y": [WRONG, WRONG]})
    rescore(second, shout)
    with pytest.raises(UsageError, match=r'a was scored by "exact" and .*b was scored by ".*shout".*trunkline score'):
        compare(first, second)
    rescore(first, shout)
    found = compare(first, second)
    assert found.reward is not None
    assert found.reward.endswith("shout")
    assert (found.paired.better, found.paired.worse) == (1, 1)
    for path in (first, second):
        asyncio.run(in_part(path))
    with pytest.raises(UsageError, match=r"a is scored by .*endless in part, .*trunkline score"):
        compare(first, second)
    done = CliRunner().invoke(command, [str(second), str(first)])
    assert isinstance(done.exception, UsageError)


def test_rewards_that_are_no_shares(tmp_path: Path) -> None:
    first = write(tmp_path / "a", {"x": [("a", -2.0)], "y": [("a", 0.0)], "z": [("a", 1.0)]})
    second = write(tmp_path / "b", {"x": [("a", 3.0)], "y": [("a", 4.0)], "z": [("a", 9.0)]})
    found = compare(first, second)
    assert found.paired.difference == pytest.approx(17 / 3)
    assert found.paired.high is not None
    assert found.paired.high > 1
    out = CliRunner().invoke(command, [str(first), str(second)]).output
    assert "B less A        +5.667  (95 %: " in out
    third = write(tmp_path / "c", {"x": [("a", 0.25)], "y": [("a", 0.5)], "z": [("a", 0.5)]})
    lines = CliRunner().invoke(command, [str(first), str(third)]).output.splitlines()
    assert [line.split()[3] for line in lines if line.startswith("accuracy of")] == ["-0.333", "0.417"]
    lines = CliRunner().invoke(command, [str(third), str(third)]).output.splitlines()
    assert [line.split()[3:5] for line in lines if line.startswith("accuracy of")] == [["41.7", "%"]] * 2


def test_the_screen_is_safe_and_tells_all(pair: tuple[Path, Path]) -> None:
    done = CliRunner().invoke(command, [str(pair[0]), str(pair[1]), "--tasks", "2"])
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.output
    assert "\u202e" not in done.output
    lines = done.output.splitlines()
    assert any(line.startswith("tasks compared") and line.endswith("4: 2 better, 1 worse, 1 same") for line in lines)
    assert any(line.startswith("only in A") and line.endswith("1: first") for line in lines)
    assert any(line.startswith("not finished in both") and line.endswith("1: begun") for line in lines)
    assert any(line.startswith("accuracy of B") and line.endswith("8 rollouts, 7 of them count") for line in lines)
    assert any(line.startswith("q\\x1b[2J\\u202e") and line.endswith("+0.500") for line in lines)
    assert lines[-1] == "1 more changed; --tasks 3 shows all"


def test_json_has_all_that_changed(pair: tuple[Path, Path]) -> None:
    done = CliRunner().invoke(command, [str(pair[0]), str(pair[1]), "--tasks", "0", "--json"])
    assert done.exit_code == 0
    assert done.output.isascii()
    data = json.loads(done.output)
    assert [one["task"] for one in data["changed"]] == ["better", HOSTILE, "worse"]
    assert data["a"]["usage"]["generated"] == 16
    assert data["paired"]["exact"] is True


def test_metrics_of_a_run(tmp_path: Path) -> None:
    tries: Tries = {"x": [RIGHT, RIGHT, WRONG], "y": [WRONG, BROKE, RIGHT], "z": [WRONG, WRONG, WRONG]}
    with RunReader.open(write(tmp_path / "run", tries, priced=True)) as reader:
        found = run_metrics(reader)
        summary = reader.summary()
    rewards = [[1.0, 1.0, 0.0], [0.0, 1.0], [0.0, 0.0, 0.0]]
    assert found.tries == 3
    assert (list(found.pass_at), list(found.pass_hat), list(found.majority)) == ([1, 2, 3],) * 3
    wanted = accuracy(rewards)
    assert wanted is not None
    assert (found.pass_at[1].value, found.pass_hat[1].value) == pytest.approx((wanted.value, wanted.value))
    assert (found.pass_at[1].scored, found.pass_at[1].tries) == (8, 9)
    assert (found.pass_at[2].value, found.pass_at[3].value) == (pytest.approx(2 / 3), 0.5)
    assert (found.pass_hat[2].value, found.pass_hat[3].value) == (pytest.approx(1 / 9), 0.0)
    assert found.majority[2].tasks == 3
    voted = majority_at_n([["yes", "yes", "no"], ["no"] * 3], [rewards[0], rewards[2]])
    assert voted is not None
    assert found.majority[3].value == voted.value
    assert found.cost_per_solved is not None
    assert found.cost_per_solved.value == pytest.approx(summary.per_solved)
    assert found.tokens_per_solved is not None
    assert found.generated_per_solved is not None
    assert (found.tokens_per_solved.value, found.generated_per_solved.value) == (9 * 7 / 2, 9 * 2 / 2)
    assert found.unreported == 0


def test_votes_of_many_tries_are_not_counted_but_for_one_of_all(tmp_path: Path) -> None:
    with RunReader.open(write(tmp_path / "run", {"x": [WRONG] * 170 + [RIGHT] * 130})) as reader:
        found = run_metrics(reader)
    assert list(found.pass_at) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    assert list(found.majority) == [1, 2, 4, 8, 16, 32, 64, 128, 300]
    assert 0.0 == found.majority[300].value < found.majority[128].value


def test_nothing_is_measured_where_nothing_is_scored(tmp_path: Path) -> None:
    with RunReader.open(write(tmp_path / "run", {"x": [BROKE, BROKE]})) as reader:
        found = run_metrics(reader)
    assert (found.tries, found.accuracy, found.best, found.pass_at, found.majority) == (0, None, None, {}, {})
    assert (found.tokens_per_solved, found.cost_per_solved) == (None, None)


def test_prices_and_intervals_are_of_the_compared_tasks(tmp_path: Path) -> None:
    """Three tasks of four tries are in both: 7 tokens a try, each at a price of 1."""
    same: Tries = {"x": [RIGHT] * 4, "y": [WRONG] * 4}
    first = write(tmp_path / "a", same | {"z": [RIGHT, RIGHT, WRONG, WRONG], "only": [RIGHT] * 4}, priced=True)
    second = write(tmp_path / "b", same | {"z": [RIGHT, RIGHT, RIGHT, WRONG]})
    found = compare(first, second)
    assert found.a.spent is not None
    assert (found.a.spent.money, found.b.spent) == (3 * 4 * 7, None)
    columns = [1.0, 0.0, 0.5], [1.0, 0.0, 0.75]
    assert found.paired == paired(*columns, draws=4) != paired(*columns)


def test_chances_are_bounded_whatever_rewards_are(tmp_path: Path) -> None:
    first = write(tmp_path / "a", {"x": [("a", 3.0)], "y": [("a", 3.0)]})
    second = write(tmp_path / "b", {"x": [("a", 5.0)], "y": [("a", 5.0)]})
    found = compare(first, second, "pass@1")
    assert found.paired == paired([1.0, 1.0], [1.0, 1.0])
    assert compare(first, second).paired.low == compare(first, second).paired.high == 2.0


def test_solved_is_a_whole_reward(tmp_path: Path) -> None:
    with RunReader.open(write(tmp_path / "run", {"x": [("a", 0.5)], "y": [RIGHT]})) as reader:
        found = run_metrics(reader)
    assert found.tokens_per_solved is not None
    assert (found.tokens_per_solved.solved, found.tokens_per_solved.value) == (1, 14)
