from __future__ import annotations

import json
import math

import pytest

from trunkline import _core
from trunkline.errors import TreeError
from trunkline.tree.records import Failure
from trunkline.tree.views import Kind, Tree
from trunkline.types import Task, Termination, Usage


def message(role: str, content: object, **more: object) -> bytes:
    return json.dumps({"role": role, "content": content, **more}).encode()


@pytest.fixture
def tree() -> Tree:
    """Two rollouts that share a first step and part at the answer, and a third that broke."""
    tree = Tree(Task.ask("Who?", "Ada", id="q"))
    core = tree.core
    prompt = core.append(0, 1, message("user", "Who?"))
    agent, model, stop = core.name("solver"), core.name("m"), core.name("stop")
    for draw, answer in enumerate(["Ada", "Bob"]):
        rollout = core.open(prompt, [0, draw], draw)
        core.turn(rollout, message("assistant", "look"), agent, model, stop, 10, 4, 5, 1, 1_000_000)
        core.observe(
            rollout,
            message("tool", [{"type": "text", "text": "do"}, {"type": "text", "text": "c"}]),
            0,
            500_000,
            draw == 1,
        )
        core.turn(rollout, message("assistant", answer), agent, model, stop, -1, 0, -1, 0, 2_000_000, b"hmm")
        core.close(rollout, "answer", answer)
        core.score(rollout, 1.0 if answer == "Ada" else 0.0)
    broken = core.open(prompt, [0, 2], 2)
    core.close(broken, "llm_error", None, "no reply")
    return tree


def test_nodes(tree: Tree) -> None:
    root, prompt, turn, observation, first, second = tree.nodes
    assert [node.kind for node in tree.nodes] == [
        Kind.ROOT,
        Kind.PROMPT,
        Kind.TURN,
        Kind.OBSERVATION,
        Kind.TURN,
        Kind.TURN,
    ]
    assert root.parent is None
    assert root.message == {}
    assert root.text == ""
    assert prompt.parent == root
    assert observation.children == [first, second]
    assert observation.text == "doc"
    assert (turn.agent, turn.namespace, turn.finish, turn.depth) == ("solver", "m", "stop", 2)
    assert (turn.prompt_tokens, turn.generated_tokens) == (10, 5)
    assert (first.prompt_tokens, first.generated_tokens) == (None, None)
    assert first.aside == "hmm"
    assert [node.turns for node in tree.nodes] == [0, 0, 1, 1, 2, 2]
    assert (turn.visits, turn.value) == (2, 0.5)
    assert (prompt.visits, prompt.value) == (3, 0.5)
    assert len({prompt, tree.node(1)}) == 1
    with pytest.raises(TreeError):
        tree.node(99)


def test_trajectories(tree: Tree) -> None:
    first, second, broken = tree.rollouts
    assert first.termination is Termination.ANSWER
    assert (first.answer, first.reward, first.error) == ("Ada", 1.0, None)
    assert [node.id for node in first.nodes] == [1, 2, 3, 4]
    assert [m["role"] for m in first.messages] == ["user", "assistant", "tool", "assistant"]
    assert tree.messages(3) == tree.messages(tree.node(3)) == first.messages[:3]
    assert (second.path, second.draw, second.subgroup) == ((0, 1), 1, 1)
    assert (first.turns, first.point.id, first.leaf.id) == (2, 1, 4)
    assert first.seconds.llm == pytest.approx(3.0)
    assert first.seconds.tools == pytest.approx(0.5)
    assert first.usage == Usage(calls=2, prompt=10, cached=4, generated=5, unreported=1, retries=1, tools=1)
    assert second.usage == first.usage + Usage(tool_errors=1)
    assert (broken.error, broken.answer, broken.turns) == (Failure("", "no reply"), None, 0)
    assert math.isnan(broken.reward)
    assert first.task is tree.task
    with pytest.raises(TreeError):
        type(first)(tree, 3)


def test_totals(tree: Tree) -> None:
    assert tree.reward == 0.5
    assert tree.answer == "Ada"  # a tie, broken by the normalised answer
    assert tree.usage == Usage(
        calls=4, prompt=20, cached=8, generated=10, unreported=2, retries=2, tools=2, tool_errors=1
    )
    tokens = tree.tokens
    assert tokens.flat >= tokens.tree >= tokens.longest > 0
    assert tokens.saved == tokens.flat - tokens.tree > 0
    assert tokens.reuse == tokens.saved / tokens.flat
    assert tree.digest() == tree.digest()
    assert len(tree.digest()) == 32


def test_a_tree_without_rollouts_has_no_reward_and_no_answer() -> None:
    tree = Tree(Task.ask("?"))
    assert math.isnan(tree.reward)
    assert tree.answer is None
    assert tree.tokens.reuse == 0.0
    assert tree.usage == Usage()


def test_rollouts_that_were_cut_do_not_vote() -> None:
    tree = Tree(Task.ask("?"))
    point = tree.core.append(0, 1, message("user", "?"))
    for draw, (termination, answer) in enumerate([("censored", "x"), ("censored", "x"), ("answer", "y")]):
        tree.core.close(tree.core.open(point, [0, draw]), termination, answer)
    assert tree.answer == "y"


def test_tokens_with_ids_are_exact() -> None:
    tree = Tree(Task.ask("?"))
    point = tree.core.append(0, 1, message("user", "?"))
    for draw in range(2):
        rollout = tree.core.open(point, [0, draw])
        said = _core.TokenBuffer([7, draw], [-0.5, -0.5])
        tree.core.turn(rollout, message("assistant", "!"), 0, 0, 0, 9, 0, 9, 0, 0, None, None, said)
        tree.core.close(rollout, "answer", "!")
    assert not tree.tokens.exact
    tree.core.tokenise(point, _core.TokenBuffer([1, 2, 3]))
    tokens = tree.tokens
    # Both begin with token 7.
    assert (tokens.flat, tokens.tree, tokens.longest) == (10, 6, 5)
    assert (tokens.flat_generated, tokens.tree_generated, tokens.unreported, tokens.exact) == (4, 3, 0, True)
    assert [view.draw for view in tree.rollouts] == [0, 1]


def test_a_view_of_a_growing_tree_is_never_out_of_date() -> None:
    tree = Tree(Task.ask("?"))
    point = tree.core.append(0, 1, message("user", "?"))
    rollout = tree.core.open(point, [0, 0])
    view = tree.rollouts[0]
    assert view.termination is None
    tree.core.close(rollout, "max_turns")
    assert view.termination is Termination.MAX_TURNS
