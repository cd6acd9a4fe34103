"""Groups of equal rewards are tried again: what is kept, what is dropped and counted, and what is never done."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from foreign import message, serving

import trunkline as tl
from trunkline.errors import ConfigError, RunFileError
from trunkline.llm.batch.completion import Prompt


class Fate:
    """A batch engine that gives each draw of a question what is written down for it, try after try.

    Args:
        fates: Of each question the answers of its tries, two draws each: ``"11 10"``.
    """

    def __init__(self, fates: dict[str, str]) -> None:
        self.fates = {question: iter(said.replace(" ", "")) for question, said in fates.items()}
        self.asked: list[str] = []
        self.seeds: list[int] = []

    def __call__(self, prompts: list[Prompt]) -> list[str]:
        questions = [str(prompt.messages[-1]["content"]) for prompt in prompts]
        self.asked += questions
        self.seeds += [prompt.seed for prompt in prompts]
        return [next(self.fates[question]) for question in questions]


def graded(rollout: tl.Trajectory) -> float:
    """1 or 0 as it says; unscored where it says anything else."""
    return {"1": 1.0, "0": 0.0}.get(rollout.answer or "", float("nan"))


def sample(fates: dict[str, str], engine: Fate | None = None, **options: Any) -> tl.runs.SampledGroups:
    tasks = [tl.Task.ask(question, id=question) for question in fates]
    given: dict[str, Any] = {"strategy": tl.Chain(2), "reward": graded, "seed": 5}
    engine = Fate(fates) if engine is None else engine
    llm = tl.BatchLLM(engine, max_batch=1)
    return tl.sample_groups(tl.Agent(model="m"), tasks, llm=llm, **(given | options))


def rewards(found: tl.runs.SampledGroups) -> dict[str, list[float]]:
    return {tree.task.id: sorted(rollout.reward for rollout in tree.rollouts) for tree in found}


def test_a_second_try_of_the_same_questions_works_and_takes_those_that_were_dropped(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "trunkline"):
        found = sample({"a": "11 10", "b": "10", "c": "00 01"}, tries=2)
    assert found.kept == [["b"], ["a", "c"]]
    assert rewards(found) == {"b": [0.0, 1.0], "a": [0.0, 1.0], "c": [0.0, 1.0]}
    assert (len(found), found.missing, found.equal, found.state) == (3, 0, 2, "done")
    assert "try 1 of 2: 1 groups kept, 2 missing; dropped: 2 of equal rewards, 0 unscored" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_tries_have_other_seeds_and_these_follow_from_the_first():
    seeds = []
    for _ in range(2):
        engine = Fate({"a": "11 11 10"})
        sample({"a": ""}, engine, tries=3)
        seeds.append(engine.seeds)
        assert len(set(engine.seeds)) == 6
    assert sorted(seeds[0]) == sorted(seeds[1])


def test_what_is_missing_after_the_last_try_is_said(caplog: pytest.LogCaptureFixture):
    found = sample({"a": "11 11", "b": "10"}, tries=2)
    assert (found.kept, found.missing, found.equal, found.state) == ([["b"], []], 1, 2, "exhausted")
    assert "1 of 2 groups were kept in 2 tries; dropped: 2 of equal rewards, 0 unscored" in caplog.text


def test_the_last_try_is_kept_as_it_is_only_if_that_is_said():
    found = sample({"a": "11 11", "b": "10"}, tries=2, keep_last=True)
    assert found.kept == [["b"], ["a"]]
    assert rewards(found)["a"] == [1.0, 1.0]
    assert (found.equal, found.missing) == (1, 0)
    once = sample({"a": "11", "b": "10"}, tries=1, keep_last=True)
    assert once.kept == [["a", "b"]]


def test_never_more_is_kept_than_asked_for_nor_begun_than_can_be_needed():
    fates = {"a": "11", "b": "10", "c": "10", "d": "01"}
    engine = Fate(fates)
    found = sample(fates, engine, groups=2, tries=3)
    assert (found.kept, len(found.runs)) == ([["b", "c"]], 1)
    assert "d" not in engine.asked
    both = Fate({"a": "11 10", "b": "00 10", "c": "10"})
    again = sample(dict.fromkeys("abc", ""), both, groups=2, tries=3)
    assert (again.kept, sorted(both.asked)) == ([["c"], ["a"]], ["a"] * 4 + ["b"] * 2 + ["c"] * 2)


def test_unscored_groups_are_tried_again_and_are_not_counted_as_equal():
    found = sample({"a": "?? 1? 10", "b": "10"}, tries=3)
    assert (found.kept, found.equal, found.unscored) == ([["b"], [], ["a"]], 0, 2)
    none = sample({"a": "??"}, tries=1, keep_last=True)
    assert (none.kept, none.unscored) == ([[]], 1), "nothing can be learned from them in the last try either"
    alone = sample({"a": "1?"}, tries=1, keep_last=True)
    assert (alone.kept, alone.unscored) == ([[]], 1), "nor from one reward that is not compared"


class Strict:
    """A filter that masks whatever says 1."""

    name = "strict"

    def judge(self, group: Any) -> Any:
        for rollout in group.rollouts:
            if rollout.answer == "1":
                yield rollout.id, tl.filters.Verdict(self.name, "drop")


def test_what_other_filters_leave_is_what_is_compared():
    found = sample({"a": "10 00"}, tries=2, filters=[Strict()])
    assert (found.equal, found.unscored, found.missing) == (1, 1, 1)
    banded = tl.filters.ZeroVariance(low=0.9)
    assert sample({"a": "10"}, tries=1, filters=[banded]).filtered == 1


class Raising:
    """A filter that breaks."""

    name = "raising"

    def judge(self, group: Any) -> Any:
        """Fail."""
        raise ValueError("no idea")


class Stuck(tl.Chain, frozen=True):
    """A chain that breaks once a rollout has ended."""

    def ended(self, view: Any) -> Any:
        """Fail."""
        raise ValueError("no idea")


@pytest.mark.breaks_rollouts
def test_what_was_never_judged_or_never_finished_is_not_kept_and_is_not_called_equal():
    for said in ("10", "11"):
        for options in ({"filters": [Raising()]}, {"strategy": Stuck(2)}):
            for keep_last in (False, True):
                found = sample({"a": said}, tries=1, keep_last=keep_last, **options)
                assert (found.kept, found.equal, found.missing) == ([[]], 0, 1), (said, options, keep_last)
                assert found.filtered + found.unscored == 1


class Broken:
    """A strategy that does not know how much it grows."""

    def rollouts(self) -> int:
        """Fail."""
        return 1 // 0

    def start(self, view: Any) -> Any:
        """Grow nothing."""
        return ()


class Pair(tl.Team):
    """Two roles, of which the second has the last word."""

    first = tl.Role(prompt="{question}")
    second = tl.Role(prompt="{question}")

    async def play(self, rollout: tl.teams.TeamPlay) -> str:
        await rollout.ask(self.first)
        return await rollout.ask(self.second)


def test_teams_are_sampled_and_what_is_kept_becomes_rows():
    fates = {"a": "11 11 11 10"}
    engine = tl.BatchLLM(Fate(fates), max_batch=1)
    team = Pair(model="m")
    tasks = [tl.Task.ask("a", id="a")]
    found = tl.sample_groups(team, tasks, llm=engine, strategy=tl.Chain(2), reward=graded, seed=1)
    assert found.kept == [[], ["a"]]
    rows = tl.train.rows(found, shared="repeat")
    assert rows["agent"] == ["first", "second"] * 2
    assert sorted(rows["score"]) == [0.0, 0.0, 1.0, 1.0]
    assert [row.conversation for row in rows] == [row.conversation for row in rows], "trees can be read again"


async def test_the_same_in_a_loop_that_runs():
    tasks = [tl.Task.ask("a", id="a")]
    llm = tl.BatchLLM(Fate({"a": "11 10"}), max_batch=1)
    found = await tl.asample_groups(tl.Agent(model="m"), tasks, llm=llm, strategy=tl.Chain(2), reward=graded)
    assert found.kept == [[], ["a"]]
    assert repr(found) == "<SampledGroups: 1 of 1 after 2 tries, done>"


class Stalls:
    """An engine that answers by the seed alone, and no more after so many answers."""

    def __init__(self, left: int = 1_000) -> None:
        self.left = left
        self.seeds: list[int] = []
        self.stalled = asyncio.Event()

    async def __call__(self, prompts: list[Prompt]) -> list[str]:
        """Answer, or never."""
        if not self.left:
            self.stalled.set()
            await asyncio.Event().wait()
        self.left -= 1
        self.seeds += [prompt.seed for prompt in prompts]
        return [str(int(prompt.seed % 13 == 0)) for prompt in prompts]


async def stalling(engine: Stalls, **options: Any) -> tl.runs.SampledGroups:
    tasks = [tl.Task.ask(question, id=question) for question in "abcdef"]
    given: dict[str, Any] = {"strategy": tl.Chain(2), "reward": graded, "tries": 4, "groups": 5}
    return await tl.asample_groups(
        tl.Agent(model="m"), tasks, llm=tl.BatchLLM(engine, max_batch=1), **(given | options)
    )


@pytest.fixture(scope="module")
def undisturbed() -> tuple[tl.runs.SampledGroups, list[int]]:
    """What is kept if nothing goes wrong, and the seeds that it takes."""
    engine = Stalls()
    whole = asyncio.run(stalling(engine, seed=7))
    assert whole.kept == [["c"], ["a", "b"], ["e"], ["f"]]
    assert len(set(engine.seeds)) == len(engine.seeds) == 32
    return whole, engine.seeds


@pytest.mark.parametrize(("left", "seed"), [(0, 7), (7, None), (12, None), (13, 7), (25, None), (31, 7)])
async def test_sampling_that_was_broken_off_anywhere_goes_on_where_it_was(
    tmp_path: Path, undisturbed: tuple[tl.runs.SampledGroups, list[int]], left: int, seed: int | None
):
    whole, seeds = undisturbed
    engine = Stalls(left)
    broken_off = asyncio.create_task(stalling(engine, seed=7, out=tmp_path))
    await engine.stalled.wait()
    broken_off.cancel()
    with pytest.raises(asyncio.CancelledError):
        await broken_off
    engine = Stalls()
    found = await stalling(engine, seed=seed, out=tmp_path, resume=True)
    assert (found.kept, found.equal, found.state) == (whole.kept, whole.equal, whole.state)
    assert rewards(found) == rewards(whole)
    assert set(engine.seeds) <= set(seeds), "later tries derive their seeds from what the first file says"
    nothing = Stalls(0)
    assert rewards(await stalling(nothing, out=tmp_path, resume=True)) == rewards(whole), (
        "what is over is not run again"
    )


def test_a_budget_that_is_spent_ends_the_tries():
    found = sample(dict.fromkeys("abcd", "11 10"), groups=2, tries=3, budget=tl.Budget(calls=4))
    assert (len(found.runs), found.state, found.missing, found.equal) == (1, "budget", 2, 2)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"strategy": tl.Chain(1)}, "strategy grows one rollout a task, so all rewards of every group are equal"),
        ({"strategy": None}, "strategy grows one rollout a task"),
        ({"strategy": Broken()}, r"strategy Broken: rollouts\(\) raised ZeroDivisionError"),
        ({"strategy": "chain"}, "strategy"),
        ({"reward": None}, "reward is not given: groups are kept by their rewards"),
        ({"tries": 0}, "tries must be a whole number from 1 to 1000, not 0"),
        ({"groups": 3}, "groups is 3, and there are 2 tasks: a task is one group at most"),
        ({"groups": 0}, "groups must be a whole number of at least 1"),
        ({"keep_last": "yes"}, "keep_last must be true or false, not 'yes'"),
        ({"max_tasks": 1}, "max_tasks does not go with sampling groups"),
        ({"continue_from": "x.run"}, "continue_from does not go with sampling groups"),
        ({"out": 3}, "out must be the path of a folder, not 3"),
        ({"filters": None}, "filters must be a list of filters, not None"),
        ({"filters": tl.filters.ZeroVariance()}, "filters must be a list of filters, not ZeroVariance"),
        ({"resume": True}, "resume=True needs out=PATH"),
    ],
)
def test_what_cannot_be_sampled_is_named_before_anything_is_asked(options: dict, says: str):
    engine = Fate({"a": "10", "b": "10"})
    with pytest.raises(ConfigError, match=says):
        sample({"a": "", "b": ""}, engine, **options)
    assert not engine.asked


def test_no_tasks_and_folders_that_cannot_be_are_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="there are no tasks to run"):
        sample({})
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"out: cannot make the folder .*File exists"):
        sample({"a": "10"}, out=tmp_path / "file")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "try-2.run").touch()
    engine = Fate({"a": "10"})
    with pytest.raises(RunFileError, match=r"try-2\.run"):
        sample({"a": ""}, engine, out=tmp_path / "there")
    assert not engine.asked, "that the second try has no place is known before the first"


def by_seed(body: dict[str, Any]) -> dict[str, Any]:
    """A server that says 1 for every seventh seed."""
    return message(str(int(body["seed"] % 7 == 0)))


def test_whoever_runs_the_tries_the_same_groups_are_kept():
    tasks = [tl.Task.ask(question, "1", id=question) for question in "abcdef"]
    options: dict[str, Any] = {"strategy": tl.Chain(2), "reward": tl.exact_match, "seed": 3, "tries": 4}
    with serving(by_seed) as server, tl.Pool(workers=2) as pool:
        options["llm"] = tl.LLM(server.url, max_concurrency=4)
        found = tl.sample_groups(tl.Agent(model="m"), tasks, pool=pool, **options)
        inline = tl.sample_groups(tl.Agent(model="m"), tasks, workers=0, **options)
    assert (found.kept, rewards(found), found.equal) == (inline.kept, rewards(inline), inline.equal)
    assert len(found.runs) > 1
    assert len(found) > 1
