"""Runs that are scored again: as if they had had the reward from the start, with nothing generated and nothing lost."""

from __future__ import annotations

import asyncio
import math
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from atlas import CAPITALS, agent, tasks
from foreign import error, message, serving
from judges import Rewarded, Unlucky
from resuming import undo

import trunkline as tl
from trunkline import filters
from trunkline.errors import ConfigError, InfrastructureError, RunFileError
from trunkline.runner.amend import arescore, rescore
from trunkline.runner.run import run
from trunkline.scoring import notes
from trunkline.scoring.notes import Graded, graded
from trunkline.scoring.rewards import contains, exact_match
from trunkline.scoring.rewards.base import RewardPart, Scored
from trunkline.store.reader import RunReader
from trunkline.store.schema import RolloutRow
from trunkline.store.state import rescorings, under_way
from trunkline.store.writer import RunWriter
from trunkline.tree.records import Failure
from trunkline.tree.views import Trajectory
from trunkline.types import UNSCORED

pytestmark = pytest.mark.breaks_rollouts

TREES = tl.TreeGRPO(trees=2, forks=1, rounds=1)
JUDGES = (filters.ZeroVariance(), Rewarded())


def capitals(body: dict) -> object:
    """Looks the capital up; then says it alone, in a sentence, or says another one, by the seed; one in nine breaks."""
    country = body["messages"][0]["content"].removeprefix("Capital of ").rstrip("?")
    if not any(said["role"] == "tool" for said in body["messages"]):
        return message(None, [("lookup", f'{{"country": "{country}"}}')])
    drawn = body["seed"] % 9
    if drawn == 8:
        return error(400, "no")
    place = CAPITALS[country] if drawn < 6 else "Rome"
    return message(place if drawn < 3 else f"I think that it is {place} of course")


@contextmanager
def served() -> Iterator[str]:
    with serving(capitals) as server:
        yield server.url


def made(out: Path, url: str, **options: object) -> Path:
    given = {"strategy": tl.Chain(4), "reward": exact_match, "seed": 3, "workers": 0, "out": out} | options
    run(agent(), tasks(), llm=tl.LLM(url, max_retries=0), **given)
    return out


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of chains and of trees by two rewards; who answered is gone."""
    folder = tmp_path_factory.mktemp("runs")
    with served() as url:
        for strategy, name in ((tl.Chain(4), "chains"), (TREES, "trees")):
            for reward in (exact_match, contains):
                options = {"strategy": strategy, "reward": reward, "filters": JUDGES}
                made(folder / f"{name}-{reward.__name__}", url, **options)
        made(folder / "unscored", url, reward=None)
    return folder


@pytest.fixture
def path(runs: Path, tmp_path: Path) -> Path:
    """A run of chains by exact match, to be changed."""
    shutil.copyfile(runs / "chains-exact_match", tmp_path / "run")
    return tmp_path / "run"


def rows(path: Path) -> tuple[list[object], list[object]]:
    """The rows of a run as it would be without its history, and without its times."""
    with RunReader.open(path) as reader:
        assert reader.check() == []
        rollouts = [(task, plain(row)) for task, row in reader.rollouts()]
        return list(reader.rows()), rollouts


def plain(row: RolloutRow) -> RolloutRow:
    """A row without what stands there of an earlier reward, without times, and without the order of arrival."""
    left = [one for one in notes.entries(row.note) if not (isinstance(one, Graded) and one.weight is None)]
    error = row.error and Failure.decode(row.error).kind
    return msgspec.structs.replace(row, note=notes.encode(left), error=error, leaf=0, llm_micros=0, tool_micros=0)


def trees(path: Path) -> list[tl.Tree]:
    with RunReader.open(path) as reader:
        return list(reader.trees())


def paths(path: Path) -> list[list[str]]:
    """V(s) along the path of every rollout."""
    found = []
    for tree in trees(path):
        values = tree.values()
        places = zip(values.visits, values.scored, values.means, strict=True)
        said = [f"{scored} of {visits}: {mean:.9f}" for visits, scored, mean in places]
        found += [[said[node.id] for node in rollout.nodes] for rollout in tree.rollouts]
    return found


def judged(path: Path) -> list[list[tl.filters.Verdict]]:
    return [notes.read(one.note) for tree in trees(path) for one in tree.rollouts]


def rewards(path: Path) -> list[float | None]:
    with RunReader.open(path) as reader:
        return [row.reward for _, row in reader.rollouts()]


@pytest.mark.parametrize("kind", ["chains", "trees"])
@pytest.mark.parametrize(("before", "after"), [("exact_match", "contains"), ("contains", "exact_match")])
def test_a_run_is_as_if_it_had_had_the_reward_from_the_start(
    runs: Path, tmp_path: Path, kind: str, before: str, after: str
):
    out = tmp_path / "out"
    held = (runs / f"{kind}-{before}").read_bytes()
    found = rescore(runs / f"{kind}-{before}", {"contains": contains, "exact_match": exact_match}[after], out=out)
    assert rows(out) == rows(runs / f"{kind}-{after}")
    assert paths(out) == paths(runs / f"{kind}-{after}")
    assert (runs / f"{kind}-{before}").read_bytes() == held
    changed = [a != b for a, b in zip(rewards(runs / f"{kind}-{before}"), rewards(out), strict=True)]
    assert 0 < found.changed == sum(changed) < found.rollouts < len(changed)
    assert (found.reward, found.before, found.unscored, found.path) == (after, before, 0, out)
    with RunReader.open(runs / f"{kind}-{before}") as old, RunReader.open(out) as new:
        assert (old.summary().accuracy, new.summary().accuracy) == (found.old, found.new)
        assert new.settings == old.settings | {"reward": after}
        assert judged(out) != judged(runs / f"{kind}-{before}"), "verdicts depend on the rewards"
        assert [new.meta[key] for key in ("state", "seconds", "created")] == [
            old.meta[key] for key in ("state", "seconds", "created")
        ]


def test_the_earlier_rewards_stay_in_the_notes(path: Path):
    before = rewards(path)
    rescore(path, contains)
    rescore(path, exact_match)
    assert rewards(path) == before
    for tree in trees(path):
        for rollout in tree.rollouts:
            said = [(one.reward, one.weight) for one in graded(rollout.note)]
            scored = rollout.termination not in UNSCORED
            assert said == ([("exact_match", None), ("contains", None)] if scored else [])
    with RunReader.open(path) as reader:
        assert [(one.before, one.reward, one.finished) for one in rescorings(reader.meta)] == [
            ("exact_match", "contains", True),
            ("contains", "exact_match", True),
        ]


def test_what_broke_is_not_asked_about_and_stays_unscored(path: Path):
    seen: list[Trajectory] = []

    def note(rollout: Trajectory) -> float:
        assert math.isnan(rollout.reward), "a reward sees no other one"
        assert not notes.read(rollout.note)
        seen.append(rollout)
        return -2.5

    found = rescore(path, note)
    broken = [one for tree in trees(path) for one in tree.rollouts if one.termination in UNSCORED]
    assert broken
    assert all(math.isnan(one.reward) for one in broken)
    assert not {one.termination for one in seen} & UNSCORED
    assert len(seen) == found.rollouts == found.changed
    assert {reward for reward in rewards(path) if reward is not None} == {-2.5}


def test_a_run_without_a_reward_gets_one(runs: Path, tmp_path: Path):
    found = rescore(runs / "unscored", exact_match, out=tmp_path / "new" / "out")
    assert (found.before, found.old, found.changed) == (None, None, found.rollouts)
    assert rewards(tmp_path / "new" / "out") == rewards(runs / "chains-exact_match")
    with RunReader.open(tmp_path / "new" / "out") as reader:
        assert {note for note in (row.note for _, row in reader.rollouts()) if graded(note)} == set()


async def test_a_reward_that_fails_leaves_unscored_and_takes_no_old_value(path: Path):
    async def picky(rollout: Trajectory) -> float | None:
        await asyncio.sleep(0)
        if rollout.task.id == "Japan":
            raise RuntimeError("no \x1b[31mwords")
        return None if rollout.task.id == "Chile" else 0.5

    found = await arescore(path, picky)
    with RunReader.open(path) as reader:
        assert reader.check() == []
        for name, reward in (("Japan", None), ("Chile", None), ("France", 0.5)):
            for rollout in reader.tree(name).rollouts:
                if rollout.termination not in UNSCORED:
                    assert rollout.reward == reward or (reward is None and math.isnan(rollout.reward))
                    (was, *why) = graded(rollout.note)
                    assert (was.reward, was.weight, was.value in {0.0, 1.0}) == ("exact_match", None, True)
                    assert [one.value for one in why] == ([None] if name == "Japan" else [])
    ((why, count),) = found.reasons
    assert "RuntimeError: no " in why
    assert "\x1b" not in why
    assert (
        0
        < count
        < found.unscored
        == sum(
            one.termination not in UNSCORED
            for tree in trees(path)
            if tree.task.id in {"Japan", "Chile"}
            for one in tree.rollouts
        )
    )
    # What was not known then is not known to have been something.
    again = await arescore(path, exact_match)
    assert again.old == found.new
    assert again.changed == again.rollouts


def weighed(rollout: Trajectory) -> Scored:
    """A sum of two, one of which is called as the sum is."""
    value = exact_match(rollout) or 0.0
    return Scored(value / 2 + 0.25, None, (RewardPart("exact", value, 0.5), RewardPart("weighed", 1.0, 0.25)))


def test_parts_of_a_reward_have_no_part_in_the_next(path: Path):
    first = rescore(path, weighed)
    assert first.changed == first.rollouts
    second = rescore(path, exact_match)
    assert second.changed == second.rollouts
    rollout = next(one for tree in trees(path) for one in tree.rollouts if one.reward == 1.0)
    assert graded(rollout.note) == [
        Graded("exact_match", 1.0),
        Graded("exact", 1.0),
        Graded("weighed", 1.0),
        Graded("weighed", 0.75),
    ]


class Stopping:
    """A reward that is interrupted after so many."""

    __name__ = "stopping"

    def __init__(self, after: int) -> None:
        self.left = after
        self.asked: list[str] = []

    async def __call__(self, rollout: Trajectory) -> float:
        if not self.left:
            await asyncio.Event().wait()
        self.left -= 1
        self.asked.append(f"{rollout.task.id} {rollout.id}")
        return 0.25


async def interrupted(path: Path, reward: Stopping, **options: object) -> None:
    """Score until the reward comes to a stop, and cancel."""
    scoring = asyncio.create_task(arescore(path, reward, **options))
    while reward.left:
        await asyncio.sleep(0.001)
    scoring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scoring


@pytest.mark.parametrize("copied", [False, True], ids=["in place", "a copy"])
async def test_a_scoring_that_was_interrupted_goes_on(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: bool
):
    monkeypatch.setattr("trunkline.runner.amend._RESCORED_TOGETHER", 4)
    out = tmp_path / "out" if copied else path
    options = {"out": out} if copied else {}
    before, first = rewards(path), Stopping(9)
    await interrupted(path, first, **options)
    with RunReader.open(out) as reader:
        assert reader.check() == []
        scoring = under_way(reader.meta)
    assert scoring is not None
    assert scoring.done == 2, "tasks of four, one at a time"
    assert {reward for reward in rewards(out)[:8] if reward is not None} == {0.25}
    assert rewards(out)[8:] == before[8:]
    second = Stopping(-1)
    found = await arescore(path, second, **options)
    shown = [(tree.task.id, one) for tree in trees(out) for one in tree.rollouts if one.termination not in UNSCORED]
    left = [f"{name} {one.id}" for name, one in shown if name not in list(CAPITALS)[:2]]
    assert second.asked == left, "of what is done nothing is asked again"
    assert {reward for reward in rewards(out) if reward is not None} == {0.25}
    assert (found.before, found.changed) == ("exact_match", found.rollouts)
    third = Stopping(-1)
    await arescore(out, third)
    assert len(third.asked) == found.rollouts, "what is finished is begun again"


async def test_another_reward_begins_anew_and_knows_which_one_each_task_had(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("trunkline.runner.amend._RESCORED_TOGETHER", 4)
    await interrupted(path, Stopping(9))
    await interrupted(path, again := Stopping(5), anew=True)
    assert len(again.asked) == 5
    found = await arescore(path, contains)
    assert found.before == "stopping"
    histories = [
        [one.reward for one in graded(tree.rollouts[0].note)] for tree in trees(path) if graded(tree.rollouts[0].note)
    ]
    assert histories[0] == ["exact_match", "stopping", "stopping"]
    assert histories[1] == ["exact_match", "stopping"]
    assert histories[-1] == ["exact_match"]


def test_a_run_that_is_resumed_has_one_reward(path: Path):
    undo(path, "Japan", "Chile")
    rescore(path, contains)
    with RunReader.open(path) as reader:
        assert '"contains"' in reader.meta["job"], "the stored job has the new reward"
    with served() as url:
        with pytest.raises(ConfigError, match='reward: "contains" there, "exact_match" here'):
            made(path, url, resume=True, filters=JUDGES)
        made(path, url, resume=True, filters=JUDGES, reward=contains)
    assert len(trees(path)) == 5
    with RunReader.open(path) as reader:
        assert reader.check() == []
        assert reader.meta["state"] == "done"
        assert b'"contains"' in reader.meta["job"].encode()


async def test_a_run_that_is_scored_in_part_is_not_gone_on_with(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trunkline.runner.amend._RESCORED_TOGETHER", 4)
    undo(path, "Chile")
    await interrupted(path, stopping := Stopping(5))
    for options in ({"resume": True}, {"resume": "force"}):
        with pytest.raises(ConfigError, match="is scored by stopping in part: finish that first"):
            await tl.arun(
                agent(), tasks(), llm="http://127.0.0.1:9/v1", strategy=tl.Chain(4), reward=stopping, seed=3,
                workers=0, out=path, filters=JUDGES, **options,
            )  # fmt: skip
    with pytest.raises(ConfigError, match=r"continue_from: .* is scored by stopping in part"):
        await tl.arun(agent(), llm="http://127.0.0.1:9/v1", strategy=tl.Chain(4), continue_from=path, workers=0)


def test_ended_tries_of_tasks_that_were_begun_are_scored_too(path: Path):
    with RunReader.open(path) as reader:
        before = reader.tree("France")
    with sqlite3.connect(path) as connection:
        for table in ("trees", "rollouts"):
            connection.execute(f"DELETE FROM {table} WHERE task = 0")
        connection.execute("UPDATE meta SET value = 'interrupted' WHERE key = 'state'")
    connection.close()
    found = rescore(path, contains)
    with RunReader.open(path) as reader:
        assert reader.check() == []
        after = reader.tree("France")
    shown = [one for one in before.rollouts if one.termination not in UNSCORED]
    assert [after.rollouts[one.id].reward for one in shown] == [contains(one) for one in shown]
    assert found.rollouts == sum(one.termination not in UNSCORED for tree in trees(path) for one in tree.rollouts)


def test_filters_that_cannot_be_loaded_are_refused_unless_their_verdicts_stay(tmp_path: Path):
    class Local(Unlucky):
        """A filter without a name to be found by."""

    with served() as url:
        path = made(tmp_path / "run", url, filters=[Local()])
    held = path.read_bytes()
    for options in ({}, {"out": tmp_path / "out"}):
        with pytest.raises(ConfigError, match=r"has filters, .* cannot be asked again .* keep_verdicts=True"):
            rescore(path, contains, **options)
    assert path.read_bytes() == held
    assert not (tmp_path / "out").exists()
    said = judged(path)
    assert any(said)
    rescore(path, contains, keep_verdicts=True)
    assert judged(path) == said


def test_what_a_strategy_said_stays(tmp_path: Path):
    strategy = tl.TreeGRPO(trees=2, forks=3, rounds=1, keep=2)
    with served() as url:
        path = made(tmp_path / "run", url, strategy=strategy, filters=[filters.ZeroVariance()])

    def drops() -> list[list[str]]:
        return [
            [verdict.reason for verdict in notes.read(one.note) if verdict.filter == "TreeGRPO"]
            for tree in trees(path)
            for one in tree.rollouts
        ]

    said = drops()
    assert any(said)
    rescore(path, contains)
    assert drops() == said


def test_mistakes_are_named_and_leave_everything_alone(path: Path, tmp_path: Path):
    held = path.read_bytes()
    with pytest.raises(ConfigError, match="reward must be a function of a trajectory, not None"):
        rescore(path, None)
    with pytest.raises(RunFileError, match="no such run file"):
        rescore(tmp_path / "none", contains)
    with pytest.raises(RunFileError, match="no such run file"):
        rescore(tmp_path / "none", contains, out=tmp_path / "out")
    with pytest.raises(RunFileError, match="is the run itself"):
        rescore(path, contains, out=path)
    (tmp_path / "there").write_text("mine")
    with pytest.raises(RunFileError, match="choose another --out"):
        rescore(path, contains, out=tmp_path / "there")
    assert (tmp_path / "there").read_text() == "mine"
    assert path.read_bytes() == held
    with RunWriter.open(path):
        for options in ({}, {"out": tmp_path / "out"}):
            with pytest.raises(RunFileError, match="is being written by process"):
                rescore(path, contains, **options)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["run", "there"]


def test_a_copy_that_cannot_be_written_leaves_nothing(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(file: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(file, isolation_level=None)
        connection.execute("PRAGMA max_page_count = 2")
        return connection

    monkeypatch.setattr("trunkline.store.amend.connect_to_write", full)
    with pytest.raises(InfrastructureError, match="cannot be written"):
        rescore(path, contains, out=tmp_path / "new" / "out")
    assert not (tmp_path / "new").exists()


async def test_it_waits_inside_a_running_loop_too(path: Path):
    assert rescore(path, contains).reward == "contains"
