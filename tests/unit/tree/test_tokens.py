"""Tokens of a tree by their ids, over trees made by hand: what turns of one state share counts once, to the token."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline._core import MESSAGE, PROMPT, SAMPLED, CoreTree, TokenBuffer, drift
from trunkline.store.derive import rows
from trunkline.tree.tokens import count
from trunkline.tree.views import Tree
from trunkline.types import Task


def a_prompt() -> CoreTree:
    core = CoreTree()
    core.append(0, PROMPT, b'{"role":"user","content":"?"}', 0, TokenBuffer([1, 2, 3]))
    return core


def say(
    core: CoreTree, draw: int, ids: list[int], *, name: str = "m", sent: int | None = None, reported: int = -1
) -> int:
    rollout = core.open(1, [0, draw], draw)
    message = json.dumps({"role": "assistant", "content": str(ids)}).encode()
    own = TokenBuffer(ids, None, None, [SAMPLED] * len(ids))
    core.turn(rollout, message, 0, core.name(name), 0, 3, 0, reported, 0, 0, None, sent, own)
    core.close(rollout, "answer", "yes")
    return rollout


def test_what_siblings_begin_with_counts_once():
    core = a_prompt()
    for draw, ids in enumerate(([5, 6, 7, 8], [5, 6, 9], [5, 6, 9, 4, 4], [8, 8])):
        say(core, draw, ids)
    # 5 6, then 7 8, or 9 and perhaps 4 4; and 8 8.
    found = count(core)
    assert (found.flat, found.flat_generated, found.longest) == (4 * 3 + 14, 14, 3 + 5)
    assert (found.tree, found.tree_generated) == (3 + 9, 9)
    assert found == Tree(Task.ask("?"), core).tokens
    assert (rows(core)[0].tree, rows(core)[0].tree_generated) == (12, 9)
    assert core.tokens()[3] == 14, "nodes are whole"


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=6))
def test_tokens_are_those_of_all_different_beginnings(said: list[list[int]]):
    core = a_prompt()
    for draw, ids in enumerate(said):
        say(core, draw, ids)
    beginnings = {tuple(ids[:end]) for ids in said for end in range(1, len(ids) + 1)}
    found = count(core)
    assert (found.tree, found.tree_generated) == (3 + len(beginnings), len(beginnings))
    assert found.flat >= found.tree >= found.longest == 3 + max(map(len, said))


def test_turns_of_two_models_or_of_two_states_share_nothing():
    core = a_prompt()
    say(core, 0, [5, 6, 7])
    say(core, 1, [5, 6, 8], name="another")
    below = core.append(core.rollout(0).leaf, MESSAGE, b'{"role":"user","content":"on"}', 0, TokenBuffer([9]))
    for draw, ids in enumerate(([5, 6, 7], [5, 7])):
        rollout = core.open(below, [0, 0, 1, draw], 0)
        message = json.dumps({"role": "assistant", "content": str(ids)}).encode()
        core.turn(
            rollout, message, 0, 0, 0, 3, 0, 3, 0, 0, None, None, TokenBuffer(ids, None, None, [SAMPLED] * len(ids))
        )
        core.close(rollout, "answer", "yes")
    assert count(core).tree_generated == 3 + 3 + (3 + 2 - 1)


def test_what_was_given_in_place_of_the_path_counts_once_for_all_who_were_given_it():
    core = a_prompt()
    sent = drift(core, "realign", 1, TokenBuffer([4, 4, 4, 4]))
    for draw, ids in enumerate(([5, 6, 7], [5, 8])):
        say(core, draw, ids, sent=sent)
    found = count(core)
    assert found.exact
    assert found.tree_generated == 4
    assert found.flat - found.tree == 3 + 4 + 1, "prompt, what was given, and the first token"
    assert found.tree >= found.longest


def test_what_was_given_after_different_beginnings_is_not_the_same():
    core = a_prompt()
    for draw, keep in enumerate((1, 2)):
        say(core, draw, [5, 6], sent=drift(core, "realign", keep, TokenBuffer([4])))
    found = count(core)
    assert (found.tree_generated, found.flat_generated) == (4, 4)


@pytest.mark.parametrize("reported", [-1, 2])
def test_a_turn_is_as_long_as_its_ids_say_whatever_the_server_reports(reported: int):
    core = a_prompt()
    say(core, 0, [5, 6, 7, 8], reported=reported)
    tree = Tree(Task.ask("?"), core)
    (rollout,) = tree.rollouts
    assert rollout.leaf.generated_tokens == rollout.generated == rows(core)[1][0].length == 4
    assert tree.root.generated_tokens is None


def test_figures_of_servers_are_left_as_they_are():
    core = a_prompt()
    for draw in range(2):
        rollout = core.open(1, [0, draw], draw)
        core.turn(rollout, b'{"role":"assistant","content":"%d"}' % draw, 0, 0, 0, 3, 0, 7, 0, 0)
        core.close(rollout, "answer", "yes")
    found = count(core)
    assert not found.exact
    assert (found.flat, found.tree, found.tree_generated) == (20, 17, 14)
