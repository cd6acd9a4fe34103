"""Weighted sums of rewards: their values, what stays unscored, and what crosses to a worker."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from endings import ending, grade
from hypothesis import given
from hypothesis import strategies as st

import trunkline as tl
from trunkline._internal.serialization import SerializedObject, load, pack
from trunkline.errors import ConfigError
from trunkline.rollout.round_scorer import RoundScorer
from trunkline.scoring.notes import Graded, Verdict, graded, note, read, why_unscored
from trunkline.scoring.rewards import (
    F1,
    Choice,
    Numeric,
    RewardPart,
    Scored,
    WeightedRewards,
    contains,
    exact_match,
    weighted,
)
from trunkline.scoring.rewards.base import full_name
from trunkline.scoring.rewards.grading import Grader, score
from trunkline.types import Termination

if TYPE_CHECKING:
    from trunkline.tree.views import Trajectory


def half(trajectory: Trajectory) -> float:
    return 0.5


def nothing(trajectory: Trajectory) -> None:
    return None


def broken(trajectory: Trajectory) -> float:
    raise RuntimeError("down")


@tl.reward(batch=8)
def together(trajectories: list[Trajectory]) -> list[float]:
    return [float(len(trajectories))] * len(trajectories)


async def test_the_sum_of_what_they_say_with_the_weights_as_they_are() -> None:
    reward = weighted({"f1": (F1(), 0.5), "exact": exact_match, "half": (half, -2)})
    said = await score(reward, ending("the big tower", "tower"))
    assert said.value == pytest.approx(0.5 * 2 / 3 + 0.0 - 1.0)
    assert said.parts == (
        RewardPart("f1", pytest.approx(2 / 3), 0.5),
        RewardPart("exact", 0.0, 1.0),
        RewardPart("half", 0.5, -2),
    )


def test_any_weights() -> None:
    names = st.text(min_size=1, max_size=5).filter(str.strip)
    trajectory = ending("x")
    with asyncio.Runner() as loop:  # one for all examples: making a loop takes longer than a sum

        @given(st.dictionaries(names, st.floats(-10, 10), min_size=1, max_size=5))
        def check(weights: dict[str, float]) -> None:
            said = loop.run(score(WeightedRewards(dict.fromkeys(weights, half), weights), trajectory))
            assert said.value == pytest.approx(0.5 * math.fsum(weights.values()))

        check()


@pytest.mark.parametrize(
    ("part", "problem"),
    [(nothing, "other: it gave no value"), (broken, "other: broken raised RuntimeError: down")],
    ids=["nothing", "broken"],
)
async def test_without_one_part_there_is_no_sum(part: Any, problem: str) -> None:
    said = await score(weighted({"half": half, "other": part}), ending("x"))
    assert math.isnan(said.value)
    assert said.problem == problem
    assert said.parts[0] == RewardPart("half", 0.5, 1.0)
    assert math.isnan(said.parts[1].value)


@pytest.mark.parametrize("weights", [(1e100, 1.0), (-1e11, -1e11), (1e100, 1e100)], ids=str)
async def test_a_sum_that_is_no_number_is_none_and_keeps_its_parts(weights: tuple[float, float]) -> None:
    huge = weighted({"a": (lambda _: 1e90, weights[0]), "b": (lambda _: 1e90, weights[1])})
    said = await score(huge, ending("x"))
    assert math.isnan(said.value)
    assert said.problem == "the weighted sum is too large for a number"
    assert said.parts == (RewardPart("a", 1e90, weights[0]), RewardPart("b", 1e90, weights[1]))


async def test_parts_are_asked_at_once_and_in_batches() -> None:
    waiting: list[str] = []

    async def first(trajectory: Trajectory) -> float:
        waiting.append("first")
        while "second" not in waiting:
            await asyncio.sleep(0)
        return 1.0

    async def second(trajectory: Trajectory) -> float:
        waiting.append("second")
        return 1.0

    said = await grade(weighted({"a": first, "b": second, "c": together}), [ending("x")] * 4)
    assert [one.value for one in said] == [6.0] * 4


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: weighted({}), "at least one reward"),
        (lambda: weighted([half]), "takes a dict"),
        (lambda: weighted({"a": 3}), "'a' must be a reward that can be called"),
        (lambda: weighted({"a": F1}), "'a' must be a reward that can be called"),
        (lambda: weighted({"a": (half, 1, 2)}), "'a' must be a reward, or a reward and its weight"),
        (lambda: weighted({"a": (half, "1")}), "weight of a must be a number"),
        (lambda: weighted({"a": (half, math.nan)}), "weight of a must be a number"),
        (lambda: weighted({" ": half}), "the name of a reward"),
        (lambda: WeightedRewards({"a": half}, {"b": 1.0}), "weight of 'b'; the rewards are a"),
        (lambda: WeightedRewards({"a": half}, [1.0]), "weights must be a dict"),
    ],
    ids=range(10),
)
def test_what_cannot_be_is_refused(make: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make()


async def test_it_crosses_to_workers_with_the_rewards_that_it_is_made_of() -> None:
    inner = weighted({"f1": (F1(), 0.5), "close": Numeric(absolute=0.5)})
    reward = weighted({"inner": inner, "contains": (contains, 2)})
    crossing = pack(reward, "reward", by_value=False)
    back = load(msgspec.msgpack.decode(msgspec.msgpack.encode(crossing), type=SerializedObject))
    assert back == reward
    assert isinstance(back.rewards["inner"].rewards["f1"], F1)
    trajectory = ending("about 3.4", "3")
    assert await score(back, trajectory) == await score(reward, trajectory)
    assert (
        full_name(back)
        == full_name(reward)
        == (
            "WeightedRewards(rewards={inner: WeightedRewards(rewards={f1: F1, close: Numeric(absolute=0.5)}, "
            "weights={f1: 0.5}), contains: contains}, weights={contains: 2})"
        )
    )


class Typed(msgspec.Struct, frozen=True):
    """A reward whose field says what stands in it, and one that does not."""

    inner: Numeric
    others: tuple[Any, ...] = ()

    def __call__(self, trajectory: Trajectory) -> float:
        return 1.0


def test_structs_that_are_called_cross_in_fields_of_any_type() -> None:
    reward = Typed(Numeric(absolute=0.5), (F1(), exact_match, [Numeric(relative=0.1)]))
    back = load(pack(reward, "reward", by_value=False))
    assert back.inner == reward.inner
    assert list(back.others) == [F1(), exact_match, [Numeric(relative=0.1)]]


async def test_parts_stand_in_the_note_and_are_not_told_twice() -> None:
    trajectory = ending("x", "x")
    tree = trajectory.tree
    note(tree.core, 0, Verdict("one", "mask"), Graded("before", 0.25, None, "an earlier reward"))
    for part, value in ((broken, math.nan), (half, 1.25)):
        scores = RoundScorer(tree, Grader(weighted({"exact": exact_match, "other": (part, 0.5)})), None, 1)
        if (waits := scores.ask(0, Termination.ANSWER, spent=False)) is not None:
            await waits
        scores.write()
        assert tree.rollouts[0].reward == pytest.approx(value, nan_ok=True)
    assert graded(tree.rollouts[0].note) == [
        Graded("before", 0.25, None, "an earlier reward"),
        Graded("exact", 1.0, 1.0),
        Graded("other", 0.5, 0.5),
    ]
    assert read(tree.rollouts[0].note) == [Verdict("one", "mask")]


async def test_what_was_cut_is_shown_to_the_parts_where_it_is_shown_to_the_whole() -> None:
    cut = ending("x", termination="censored")
    assert (await score(weighted({"half": half}), cut, cut=True)).value == 0.5
    assert math.isnan((await score(weighted({"half": half}), cut)).value)


@pytest.mark.parametrize(("given", "value"), [(1.05, 1.0), (1.2, 0.0)])
def test_differences_of_ones_own(given: float, value: float) -> None:
    assert Numeric(relative=0.1)(ending(str(given), "1")) == value
    assert Numeric(absolute=0.1)(ending(str(given), "1")) == value


async def asked(trajectory: Trajectory, reward: Any, *, value: Any = None) -> Trajectory:
    scores = RoundScorer(trajectory.tree, None if reward is None else Grader(reward), value, 1)
    if (waits := scores.ask(0, Termination.ANSWER, spent=value is not None)) is not None:
        await waits
    scores.write()
    return trajectory.tree.rollouts[0]


@pytest.mark.parametrize(("reward", "value"), [(exact_match, 1.0), (nothing, math.nan)], ids=["scored", "no value"])
async def test_a_reward_without_parts_or_a_reason_notes_nothing(reward: Any, value: float) -> None:
    scored = await asked(ending("x", "x"), reward)
    assert scored.reward == pytest.approx(value, nan_ok=True)
    assert scored.note is None


async def test_why_a_rollout_is_unscored_stands_in_its_note_until_it_is_scored() -> None:
    trajectory = ending("x", "x", choices="x, y")
    why = "Choice: the task's 'options' is no list or dict of options"
    trajectory.tree.task.metadata["options"] = "x, y"
    assert graded((await asked(trajectory, Choice("options"))).note) == [
        Graded("Choice(options=options)", None, 1.0, why)
    ]
    said = await asked(trajectory, exact_match, value=broken)
    assert graded(said.note) == [Graded("broken", None, 1.0, "broken raised RuntimeError: down")]
    assert why_unscored(said.note) == "broken raised RuntimeError: down"
    assert (await asked(trajectory, exact_match)).reward == 1.0
    assert not trajectory.tree.rollouts[0].note


async def test_a_reason_that_a_part_says_is_not_told_twice() -> None:
    said = await asked(ending("x", "x"), weighted({"a": exact_match, "b": broken}))
    assert graded(said.note) == [Graded("a", 1.0, 1.0), Graded("b", None, 1.0, "broken raised RuntimeError: down")]
    said = await asked(ending("x", "x"), weighted({"a": nothing}))
    assert graded(said.note)[1] == Graded("WeightedRewards(rewards={a: nothing})", None, 1.0, "a: it gave no value")


def test_what_is_said_is_a_plain_value() -> None:
    assert Scored(1.0) == (1.0, None, ())
