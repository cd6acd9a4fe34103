"""How rewards are asked: in threads, in batches, with deadlines; and what they leave behind."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from endings import ending, grade
from hypothesis import given
from hypothesis import strategies as st

import trunkline as tl
from trunkline.errors import ConfigError
from trunkline.scoring.notes import as_noted, encode, graded, why_unscored
from trunkline.scoring.rewards import RewardPart, Scored
from trunkline.scoring.rewards.base import full_name, policy_of, short_name
from trunkline.scoring.rewards.grading import Grader, score

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.tree.views import Trajectory


@tl.reward(timeout=0.05)
async def late(trajectory: Trajectory) -> float:
    await asyncio.sleep(60)
    return 1.0


@tl.reward(timeout=0.05, thread=True)
def blocked(trajectory: Trajectory) -> float:
    time.sleep(0.4 if trajectory.answer == "slow" else 0.0)
    return float(threading.current_thread() is not threading.main_thread())


@tl.reward(timeout=0.05, batch=4, thread=True)
def blocked_together(trajectories: list[Trajectory]) -> list[float]:
    time.sleep(0.4)
    return [1.0] * len(trajectories)


@tl.reward(thread=True)
def its_own_timeout(trajectory: Trajectory) -> float:
    raise TimeoutError("its own")


@tl.reward(thread=True)
def leaves(trajectory: Trajectory) -> float:
    raise SystemExit(3)


async def test_what_blocks_runs_in_a_thread_and_what_is_late_is_left_behind() -> None:
    assert await score(blocked, ending("quick")) == Scored(1.0)
    for reward, answer in ((late, "x"), (blocked, "slow"), (blocked_together, "x")):
        said = await score(reward, ending(answer))
        assert math.isnan(said.value)
        assert said.problem == f"{reward.__name__} gave no result within 0.05 s"
    assert (await score(its_own_timeout, ending("x"))).problem == "its_own_timeout raised TimeoutError: its own"
    assert (await score(leaves, ending("x"))).problem == "leaves raised SystemExit: 3"


async def test_others_are_scored_while_one_blocks_its_thread() -> None:
    said = await grade(blocked, [ending("slow"), ending("quick"), ending("quick")])
    assert [one.value for one in said[1:]] == [1.0, 1.0]
    assert "within 0.05 s" in (said[0].problem or "")


async def test_a_reward_that_never_returns_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trunkline.scoring.rewards.grading._THREADS", 1)
    over = threading.Event()

    @tl.reward(timeout=0.01, thread=True, name="stuck")
    def stuck(trajectory: Trajectory) -> float:
        over.wait()
        return 1.0

    try:
        said = await grade(stuck, [ending("x")] * 6, at_once=1)
    finally:
        over.set()
    assert [one.problem for one in said] == [
        *["stuck gave no result within 0.01 s"] * 4,
        *["stuck was not asked: too many earlier calls of it never returned"] * 2,
    ]


def test_a_decorated_function_is_itself() -> None:
    def plain(trajectory: Trajectory) -> float:
        return 1.0

    assert tl.reward(name="mine", thread=True)(plain) is plain
    assert plain(ending("x")) == 1.0
    assert short_name(plain) == full_name(plain) == "mine"
    assert policy_of(plain).thread


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"timeout": 0}, "timeout must be"),
        ({"timeout": "5"}, "timeout must be"),
        ({"batch": 0}, "batch must be"),
        ({"batch": 2.5}, "batch must be"),
        ({"thread": 1}, "thread must be true or false"),
        ({"name": " "}, "name is empty"),
        ({"name": 3}, "name must be"),
        ({"timeout": 5}, "a function that blocks cannot be interrupted after timeout=5"),
    ],
    ids=range(8),
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        tl.reward(**options)(lambda trajectory: 1.0)


def test_threads_are_not_for_coroutines_and_the_decorator_is_for_functions() -> None:
    async def coroutine(trajectory: Trajectory) -> float:
        return 1.0

    with pytest.raises(ConfigError, match="not for a coroutine"):
        tl.reward(thread=True)(coroutine)
    with pytest.raises(ConfigError, match="is for functions"):
        tl.reward(timeout=3)(Lengths())


class Lengths(msgspec.Struct, frozen=True):
    """A reward of many at once, by attributes."""

    factor: float = 1.0
    batch: int = 3
    timeout: float = 5.0

    async def __call__(self, trajectories: list[Trajectory]) -> list[Any]:
        calls.append(len(trajectories))
        return [self.factor * len(one.answer or "") for one in trajectories]


calls: list[int] = []


async def test_batches_of_many_are_full_and_in_order() -> None:
    calls.clear()
    given = [ending("x" * size, termination="lost" if size == 2 else "answer") for size in range(8)]
    said = await grade(Lengths(2.0), given)
    assert [one.value for one in said if not math.isnan(one.value)] == [0.0, 2.0, 6.0, 8.0, 10.0, 12.0, 14.0]
    assert math.isnan(said[2].value)
    assert calls == [3, 3, 1]


async def test_a_running_grader_gathers_who_ends_together() -> None:
    calls.clear()
    async with Grader(Lengths()) as grader:
        first = asyncio.create_task(grader.score(ending("xx")))
        said = await asyncio.gather(*(grader.score(ending("x" * size)) for size in range(4)), first)
        alone = await grader.score(ending("xxxx"))
        unseen = await grader.score(ending("x", termination="lost"))
    assert [one.value for one in (*said, alone)] == [0.0, 1.0, 2.0, 3.0, 2.0, 4.0]
    assert math.isnan(unseen.value)
    assert sum(calls) == 6
    assert max(calls) == 3
    assert calls[-1] == 1


async def test_who_is_cancelled_leaves_the_others_their_batch() -> None:
    async with Grader(Lengths()) as grader:
        given_up = asyncio.create_task(grader.score(ending("x")))
        waiting = asyncio.create_task(grader.score(ending("xx")))
        await asyncio.sleep(0)
        given_up.cancel()
        assert (await waiting).value == 2.0
        assert given_up.cancelled()


async def test_a_rollout_that_is_cancelled_while_its_batch_is_scored_leaves_the_others_their_scores() -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    @tl.reward(batch=2)
    async def waits(trajectories: list[Trajectory]) -> list[float]:
        asked.set()
        await answer.wait()
        return [float(len(trajectory.answer or "")) for trajectory in trajectories]

    async with Grader(waits) as grader:
        cancelled = asyncio.create_task(grader.score(ending("x")))
        waiting = asyncio.create_task(grader.score(ending("xx")))
        await asked.wait()
        cancelled.cancel()
        await asyncio.wait((cancelled,))
        answer.set()
        assert await waiting == Scored(2.0)
        assert cancelled.cancelled()


async def test_a_grader_that_is_closed_leaves_nobody_waiting() -> None:
    @tl.reward(batch=8)
    async def hangs(trajectories: list[Trajectory]) -> list[float]:
        await asyncio.sleep(60)
        return []

    grader = Grader(hangs)
    asked = asyncio.create_task(grader.score(ending("x")))
    while not grader._calls:
        await asyncio.sleep(0.001)
    waiting = asyncio.create_task(grader.score(ending("x")))
    await asyncio.sleep(0)
    await grader.close()
    ended = await asyncio.gather(asked, waiting, return_exceptions=True)
    assert [type(one) for one in ended] == [asyncio.CancelledError] * 2
    with pytest.raises(RuntimeError, match="closed"):
        await grader.score(ending("x"))


def together(answer: Any) -> Callable[[list[Trajectory]], Any]:
    @tl.reward(batch=4, name="judges")
    def judges(trajectories: list[Trajectory]) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return judges


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ([1.0], "judges returned 1 results for 2 trajectories"),
        ([1.0] * 3, "judges returned 3 results for 2 trajectories"),
        (1.0, "judges returned 1.0, expected a list of 2 results"),
        ("11", "judges returned '11', expected a list of 2 results"),
        ({0: 1.0, 1: 1.0}, "expected a list of 2 results"),
        (None, "judges returned None, expected a list of 2 results"),
        (RuntimeError("down \x1b[2J"), r"judges raised RuntimeError: down \x1b[2J"),
    ],
    ids=range(7),
)
async def test_what_goes_wrong_in_a_batch_leaves_all_of_it_unscored(answer: Any, problem: str) -> None:
    said = await grade(together(answer), [ending("a"), ending("b")])
    assert [math.isnan(one.value) for one in said] == [True, True]
    assert all(problem in (one.problem or "") for one in said)


async def test_a_result_that_raises_when_it_is_looked_at_leaves_its_rollout_unscored() -> None:
    class Unbound:
        @property
        def __class__(self) -> type:
            raise RuntimeError("no context")

    class Odd(float):
        def __float__(self) -> float:
            raise RuntimeError("no number")

    assert "RuntimeError: no context" in str((await score(lambda _: Unbound(), ending("a"))).problem)
    assert "expected a finite number" in str((await score(lambda _: Odd(1.0), ending("a"))).problem)


async def test_one_bad_result_of_a_batch_is_one_unscored_rollout() -> None:
    answers = (1, None, "1", Scored(math.nan, "no idea"))
    said = await grade(together(answers), [ending(name) for name in "abcd"])
    assert said[0] == Scored(1.0)
    assert [one.problem for one in said[1:]] == [
        None,
        "judges returned '1', expected a finite number, a bool or None",
        "no idea",
    ]


async def test_a_reward_may_say_why_it_has_no_value() -> None:
    assert (await score(lambda _: Scored(math.nan, "because"), ending("a"))).problem == "because"
    assert (await score(lambda _: Scored(0.5), ending("a"))) == Scored(0.5)
    assert (await score(lambda _: Scored(math.nan, "\x1b[2J"), ending("a"))).problem == r"\x1b[2J"
    assert (await score(lambda _: Scored(0.5, None, (RewardPart("a", 0.5),)), ending("a"))).parts == (
        RewardPart("a", 0.5),
    )
    assert "returned inf" in ((await score(lambda _: Scored(math.inf), ending("a"))).problem or "")


TOLD = st.one_of(st.none(), st.booleans(), st.floats(), st.sampled_from(["", "no", "1", "\x1b\n"]), st.just([1]))


@given(st.dictionaries(st.sampled_from(["reward", "format", "length", "why"]), TOLD))
async def test_of_a_dict_its_reward_counts_and_the_rest_is_kept(told: dict[str, Any]) -> None:
    given = dict(told)
    said = await score(lambda _: told, ending("a"))
    assert told == given or any(value != value for value in told.values())
    number = {name: isinstance(value, bool | float) and abs(value) <= 1e100 for name, value in told.items()}
    if number.get("reward"):
        assert (said.value, said.problem) == (told["reward"], None)
    else:
        assert math.isnan(said.value)
        assert bool(said.problem) == ("reward" not in told or told["reward"] is not None)
    kept = {part.name: part for part in said.parts}
    assert set(kept) == set(told) - {"reward"} if "reward" in told else not kept
    for name, part in kept.items():
        assert part.weight == 0.0
        assert part.value == told[name] if number[name] else math.isnan(part.value)
        assert (part.problem is None) == (number[name] or told[name] is None)
    note = encode(as_noted("f", said))
    assert {one.reward for one in graded(note) if not one.weight} == set(kept)
    assert why_unscored(note) == (said.problem or "")


async def test_a_dict_without_a_reward_is_named_and_parts_of_a_part_are_kept() -> None:
    for told in ({"score": 1.0}, {"score": 1, "reward": {"reward": 1}}):
        said = await score(lambda _, told=told: told, ending("a"))
        assert (said.problem or "").endswith(" returned a dict without a number under 'reward': 'score'")
    summed = tl.rewards.weighted({"rules": (lambda _: {"reward": 0.5, "format": 1}, 2), "exact": tl.exact_match})
    assert await score(summed, ending("a", "a")) == Scored(
        2.0, None, (RewardPart("rules", 0.5, 2), RewardPart("exact", 1.0, 1.0), RewardPart("rules.format", 1.0, 0.0))
    )


class Unspeakable:
    """A key that cannot be written."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


async def test_whatever_else_a_dict_holds_its_reward_counts() -> None:
    said = await score(lambda _: {"reward": 1, Unspeakable(): 2, 3: Unspeakable()}, ending("a"))
    assert (said.value, said.problem) == (1.0, None)
    assert [part[:3] for part in said.parts] == [
        ("<Unspeakable>", 2.0, 0.0),
        ("3", pytest.approx(math.nan, nan_ok=True), 0.0),
    ]
    said = await score(lambda _: {"reward": 1, **dict.fromkeys(map(str, range(5000)), 0.5)}, ending("a"))
    assert said.value == 1.0
    assert [part.name for part in said.parts] == [*map(str, range(100)), "..."]
    assert said.parts[-1].problem == "4900 more, which are not kept"


@pytest.mark.parametrize(
    "parts",
    [("a",), 3, (RewardPart("a", math.inf),), (RewardPart("a", 1.0, math.nan),), (RewardPart(1, 1.0),)],
    ids=range(5),
)
async def test_parts_that_cannot_be_noted_leave_a_rollout_unscored(parts: Any) -> None:
    said = await score(lambda _: Scored(1.0, None, parts), ending("a"))
    assert math.isnan(said.value)
    assert "returned parts that cannot be: " in (said.problem or "")
    assert said.parts == ()


async def test_no_more_calls_are_open_than_allowed() -> None:
    seen: list[int] = []
    open_now = 0

    async def counts(trajectory: Trajectory) -> float:
        nonlocal open_now
        open_now += 1
        seen.append(open_now)
        await asyncio.sleep(0)
        open_now -= 1
        return 1.0

    said = await grade(counts, [ending("x")] * 20, at_once=3)
    assert [one.value for one in said] == [1.0] * 20
    assert max(seen) == 3


class Opens:
    """Holds something open while a run lasts."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def opened(self) -> Opens:
        self.log.append("opened")
        return self

    def __call__(self, trajectory: Trajectory) -> float:
        self.log.append("asked")
        return 1.0

    async def close(self) -> None:
        self.log.append("closed")
        raise RuntimeError("and broke")


async def test_what_a_reward_holds_open_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    reward = Opens()
    await grade(reward, [ending("x")] * 2)
    assert reward.log == ["opened", "asked", "asked", "closed"]
    assert "Opens could not be closed: RuntimeError: and broke" in caplog.text


class Unopened(Opens):
    """What it holds cannot be had."""

    def opened(self) -> Opens:
        raise OSError("no\x1b such place")


async def test_what_cannot_be_opened_is_said() -> None:
    for ask in (score(Unopened(), ending("x")), grade(Unopened(), [ending("x")])):
        with pytest.raises(ConfigError, match=r"Unopened could not be opened: OSError: no\\x1b such place"):
            await ask


class Named(msgspec.Struct, frozen=True):
    """A reward with options."""

    rubric: str = "short"
    parts: dict[str, Any] = {}
    api_key: str = ""
    timeout: float = 3.0

    def __call__(self, trajectory: Trajectory) -> float:
        return 1.0


def test_names_tell_options_apart_that_change_a_value_and_no_others() -> None:
    assert full_name(Named()) == full_name(Named(timeout=9.0)) == "Named"
    assert full_name(Lengths(batch=2)) == "Lengths"
    assert full_name(Named("strict")) == "Named(rubric=strict)"
    assert full_name(Named(parts={"a": Named("b"), "c": tl.exact_match})) == (
        "Named(parts={a: Named(rubric=b), c: exact_match})"
    )
    long = [full_name(Named("x" * 100 + end)) for end in "ab"]
    assert long[0] != long[1]
    assert all(len(name) < 100 for name in long)
    assert "hunter2" not in full_name(Named(api_key="hunter2"))
    assert "sk-1234567890abcdef1234" not in full_name(Named("sk-1234567890abcdef1234"))
    assert inspect.isfunction(tl.exact_match)
    assert full_name(tl.rewards.Numeric(absolute=0.5)) == "Numeric(absolute=0.5)"
