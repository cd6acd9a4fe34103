from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import sys
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from trunkline.scoring.rewards import Scored, WeightedRewards, contains, exact_match, numeric_match
from trunkline.scoring.rewards.grading import report, score
from trunkline.scoring.rewards.judge import Judge
from trunkline.tree.views import Tree
from trunkline.types import UNSCORED, Task, Termination

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.tree.views import Trajectory


def ended(answer: str | None, *references: str, termination: str = "answer") -> Trajectory:
    tree = Tree(Task(id="t\x1b", messages=[{"role": "user", "content": "?"}], reference=references))
    point = tree.core.append(0, 1, json.dumps({"role": "user", "content": "?"}).encode())
    tree.core.close(tree.core.open(point, [0, 0]), termination, answer)
    return tree.rollouts[0]


@pytest.mark.parametrize(
    ("reward", "answer", "references", "value"),
    [
        (exact_match, "The Paris.", ("paris",), 1.0),
        (exact_match, "Rome", ("paris", "rome"), 1.0),
        (exact_match, "Oslo", ("paris", "rome"), 0.0),
        (exact_match, None, ("paris",), 0.0),
        (exact_match, "x", (), None),
        (contains, "It is Paris, France", ("paris",), 1.0),
        (contains, "comparison", ("paris",), 0.0),
        (contains, None, ("paris",), 0.0),
        (contains, "x", (), None),
        (numeric_match, "about 1,200", ("1200.0",), 1.0),
        (numeric_match, "1201", ("1200",), 0.0),
        (numeric_match, "none", ("1200",), 0.0),
        (numeric_match, "0.5", ("1/2",), 1.0),
        (numeric_match, "1", ("one",), None),
    ],
)
def test_rewards(
    reward: Callable[[Trajectory], float | None],
    answer: str | None,
    references: tuple[str, ...],
    value: float | None,
) -> None:
    assert reward(ended(answer, *references)) == value


async def later(_trajectory: Trajectory) -> float:
    await asyncio.sleep(0)
    return 0.25


class Always:
    def __call__(self, trajectory: Trajectory) -> bool:
        return True


@pytest.mark.parametrize(
    ("reward", "value"),
    [
        (exact_match, 1.0),
        (later, 0.25),
        (Always(), 1.0),
        (lambda _: Decimal("0.5"), 0.5),
        (lambda _: -3, -3.0),
    ],
)
async def test_what_counts_as_a_reward(reward: Callable[[Trajectory], object], value: float) -> None:
    verdict = await score(reward, ended("a b", "A B"))
    assert verdict == Scored(value)
    assert report(ended("a b", "A B"), await score(reward, ended("a b", "A B"))) == value


def explode(_trajectory: Trajectory) -> float:
    raise RuntimeError("judge \x1b[2J down")


@pytest.mark.parametrize(
    ("reward", "problem"),
    [
        (explode, r"raised RuntimeError: judge \x1b[2J down"),
        (lambda _: math.nan, "returned nan"),
        (lambda _: math.inf, "returned inf"),
        (lambda _: "1.0", "returned '1.0'"),
        (lambda _: [1], "returned [1]"),
        (lambda _: 10**400, "returned 1000"),
    ],
)
async def test_a_scorer_that_fails_leaves_the_rollout_unscored(
    reward: Callable[[Trajectory], object], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    verdict = await score(reward, ended("a", "a"))
    assert math.isnan(verdict.value)
    assert problem in (verdict.problem or "")
    with caplog.at_level(logging.WARNING, "trunkline.scoring"):
        assert math.isnan(report(ended("a", "a"), await score(reward, ended("a", "a"))))
    assert "unscored" in caplog.text
    assert "\x1b" not in caplog.text


async def test_no_reference_is_unscored_without_a_problem() -> None:
    verdict = await score(exact_match, ended("a"))
    assert math.isnan(verdict.value)
    assert verdict.problem is None


@pytest.mark.parametrize("termination", sorted(UNSCORED))
async def test_broken_and_cut_rollouts_are_not_shown_to_the_reward(termination: Termination) -> None:
    seen: list[Trajectory] = []
    rollout = ended("a", "a", termination=Termination.LLM_ERROR if termination == "retried" else termination)
    if termination == "retried":
        rollout.tree.core.close(rollout.id, termination)
    verdict = await score(lambda t: bool(seen.append(t)), rollout)
    assert math.isnan(verdict.value)
    assert not seen


def leave(_trajectory: Trajectory) -> float:
    sys.exit("no judge")


async def leave_later(_trajectory: Trajectory) -> float:
    await asyncio.sleep(0)
    raise KeyboardInterrupt


class Silent(Exception):
    def __str__(self) -> str:
        raise SystemExit


def be_silent(_trajectory: Trajectory) -> float:
    raise Silent


def close(_trajectory: Trajectory) -> float:
    raise GeneratorExit


async def close_later(_trajectory: Trajectory) -> float:
    await asyncio.sleep(0)
    raise GeneratorExit


def cancel(_trajectory: Trajectory) -> float:
    raise asyncio.CancelledError("mine")


async def cancel_later(_trajectory: Trajectory) -> float:
    await asyncio.sleep(0)
    raise asyncio.CancelledError


class Odd:
    def __float__(self) -> float:
        raise RuntimeError("more than one element")

    def __repr__(self) -> str:
        return "Odd"


async def late(_trajectory: Trajectory) -> float:
    await asyncio.sleep(60)
    return 1.0


async def stubborn(_trajectory: Trajectory) -> float:
    try:
        await asyncio.sleep(60)
    finally:
        raise ValueError("cleaning up")


async def deaf(_trajectory: Trajectory) -> float:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    return 1.0


async def impatient(_trajectory: Trajectory) -> float:
    raise TimeoutError("its own")


@pytest.mark.parametrize(
    ("reward", "problem"),
    [
        (leave, "leave raised SystemExit: no judge"),
        (leave_later, "leave_later raised KeyboardInterrupt: "),
        (be_silent, "be_silent raised Silent: (its message cannot be read)"),
        (close, "close raised GeneratorExit: "),
        (close_later, "close_later raised GeneratorExit: "),
        (cancel, "cancel raised CancelledError: mine"),
        (cancel_later, "cancel_later raised CancelledError: "),
        (impatient, "impatient raised TimeoutError: its own"),
        (lambda _: Odd(), "<lambda> returned Odd, expected a finite number, a bool or None"),
        (lambda _: -1e308, "<lambda> returned -1e+308, which is beyond 1e+100: no mean could be taken of it"),
    ],
)
async def test_a_reward_cannot_end_the_process(reward: Callable[[Trajectory], object], problem: str) -> None:
    verdict = await score(reward, ended("a", "a"))
    assert math.isnan(verdict.value)
    assert verdict.problem == problem


@pytest.mark.parametrize("reward", [late, stubborn, deaf])
async def test_a_reward_has_a_deadline(reward: Callable[[Trajectory], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trunkline.scoring.rewards.grading.REWARD_TIMEOUT", 0.02)
    verdict = await score(reward, ended("a", "a"))
    assert math.isnan(verdict.value)
    assert verdict.problem == f"{reward.__name__} gave no result within 0.02 s"
    own = asyncio.current_task()
    assert own is not None
    assert own.cancelling() == 0  # nobody has to pay for it later


def test_long_answers_are_searched_at_their_end() -> None:
    assert contains(ended("word " * 5_000 + "It is Paris, France.", "paris")) == 1.0
    assert contains(ended("It is Paris. " + "word " * 20_000, "paris")) == 0.0
    assert contains(ended("x" * 60_000 + "paris", "paris")) == 0.0


async def test_cancelling_a_reward_is_not_swallowed() -> None:
    async def hang(_trajectory: Trajectory) -> float:
        await asyncio.sleep(60)
        return 1.0

    task = asyncio.ensure_future(score(hang, ended("a", "a")))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_rewards_say_what_calling_them_returns():
    assert WeightedRewards.__call__.__annotations__["return"] == "Scored", "with the parts, also without a value"
    assert Judge.__call__.__annotations__["return"] == "Scored | float"
