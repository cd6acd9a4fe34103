"""What rows of rollouts come to: by task, and how long they are."""

from __future__ import annotations

import json
import math

import msgspec
import pytest

from trunkline._core import CoreTree
from trunkline.scoring.answers import action
from trunkline.scoring.diversity import Try
from trunkline.store.derive import rows
from trunkline.store.schema import RolloutRow, TakenRow, TreeRow
from trunkline.store.stats.tasks import Length, LengthCounter, by_task, tried
from trunkline.tree.tokens import Tokens
from trunkline.tree.views import Trajectory, Tree
from trunkline.types import Task, Usage

LOOK = {"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": "{}"}}]}


def turn(core: CoreTree, rollout: int, message: dict, generated: int = -1, prompt: int = 10) -> None:
    core.turn(rollout, json.dumps(message).encode(), 0, 0, 0, prompt if generated >= 0 else -1, 4, generated, 0, 9)


def a_tree() -> CoreTree:
    """Four tries of a question: two of one chain, one cut, one broken.

    Prompt, then A (3 tokens), seen, and behind it an answer of 2 tokens, or one of 7; then B (5), seen, cut there; and
    one that broke before its first turn.
    """
    core = CoreTree()
    prompt = core.append(0, 1, b'{"role":"user","content":"?"}')
    first = core.open(prompt, [0, 0], 0)
    turn(core, first, LOOK, 3)
    point = core.observe(first, b'{"role":"tool","content":"seen"}', 0, 1, False)
    turn(core, first, {"role": "assistant", "content": "yes"}, 2)
    core.close(first, "answer", "yes")
    core.score(first, 1.0)
    second = core.open(point, [0, 0, 1, 1], 0)
    turn(core, second, {"role": "assistant", "content": "no"}, 7)
    core.close(second, "answer", "no")
    core.score(second, 0.0)
    cut = core.open(prompt, [0, 1], 1)
    turn(core, cut, {"role": "assistant", "content": "<search>x</search>"}, 5)
    core.observe(cut, b'{"role":"user","content":"found"}', 0, 1, False)
    core.close(cut, "censored")
    core.score(cut, 0.75)  # what a value function said of it
    core.close(core.open(prompt, [0, 2], 2), "llm_error")
    return core


def listed() -> tuple[TreeRow, list[RolloutRow]]:
    return rows(a_tree())


def length(listed, *, cut: bool) -> Length | None:
    counter = LengthCounter(cut=cut)
    counter.add(listed)
    return counter.length()


def test_a_row_has_the_length_of_its_path_and_what_its_first_turn_did():
    _, found = listed()
    assert [row.length for row in found] == [3 + 2, 3 + 7, 5, 0]
    assert [row.turns for row in found] == [2, 2, 1, 0]
    first = action(LOOK)
    assert [row.action for row in found] == [first, first, action({"content": "<search>x</search>"}), None]
    tree = Tree(Task.ask("?"), a_tree())
    assert [Trajectory(tree, number).generated for number in range(4)] == [5, 10, 5, 0]


def test_a_length_is_not_known_where_a_turn_has_no_usage():
    core = a_tree()
    silent = core.open(1, [0, 3], 3)
    turn(core, silent, LOOK | {"content": "hm"})
    core.observe(silent, b'{"role":"tool","content":"seen"}', 0, 1, False)
    turn(core, silent, {"role": "assistant", "content": "no"}, 7)
    core.close(silent, "answer", "no")
    assert rows(core)[1][-1].length is None
    assert Trajectory(Tree(Task.ask("?"), core), silent).generated is None
    kept = length(rows(core)[1], cut=False)
    assert kept == Length(3, (2 + 2 + 2) / 3, (5 + 10) / 2), "turns of three, tokens of two"


def test_what_was_cut_is_measured_apart_and_what_broke_not_at_all():
    _, found = listed()
    assert length(found, cut=False) == Length(2, 2.0, 7.5)
    assert length(found, cut=True) == Length(1, 1.0, 5.0)
    assert length(found[:2], cut=True) is None
    assert length([], cut=False) is None


def test_a_tail_that_is_left_growing_is_cut_too():
    _, found = listed()
    growing = msgspec.structs.replace(found[2], termination=None, turns=3, length=11)
    assert length([*found, growing], cut=True) == Length(2, 2.0, 8.0)
    assert length([*found, growing], cut=False) == length(found, cut=False)


def test_a_value_functions_word_is_no_reward():
    _, found = listed()
    tries = [tried(row) for row in found]
    assert tries[0] == Try(0, 1.0, "yes", found[0].action)
    assert math.isnan(tries[2].reward)
    assert tries[2].answer is None


def test_the_figures_of_a_task():
    tree, found = listed()
    (task,) = by_task([(3, tree)], [(3, row) for row in found], ["a", "b", "c", "d"])
    assert (task.task, task.rollouts, task.scored, task.reward) == ("d", 4, 2, 0.5)
    # Usage: a prompt of 10 each; the second turn of A adds nothing to 10 + 3, so only what is generated counts on.
    assert task.tokens == Tokens(
        tree.flat, tree.tree, flat_generated=5 + 10 + 5, tree_generated=17, longest=tree.longest, unreported=0
    )
    assert task.usage == Usage(calls=4, prompt=40, cached=16, generated=17, tools=2)
    assert (task.paths, task.actions, task.answers) == (5, 2, 2)
    # One chain alone is scored, so that nothing says how its two rollouts correlate.
    assert task.effective is None


def test_a_task_that_was_taken_over_costs_what_was_made_since():
    tree, found = listed()
    before = TakenRow(1, 1, 0, 0, "d", calls=2, prompt=20, cached=8, generated=5, tools=1)
    listing = [(number, row) for number in (0, 1) for row in found]
    on, anew = by_task([(0, tree), (1, tree)], listing, ["a", "b"], [(0, before)])
    assert on.usage == Usage(calls=4 - 2, prompt=20, cached=8, generated=17 - 5, tools=2 - 1)
    assert anew.usage == Usage(calls=4, prompt=40, cached=16, generated=17, tools=2)
    assert (on.paths, on.tokens, on.rollouts) == (anew.paths, anew.tokens, anew.rollouts), "of the whole tree"


def test_effective_tries_take_the_correlation_of_the_whole_run():
    tree, found = listed()
    second = [row_with(found[0], 0, 1.0), row_with(found[0], 0, 1.0), row_with(found[0], 1, 0.0)]
    listing = [(0, row) for row in found] + [(1, row) for row in second]
    tasks = by_task([(0, tree), (1, tree)], listing, ["a", "b"])
    # Task a: one chain (1, 0), task b: chains (1, 1) and (0). MSB = 2/9 + 4/9 = 2/3 over 1, MSW = .5 / 2 = .25,
    # m0 = (2 - 4/2) + (3 - 5/3) = 4/3: rho = (2/3 - 1/4) / (2/3 + 1/3 x 1/4) = (5/12) / (3/4) = 5/9.
    rho = 5 / 9
    assert tasks[0].effective == pytest.approx(4 / (2 * (1 + rho)))
    assert tasks[1].effective == pytest.approx(9 / (2 * (1 + rho) + 1))


def row_with(row: RolloutRow, subgroup: int, reward: float) -> RolloutRow:
    return msgspec.structs.replace(row, subgroup=subgroup, reward=reward)


def test_tasks_that_broke_before_a_rollout_have_figures_of_their_own():
    tree, _ = rows(CoreTree(), error="the worker died")
    (task,) = by_task([(0, tree)], [], ["a"])
    assert (task.rollouts, task.scored, task.reward, task.effective, task.actions) == (0, 0, None, None, 0)
    assert by_task([], [], ["a"]) == []
