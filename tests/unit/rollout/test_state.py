"""A rollout that forks in the middle has the state of its fork point: by snapshot, by replay, or not at all.

One chain writes a, b and c into a notebook that begins with the task's id, q; what forks from it writes x.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from forking import Late, words, written
from notebook import Clock, Liar, Notebook, Paper, account, forget, look, look_and_sign, look_and_tell, look_in_a_thread
from scripted import Say, grow

from trunkline._core import OBSERVATION, base_seed
from trunkline.scoring.notes import Verdict, note, noted, read, replays
from trunkline.store.derive import rows, taken
from trunkline.strategies.base import Fork
from trunkline.strategies.chain import Chain
from trunkline.types import Termination, Usage

CHAIN = ["write a", "write b", "write c"]
PASSED = ["write a", "snapshot", "write b", "snapshot", "write c", "snapshot"]


async def forked(environment: object, *turns: int, tool: Any = look, script: Any = words, **options: Any):
    """Grow a chain and forks of it; returns the tree, and what was done to environments for each."""
    forget()
    strategy = Late(*turns, **options)
    tree, _ = await grow(strategy, script, tools=[tool], environment=environment)
    return tree, account()


@pytest.mark.parametrize("tool", [look, look_in_a_thread])
@pytest.mark.parametrize("environment", [Notebook, Paper])
async def test_a_fork_has_the_state_of_its_point_and_not_of_what_came_after(environment, tool):
    tree, _ = await forked(environment, 1, 2, 3, 0, tool=tool)
    assert written(tree, 0) == ["q a", "q a b", "q a b c"]
    assert [written(tree, rollout)[-1] for rollout in (1, 2, 3, 4)] == ["q a x", "q a b x", "q a b c x", "q x"]
    assert [rollout.usage.tools for rollout in tree.rollouts] == [3, 1, 1, 1, 1], "what was replayed is no call"
    assert all(rollout.termination is Termination.ANSWER for rollout in tree.rollouts)


async def test_by_snapshot_and_by_replay_the_trees_are_the_same():
    snapped, done = await forked(Notebook, 2)
    assert done == ["fresh", *PASSED, "close", "restore", "write x", "snapshot", "close"]
    replayed, done = await forked(Paper, 2)
    assert done == ["fresh", *CHAIN, "close", "fresh", "write a", "write b", "write x", "close"]
    assert snapped.digest() == replayed.digest()


async def test_a_call_that_is_replayed_is_the_call_that_it_was():
    tree, done = await forked(Paper, 2, tool=look_and_sign)
    assert done[-5:] == ["fresh", "write a", "write b", "write x", "close"]
    assert [rollout.termination for rollout in tree.rollouts] == [Termination.ANSWER] * 2
    assert written(tree, 1)[1].split()[:5] == ["q", "a", "b", "0", "1"], "of the rollout that made it first"
    assert written(tree, 1)[2].split()[4:6] == ["1", "2"]


async def test_who_forks_at_the_prompt_only_pays_for_no_snapshot():
    forget()
    await grow(Chain(1), words, tools=[look], environment=Notebook)
    assert account() == ["fresh", *CHAIN, "close"]


async def test_what_is_said_at_the_fork_does_not_change_the_state():
    tree, done = await forked(Notebook, 1, say="think again")
    assert written(tree, 1) == ["q a", "q a x"]
    assert done.count("restore") == 1


class OneStep:
    """Three steps, each taken by a rollout of its own that is cut off after it."""

    def rollouts(self) -> int:
        return 3

    def start(self, view):
        yield Fork(steps=1)

    def ended(self, view):
        if len(view.tree.rollouts) < 3:
            yield Fork(view.rollouts[0].leaf.id, steps=1)


@pytest.mark.parametrize(("environment", "brought"), [(Notebook, 2), (Paper, 0)])
async def test_who_goes_on_where_another_was_cut_off_has_its_state(environment, brought):
    forget()
    tree, _ = await grow(OneStep(), lambda conversation, seed: Say(str(len(conversation))), tools=[look],
                         environment=environment)  # fmt: skip
    assert [rollout.termination for rollout in tree.rollouts] == [Termination.CENSORED] * 3
    assert written(tree, 2) == ["q 1", "q 1 3", "q 1 3 5"]
    assert account().count("restore") == brought


class OnTop(Late):
    """Takes up an earlier tree where its first rollout was after two turns."""

    def start(self, view):
        yield Fork([node.id for node in view.tree.rollouts[0].nodes if node.kind == OBSERVATION][1])

    def ended(self, view):
        return []


async def test_an_earlier_tree_has_no_snapshots_and_is_replayed():
    earlier, _ = await forked(Notebook, 2)
    forget()
    tree, _ = await grow(OnTop(), words, tools=[look], environment=Notebook, core=earlier.core)
    assert account() == ["fresh", "write a", "write b", "write x", "snapshot", "close"]
    assert written(tree, 2) == ["q a", "q a b", "q a b x"]
    assert tree.rollouts[2].note == "tool calls replayed: 2"
    assert tree.rollouts[2].usage.tools == 1


async def test_who_goes_on_keeps_what_was_noted_before_and_counts_each_replay():
    earlier, _ = await forked(Notebook, 2)
    core = earlier.core
    point = [node.id for node in earlier.rollouts[0].nodes if node.kind == OBSERVATION][1]
    path, turn, draw, subgroup = core.state(point)
    growing = core.open(point, (*path, turn, draw), subgroup)
    dropped = Verdict("mine", "drop", "tool calls replayed: 900")
    note(core, growing, noted(7), dropped, "of which tool calls replayed: 30")
    forget()
    tree, _ = await grow(OnTop(), words, tools=[look], environment=Notebook, core=core)
    account()
    said = tree.rollouts[growing].note
    assert read(said) == [dropped]
    assert replays(said) == 7 + 2, "a reason is no remark of ours"
    assert rows(core)[1][growing].note == said
    assert taken(core, 1).replayed == 7 + 2 + 2, "the one that was forked now, too"


async def test_a_record_with_more_observations_than_calls_is_refused():
    earlier, _ = await forked(Notebook, 2)
    core = earlier.core
    state = next(node.id for node in earlier.rollouts[0].nodes if node.kind == OBSERVATION)
    path, turn, draw, subgroup = core.state(state)
    odd = core.open(state, (*path, turn, draw), subgroup)
    called = core.message(earlier.rollouts[0].nodes[3].id)
    core.turn(odd, called, 0, 0, 0, -1, -1, -1, 0, 0)
    for _ in range(2):
        core.observe(odd, b'{"role":"tool","tool_call_id":"x","content":"q a b"}', 0, 0, False)
    forget()
    tree, _ = await grow(OnTop(), words, tools=[look], environment=Notebook, core=core)
    account()
    refused = tree.rollouts[odd]
    assert (refused.termination, refused.error.kind) == (Termination.CANCELLED, "ForkRefused")
    assert refused.error.message == "turn 1 has 1 calls and 2 observations"


class Twice:
    """Forks the first rollout after its first step and after its third, while it goes on."""

    stepwise = True

    def rollouts(self) -> int:
        return 3

    def start(self, view):
        yield Fork()

    def stepped(self, view):
        yield from (Fork(rollout.leaf.id) for rollout in view.rollouts if rollout.id == 0 and rollout.turns in {1, 3})


async def test_what_was_passed_in_a_later_round_was_used_later_whoever_passed_it():
    forget()
    tree, _ = await grow(Twice(), words, tools=[look], environment=type("One", (Notebook,), {"snapshots": 1}))
    assert account().count("restore") == 2
    assert [written(tree, rollout)[-1] for rollout in range(3)] == ["q a b c", "q a x", "q a b c x"]


@pytest.mark.parametrize(
    ("limits", "turns", "brought"),
    [
        ({"snapshots": 0}, 3, ["fresh", "write a", "write b", "write c"]),
        ({"snapshots": 1}, 3, ["restore"]),
        ({"snapshots": 1}, 2, ["fresh", "write a", "write b"]),
        ({"snapshots": 2}, 2, ["restore"]),
        ({"snapshots": 2}, 1, ["fresh", "write a"]),
        # ["q", "a"] is 10 bytes long, ["q", "a", "b"] 15, and ["q", "a", "b", "c"] 20.
        ({"snapshot_bytes": 35}, 2, ["restore"]),
        ({"snapshot_bytes": 34}, 2, ["fresh", "write a", "write b"]),
        ({"snapshot_bytes": 19}, 3, ["restore", "write c"]),
    ],
)
async def test_of_snapshots_so_many_are_kept_and_the_rest_is_replayed(limits, turns, brought):
    tree, done = await forked(type("Small", (Notebook,), limits), turns)
    begun = done.index("close") + 1
    assert done[begun : begun + len(brought) + 1] == [*brought, "write x"]
    assert written(tree, 1)[-1] == " ".join(["q", *"abc"[:turns], "x"])


async def test_of_rollouts_that_share_a_state_the_first_one_s_snapshot_is_taken():
    class Numbered(Notebook):
        """Has something that no observation tells; the snapshot of the first one comes last."""

        made = 0

        async def fresh(self, task):
            await super().fresh(task)
            self.hidden = type(self).made
            type(self).made += 1

        async def snapshot(self):
            for _ in range(30 - 10 * self.hidden):
                await asyncio.sleep(0)
            taken.append(self.hidden)
            return self.hidden, await super().snapshot()

        async def restore(self, snapshot):
            self.hidden, words = snapshot
            restored.append(self.hidden)
            await super().restore(words)

    def script(conversation: list[dict], seed: int) -> Say:
        """All chains write a and answer; forks of the first one write x."""
        if len(conversation) == 1:
            return Say("a")
        return Say("yes", final=True) if len(conversation) > 3 or seed in ends else Say("x")

    ends = {base_seed(7, "q", (0, draw), 1) for draw in range(3)}
    restored: list[int] = []
    taken: list[int] = []
    tree, _ = await forked(Numbered, 1, chains=3, n=2, script=script)
    assert len({rollout.nodes[2].id for rollout in tree.rollouts}) == 1, "one state"
    assert taken[:3] == [2, 1, 0]
    assert restored == [0, 0]


@pytest.mark.parametrize(
    ("environment", "tool", "reason"),
    [
        (Clock, look, "there is no snapshot to go back to, and calls of look on Clock must not run again"),
        (Paper, look_and_tell, "there is no snapshot to go back to, and calls of look on Paper must not run again"),
        (Liar, look, "call 0 of turn 0 (look), run again, says 'q a at "),
    ],
)
async def test_a_fork_whose_state_cannot_be_had_is_refused_and_recorded(environment, tool, reason, caplog):
    forget()
    strategy = Late(1, 2, 0, n=2)
    with caplog.at_level(logging.WARNING):
        tree, llm = await grow(strategy, words, tools=[tool], environment=environment)
    account()
    refused = tree.rollouts[1:5]
    assert [rollout.termination for rollout in refused] == [Termination.CANCELLED] * 4
    assert {rollout.error.kind for rollout in refused} == {"ForkRefused"}
    assert all(rollout.error.message.startswith(reason) for rollout in refused)
    assert all(rollout.usage == Usage() and rollout.leaf == rollout.point for rollout in refused)
    assert all(rollout.termination is Termination.ANSWER for rollout in tree.rollouts[5:]), (
        "at the prompt nothing is missed"
    )
    assert strategy.seen == [[0], [1, 2, 3, 4, 5, 6]], "hooks see them as ended"
    assert len(caplog.records) == 1, "a warning, once"
    assert len(llm.asked) == 4 + 2 * 2


async def test_what_cannot_be_replayed_still_forks_by_snapshot():
    class Dated(Clock, Notebook):
        pass

    tree, _ = await forked(Dated, 1)
    assert [text.split(" at ")[0] for text in written(tree, 1)] == ["q a", "q a x"]


async def test_a_difference_is_shown_from_where_it_begins_and_escaped():
    tree, _ = await forked(Liar, 1, script=lambda *given: words(*given, own=["\x1b[31m\u202e" + "w" * 900]))
    refused = tree.rollouts[1].error.message
    assert refused.isprintable()
    assert len(refused) < 400
    assert "(from character 8" in refused, "near the end of a long text"
    tree, _ = await forked(Liar, 1, script=lambda *given: words(*given, own=["\x1b[31m\u202ehim"]))
    refused = tree.rollouts[1].error.message
    assert "says 'q \\x1b[31m\\u202ehim at " in refused
    assert "where the record says 'q \\x1b[31m\\u202ehim at " in refused
