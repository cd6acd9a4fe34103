"""Rounds: hooks see trees at rest, in logical order, and what they yield is carried out or refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
from scripted import Say, Scripted, Silent, grow, paths

from trunkline._core import OBSERVATION
from trunkline.agent import Agent, CompiledAgent
from trunkline.errors import ConfigError, StrategyError
from trunkline.llm.dialects.base import Definition, Parsed
from trunkline.llm.dialects.builtin import Native
from trunkline.llm.request import Sampling
from trunkline.llm.types import ReplyChoice
from trunkline.rollout.growth import Barrier
from trunkline.rollout.sampling.completions import CompletionClient
from trunkline.rollout.tree_runner import TreeRunner, TreeSettings
from trunkline.strategies.base import Fork, Move, Stop, View
from trunkline.tree.views import Trajectory, Tree
from trunkline.types import Task


class Rounds:
    """A strategy of functions."""

    def __init__(self, *start: Fork, **hooks: Any) -> None:
        self._start = start
        self.__dict__.update(hooks)

    def rollouts(self) -> int:
        return 8

    def start(self, view: View) -> Iterable[Fork]:
        return self._start


def steps(turns: int) -> Callable[[list[dict], int], Say]:
    """A model that answers in its so manieth turn; what it says differs with every draw."""

    def script(conversation: list[dict], seed: int) -> Say:
        turn = sum(message["role"] == "assistant" for message in conversation)
        return Say(str(seed), final=turn == turns - 1)

    return script


async def test_who_is_stopped_ends_as_censored_and_who_is_not_goes_on():
    seen: list[Any] = []

    def stepped(view: View) -> Iterator[Move]:
        first, *others = view.rollouts
        seen.append(("stepped", [rollout.path for rollout in view.rollouts]))
        yield Fork(first.leaf.id)
        yield from (Stop(other.id, "pruned") for other in others)

    def ended(view: View) -> Iterator[Move]:
        seen.append(("ended", [rollout.path for rollout in view.rollouts]))
        return iter(())

    tree, llm = await grow(Rounds(Fork(n=2), stepped=stepped, ended=ended), steps(3))
    assert seen == [
        ("stepped", [(0, 0), (0, 1)]),
        ("ended", [(0, 1)]),
        ("stepped", [(0, 0), (0, 0, 1, 1)]),
        ("ended", [(0, 0), (0, 0, 1, 1), (0, 0, 2, 1)]),
    ]
    cut = [rollout for rollout in tree.rollouts if rollout.termination == "censored"]
    assert [(rollout.path, rollout.error and rollout.error.message) for rollout in cut] == [
        ((0, 1), "pruned"),
        ((0, 0, 1, 1), "pruned"),
    ]
    first, second, third = llm.seeds[0], llm.seeds[2], llm.seeds[4]
    assert llm.seeds == [first, first + 1, second, second + 1, third, third + 1], "a fork is the next draw of its state"


async def test_a_rollout_with_limited_steps_is_cut_and_what_its_value_says_backs_up_but_is_no_score():
    def ended(view: View) -> Iterator[Fork]:
        if len(view.tree.rollouts) == 2:
            yield Fork(view.rollouts[1].leaf.id)

    strategy = Rounds(Fork(n=2, steps=1), ended=ended)
    strategy.value = lambda rollout: 0.25  # type: ignore[attr-defined]
    tree, _ = await grow(strategy, steps(2), reward=lambda rollout: 1.0)
    assert [(rollout.termination, rollout.reward) for rollout in tree.rollouts] == [
        ("censored", 0.25),
        ("censored", 0.25),
        ("answer", 1.0),
    ]
    assert tree.reward == 1.0, "only the one that ended by itself is scored"
    assert tree.values().means[1] == pytest.approx((0.25 + 0.25 + 1.0) / 3)


@pytest.mark.parametrize("dialect", ["native", "hermes"])
@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_a_limit_of_tool_calls_counts_those_before_a_fork(limit: int, dialect: str):
    def script(conversation: list[dict], seed: int) -> Say:
        turn = sum(message["role"] == "assistant" for message in conversation)
        if dialect == "native" or turn == 3:
            return Say(str(seed), final=turn == 3)
        call = json.dumps({"name": "look", "arguments": {"what": str(seed)}})
        return Say("", final=True, thought=f"<tool_call>{call}</tool_call>")

    def ended(view: View) -> Iterator[Move]:
        if view.tree.core.rollouts == 1:
            seen = next(node.id for node in view.rollouts[0].nodes if node.kind == OBSERVATION)
            # Behind the first call and its observation, at the prompt, and behind a message that is put in.
            yield from (Fork(seen), Fork(), Fork(seen, say="Hurry."))

    tree, _ = await grow(Rounds(Fork(), ended=ended), script, max_tool_calls=limit, dialect=dialect)
    made = [sum(node.kind == OBSERVATION for node in rollout.nodes) for rollout in tree.rollouts]
    assert made == [limit] * 4, "of the whole path, whoever made them"
    assert {rollout.termination for rollout in tree.rollouts} == ({"tool_limit"} if limit < 3 else {"answer"})


async def test_a_message_put_in_and_sampling_of_a_fork_reach_its_draws_alone():
    tree, llm = await grow(Rounds(Fork(), Fork(say="think", sampling=Sampling(temperature=1.5))), steps(2))
    assert paths(tree) == [(0, 0), (0, 1)]
    assert [rollout.subgroup for rollout in tree.rollouts] == [0, 1]
    texts = [[message["content"] for message in asked if message["role"] == "user"] for asked in llm.asked]
    assert sorted(texts) == [["what?"], ["what?"], ["what?", "think"], ["what?", "think"]]
    turns = [[node.namespace for node in rollout.nodes if node.namespace] for rollout in tree.rollouts]
    plain, hot = turns
    assert plain[0] == plain[1] == hot[1] != hot[0], "the fork's own draw only"


@pytest.mark.parametrize(
    ("move", "says"),
    [
        (lambda view: [Fork(view.rollouts[0].leaf.id)], "no fork point"),
        (lambda view: [Fork(10**6)], "does not exist"),
        (lambda view: [Stop(view.rollouts[0].id)], "does not wait between two steps"),
        (lambda view: [3], "yields int"),
        (lambda view: [Fork(n=0)], "n must be"),
    ],
)
async def test_a_move_that_cannot_be_ends_the_task_with_its_reason(move: Callable[[View], list[Move]], says: str):
    with pytest.raises(ExceptionGroup) as caught:
        await grow(Rounds(Fork(), ended=move), steps(2))
    (error,) = caught.value.exceptions
    assert isinstance(error, StrategyError)
    assert says in str(error)


async def test_a_message_behind_what_ended_a_rollout_leaves_no_trace():
    tree = Tree(Task.ask("what?", "yes"))
    move = Rounds(Fork(), ended=lambda view: [Fork(view.rollouts[0].leaf.id, say="go on")])
    session = TreeRunner(
        tree,
        TreeSettings(CompiledAgent(Agent(model="m")), move, None, 7, CompletionClient(Scripted(steps(1)))),
        Silent(),
    )
    with pytest.raises(ExceptionGroup, match="TaskGroup"):
        await session.run()
    assert [node.text for node in tree.nodes[1:]] == ["what?", tree.rollouts[0].leaf.text], "the prompt and the answer"


async def test_forks_beyond_what_was_planned_end_the_task():
    asked = []

    def ended(view: View) -> list[Fork]:
        asked.append(view.tree.core.rollouts)
        return [Fork(n=3)]

    with pytest.raises(ExceptionGroup) as caught:
        await grow(Rounds(Fork(n=2), ended=ended), steps(1))
    assert asked == [2, 5, 8], "eight are planned"
    (error,) = caught.value.exceptions
    assert isinstance(error, StrategyError)
    assert str(error) == ("strategy Rounds has opened 8 rollouts and wants 3 more, but its rollouts() plans 8 at most")


async def test_of_two_hooks_that_fork_in_one_round_the_forks_count_together():
    def hook(view: View) -> list[Fork]:
        return [Fork(n=3)] if view.tree.core.rollouts == 4 else []

    def script(conversation: list[dict], seed: int) -> Say:
        return Say(str(seed), final=seed % 2 == 0 or len(conversation) > 1)

    strategy = Rounds(Fork(n=4), ended=hook, stepped=hook)
    with pytest.raises(ExceptionGroup) as caught:
        await grow(strategy, script)
    assert "has opened 4 rollouts and wants 6 more" in str(caught.value.exceptions[0])


async def test_a_start_of_more_than_was_planned_is_an_error_of_the_settings():
    with pytest.raises(ExceptionGroup) as caught:
        await grow(Rounds(Fork(n=9)), steps(1))
    (error,) = caught.value.exceptions
    assert isinstance(error, ConfigError)
    assert "has opened 0 rollouts and wants 9 more" in str(error)


async def test_who_is_stopped_before_its_steps_are_over_is_not_asked_for_its_value():
    asked = []

    def stepped(view: View) -> list[Move]:
        return [Stop(1)] if view.rollouts[0].turns == 1 else []

    def value(rollout: Trajectory) -> float:
        asked.append(rollout.id)
        return 0.5

    strategy = Rounds(Fork(n=2, steps=2), stepped=stepped, value=value)
    tree, _ = await grow(strategy, steps(4))
    assert asked == [0]
    assert [rollout.turns for rollout in tree.rollouts] == [2, 1]
    assert tree.core.statistics()[0][0] == 1, "one of them backs up"


@pytest.mark.parametrize("kind", [asyncio.CancelledError, BaseException, GeneratorExit, SystemExit])
@pytest.mark.parametrize("hook", ["start", "stepped", "ended"])
async def test_a_hook_that_raises_anything_broke(hook: str, kind: type[BaseException]):
    def leave(view: View) -> list[Move]:
        raise kind

    strategy = Rounds(Fork(), **{hook: leave})
    with pytest.raises(ExceptionGroup) as caught:
        await grow(strategy, steps(2))
    (error,) = caught.value.exceptions
    assert isinstance(error, ConfigError if hook == "start" else StrategyError)
    assert f"strategy Rounds raised in {hook}() of task 'q': {kind.__name__}" in str(error)


async def test_user_code_that_cancels_itself_within_a_rollout_ends_that_rollout_alone():
    class Cancelling(Native):
        def parse(self, choice: ReplyChoice, tools: Sequence[Definition]) -> Parsed:
            if choice.content == "<answer>1</answer>":
                raise asyncio.CancelledError
            return super().parse(choice, tools)

    turns = iter("012")

    def script(conversation: list[dict], seed: int) -> Say:
        return Say(next(turns), final=True)

    tree, _ = await asyncio.wait_for(grow(Rounds(Fork(n=3)), script, dialect=Cancelling()), 5)
    assert sorted(rollout.termination for rollout in tree.rollouts) == ["answer", "answer", "lost"]


def test_forks_that_cannot_be_are_refused_when_they_are_made():
    for wrong in ({"n": 0}, {"point": -1}, {"steps": 0}, {"at": 1}, {"at": 1, "point": 3, "say": "x"}, {"sampling": 3}):
        with pytest.raises(ConfigError, match="Fork"):
            Fork(**wrong)


async def test_rewards_are_summed_in_logical_order_whoever_is_faster():
    worth = [0.1, 0.2, 0.3]
    sums = set()
    for slowest in range(3):

        async def reward(rollout, slowest=slowest) -> float:
            for _ in range(5 if rollout.id == slowest else 0):
                await asyncio.sleep(0)
            return worth[rollout.id]

        tree, _ = await grow(Rounds(Fork(n=3)), steps(1), reward=reward)
        sums.add(tree.core.statistics()[1][0])
    assert sums == {0.1 + 0.2 + 0.3}


async def test_a_hook_s_seed_depends_on_the_tree_and_the_decision_alone():
    seeds: list[list[int]] = []

    def ended(view: View) -> Iterator[Fork]:
        seeds.append([view.seed(), view.seed(1)])
        if len(seeds) % 2:
            yield Fork()

    for _ in range(2):
        await grow(Rounds(Fork(), ended=ended), steps(2))
    assert seeds[:2] == seeds[2:]
    assert len({seed for pair in seeds[:2] for seed in pair}) == 4
    assert all(0 <= seed < 2**64 for pair in seeds for seed in pair)


async def test_a_barrier_counts_those_who_are_stopped_where_they_wait():
    barrier = Barrier()
    for _ in range(2):
        barrier.start()
    waits = [asyncio.ensure_future(barrier.wait(number)) for number in (4, 2)]
    assert await barrier.rest() == [2, 4]
    waits[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits[0]
    rest = asyncio.ensure_future(barrier.rest())
    await asyncio.sleep(0)
    assert not rest.done(), "the one that was stopped has yet to end"
    barrier.end()
    assert await rest == [2]
    barrier.go(2, ValueError("over"))
    with pytest.raises(ValueError, match="over"):
        await waits[1]
