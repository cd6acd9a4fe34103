"""Rollouts of an earlier run that never ended: they go on as the same rollouts, where they stand on the tree."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from forking import Late, words, written
from notebook import Notebook, Paper
from notebook import look as note_down
from plain_reply import assistant
from recorder import Recorder, replayed
from scripted import Say, Scripted, grow, look, paths

from trunkline._core import OBSERVATION, TURN, CoreTree
from trunkline.agent import Agent
from trunkline.llm.response import recorded
from trunkline.llm.types import ToolCall
from trunkline.rollout.moves import begin
from trunkline.scoring.notes import replays
from trunkline.store.derive import rows, taken
from trunkline.store.stats.summary import summarise
from trunkline.strategies.base import Fork
from trunkline.strategies.chain import Chain
from trunkline.tree.views import Tree
from trunkline.types import Task


class Nothing:
    """Goes on with what is there, and begins nothing."""

    continues = True
    stepwise = False

    def rollouts(self) -> int:
        return 1

    def start(self, view) -> list[Fork]:
        self.seen = [rollout.termination for rollout in view.tree.rollouts]
        return [] if view.taken else [Fork()]


def steps(conversation: list[dict], seed: int) -> Say:
    turn = sum(message["role"] == "assistant" for message in conversation)
    return Say(f"{seed}", final=turn == 2)


async def grown(strategy: object, script: Callable = steps, **options: object) -> tuple[Tree, list[bytes], Scripted]:
    """A whole run, delta by delta."""
    recorder = Recorder(CoreTree())
    tree, llm = await grow(strategy, script, core=recorder.core, sink=recorder, **options)
    return tree, recorder.deltas, llm


async def test_a_run_that_broke_off_after_any_delta_goes_on_to_the_same_tree():
    whole, deltas, llm = await grown(Nothing())
    assert len(deltas) >= 7, "opened, three turns, two observations, the end"
    points = set()
    for kept in range(1, len(deltas) + 1):
        core = replayed(deltas[:kept])
        before = sum(core.node(node).kind == TURN for node in range(len(core)))
        tree, again = await grow(Nothing(), steps, core=core)
        assert tree.digest() == whole.digest(), f"broken off after delta {kept}"
        assert paths(tree) == paths(whole), "the same rollout, under the same name"
        assert len(again.asked) == 3 - before, "nothing is asked for again"
        assert again.seeds == llm.seeds[before:]
        points.add(before)
    assert points == {0, 1, 2, 3}


async def test_calls_that_nobody_has_run_are_run_first():
    _, deltas, _ = await grown(Nothing())
    core = next(
        core
        for core in map(replayed, (deltas[:n] for n in range(len(deltas))))
        if core.node(len(core) - 1).kind == TURN
    )
    (number,) = core.growing
    leaf = core.rollout(number).leaf
    tree, llm = await grow(Nothing(), steps, core=core)
    seen = tree.core.node(leaf + 1)
    assert seen.parent == leaf
    assert json.loads(tree.core.message(leaf + 1))["content"].startswith("seen ")
    assert len(llm.asked) == 2
    assert [message["role"] for message in llm.asked[0]] == ["user", "assistant", "tool"]


async def test_the_strategy_is_asked_when_all_have_ended():
    _, deltas, _ = await grown(Chain(3))
    core = replayed(deltas[: len(deltas) // 2])
    assert core.growing
    strategy = Nothing()
    tree, _ = await grow(strategy, steps, core=core)
    assert strategy.seen == [rollout.termination for rollout in tree.rollouts]
    assert None not in strategy.seen
    assert len(tree.rollouts) == 3


async def test_rollouts_that_were_not_scored_are_and_others_keep_their_reward():
    def reward(trajectory) -> float:
        return 0.5

    tree, _ = await grow(Chain(2), steps)
    tree.core.score(0, 0.25)
    assert tree.rollouts[1].reward != tree.rollouts[1].reward
    again, _ = await grow(Nothing(), steps, core=tree.core, reward=reward)
    assert [rollout.reward for rollout in again.rollouts] == [0.25, 0.5]


async def test_a_limit_of_tool_calls_counts_those_of_the_earlier_run():
    _, deltas, _ = await grown(Nothing(), max_tool_calls=1)
    tree, _ = await grow(Nothing(), steps, core=replayed(deltas[:4]), max_tool_calls=1)
    whole, _ = await grow(Nothing(), steps, max_tool_calls=1)
    assert tree.digest() == whole.digest()
    assert tree.rollouts[0].termination == "tool_limit"
    assert tree.rollouts[0].usage.tools == 1


class Branch(Nothing):
    """A chain, and a fork behind its first call."""

    def rollouts(self) -> int:
        return 2

    def ended(self, view) -> list[Fork]:
        return [Fork(view.rollouts[0].nodes[2].id)] if view.tree.core.rollouts == 1 else []


async def test_a_limit_of_tool_calls_counts_those_before_a_fork_that_broke_off():
    whole, deltas, _ = await grown(Branch(), max_tool_calls=1)
    opened = next(kept for kept in range(len(deltas)) if replayed(deltas[:kept]).rollouts == 2)
    assert [rollout.termination for rollout in whole.rollouts] == ["tool_limit"] * 2
    for kept in range(opened, len(deltas) + 1):
        tree, _ = await grow(Nothing(), steps, core=replayed(deltas[:kept]), max_tool_calls=1)
        assert tree.digest() == whole.digest(), f"broken off after delta {kept}"


@pytest.mark.parametrize(
    "arguments", ['{"what":"x"}', '{"what":', "[1]", "", 'é"\u2028', '{"malformed": 1}', '{"a":' * 9000]
)
async def test_a_turn_is_read_back_as_the_model_wrote_it(arguments: str):
    """Empty arguments travel as an empty object; all others come back as they were."""
    core = CoreTree()
    point = core.append(0, 1, b'{"role":"user","content":"?"}')
    number = core.open(point, [0, 0])
    message = assistant("hm", [ToolCall("x", "look", arguments)], 0)
    name = core.name("")
    node = core.turn(number, message, name, name, core.name("stop"), 1, 0, 1, 0, 5, b"aside")
    choice = recorded(core, node)
    assert (choice.content, choice.reasoning, choice.finish) == ("hm", "aside", "stop")
    (call,) = choice.tool_calls
    assert (call.name, call.arguments) == ("look", arguments or "{}")


async def test_draws_of_one_state_that_nobody_answered_are_asked_for_together():
    core = CoreTree()
    begin(Tree(Task.ask("what?", "yes", id="q"), core), Agent(model="scripted", tools=(look,)), Chain(3), 7)
    asked: list[int] = []

    class Counting(Scripted):
        siblings = True

        async def complete(self, request):
            asked.append(request.n)
            return await super().complete(request)

    tree, _ = await grow(Nothing(), steps, core=core, llm=Counting(steps))
    assert asked[0] == 3
    assert len(tree.rollouts) == 3


@pytest.mark.parametrize("environment", [Notebook, Paper])
async def test_who_goes_on_has_the_state_that_its_tools_had_left(environment: type):
    whole, deltas, _ = await grown(Nothing(), words, tools=[note_down], environment=environment)
    assert written(whole, 0) == ["q a", "q a b", "q a b c"]
    again = []
    for kept in range(1, len(deltas) + 1):
        tree, _ = await grow(Nothing(), words, core=replayed(deltas[:kept]), tools=[note_down], environment=environment)
        assert tree.digest() == whole.digest(), f"broken off after delta {kept}"
        assert written(tree, 0) == written(whole, 0)
        again.append(replays(tree.rollouts[0].note))
    # Opened; then each turn and its observation; the answer; the end. What has run and is on record is run again.
    assert again == [*sorted(again[:-1]), 0]
    assert again[-2] == 3


async def test_calls_replayed_in_both_runs_are_added_up():
    """A fork after two turns replays two calls; it breaks off one turn later, and then three are replayed."""
    recorder = Recorder(CoreTree())
    late = Late(2)
    await grow(late, words, core=recorder.core, sink=recorder, tools=[note_down], environment=Paper)
    broken = [core for core in map(replayed, (recorder.deltas[:n] for n in range(len(recorder.deltas))))
              if 1 in core.growing and core.node(core.rollout(1).leaf).kind == OBSERVATION][-1]  # fmt: skip
    before = taken(broken, 1)
    assert before.replayed == 2
    tree, _ = await grow(Nothing(), words, core=broken, tools=[note_down], environment=Paper)
    assert written(tree, 1) == ["q a", "q a b", "q a b x"]
    assert replays(tree.rollouts[1].note) == 2 + 3
    row, rollouts = rows(tree.core)
    summary = summarise({}, 1, [row], [(0, rollout) for rollout in rollouts], taken=[(0, before)])
    assert summary.replayed == 3, "those of this run"
