"""Batches: every layout, each way of sharing, against a loop over rollouts; refusals by name."""

from __future__ import annotations

import itertools
import math
from array import array
from collections import defaultdict
from typing import Any

import numpy
import pytest
from groves import said, take, with_ids
from hypothesis import given
from hypothesis import strategies as st

import trunkline as tl
from trunkline._core import PROMPT, TURN, TokenBuffer
from trunkline.errors import ArgumentError, ConfigError, UsageError
from trunkline.scoring import notes
from trunkline.scoring.notes import Verdict
from trunkline.tree.views import Tree
from trunkline.types import Task

ESTIMATORS = ["dr_grpo", "tree_grpo", "spo_rloo", "gigpo_mean"]
"""Values on rollouts, on rollouts over two scopes, on nodes, on turns."""


@st.composite
def trees(draw: st.DrawFn, number: int) -> Tree:
    """A tree whose token ids are unlike: each token is known by its id."""
    tree = Tree(Task.ask("what?", id=f"q{number}"))
    core, ids = tree.core, iter(range(10_000 * number + 1, 10_000 * (number + 1)))

    def given_ids(least: int = 1) -> TokenBuffer:
        return TokenBuffer([next(ids) for _ in range(draw(st.integers(least, 3)))])

    prompt = core.append(0, PROMPT, said("user", "what?"), 0, given_ids())
    agent, model = core.name("agent"), core.name("m")
    points = [prompt]
    for place in range(draw(st.integers(1, 5))):
        point = draw(st.sampled_from(points))
        rollout = core.open(point, [core.node(point).turns, place], draw(st.integers(0, 1)))
        for turn in range(draw(st.integers(0, 3))):
            if core.node(core.rollout(rollout).leaf).kind == TURN:
                core.observe(rollout, said("user", f"seen {place} {turn}"), agent, 1, False, given_ids())
            sampled = [next(ids) for _ in range(draw(st.integers(1, 3)))]
            tokens = TokenBuffer(sampled, [-0.125 * (one % 7) for one in sampled], [one % 3 for one in sampled])
            points.append(take(core, rollout, said("assistant", f"{place} {turn}"), agent, model, tokens))
        core.close(rollout, draw(st.sampled_from(["answer", "max_turns", "tool_error"])))
        if draw(st.booleans()):
            core.score(rollout, draw(st.sampled_from([0.0, 0.5, 1.0])))
    core.check()
    return tree


def features(token: int) -> float:
    return math.sin(token)


def naive(forest: list[Tree], estimator: str) -> dict[tuple[int, int], list[float]]:
    """The advantages with which each turn is trained, one for each rollout that trains it."""
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    for sample in tl.train.turns(forest, estimator=estimator, shared="repeat"):
        if sample.trained:
            found[sample.group, sample.node].append(sample.advantage)
    return found


def own(tree: Tree, node: int) -> list[int]:
    tokens = tree.core.tokens_of(node)
    return [] if tokens is None else list(tokens.ids)


def context(tree: Tree, node: int) -> list[int]:
    return [token for one in tree.core.path(tree.node(node).parent.id) for token in own(tree, one)]


def flat_sum(columns: tl.train.PackedColumns, figure: str = "advantages") -> float:
    loss = numpy.asarray(columns["loss_mask"]) * numpy.asarray(columns[figure], "f8")
    ids = numpy.asarray(columns["responses" if "responses" in columns else "ids"])
    weights = numpy.asarray(columns["weights"], "f8")
    if "responses" in columns:
        weights = weights[:, None]
    elif "subtree_ends" not in columns:
        weights = numpy.repeat(weights, numpy.diff(numpy.asarray(columns["offsets"]).astype(int)))
    return float((loss * weights * numpy.sin(ids.astype("f8"))).sum()) if loss.size else 0.0


def contexts(columns: tl.train.PackedColumns) -> list[tuple[int, list[int]]]:
    """Each trained token of flat rows with the tokens before it."""
    found = []
    ids, mask, offsets = columns["ids"], columns["loss_mask"], columns["offsets"]
    for start, end in zip(offsets, list(offsets)[1:], strict=False):
        found += [(ids[at], list(ids[start:at])) for at in range(start, end) if mask[at]]
    return found


@given(st.integers(1, 3).flatmap(lambda count: st.tuples(*(trees(number) for number in range(count)))), st.data())
def test_every_layout_has_the_loss_of_a_loop_over_rollouts(forest: tuple[Tree, ...], data: st.DataObject):
    forest, estimator = list(forest), data.draw(st.sampled_from(ESTIMATORS))
    advantages = naive(forest, estimator)
    sums = {key: sum(map(features, own(forest[key[0]], key[1]))) for key in advantages}
    before = [tree.digest() for tree in forest]
    kept = data.draw(st.booleans())
    options: dict[str, Any] = {"estimator": estimator, "keep_masked": kept}
    repeat, once = (tl.train.batch(forest, shared=shared, **options) for shared in ("repeat", "once"))
    wanted = {
        "repeat": math.fsum(math.fsum(found) * sums[key] for key, found in advantages.items()),
        "once": math.fsum(math.fsum(found) / len(found) * sums[key] for key, found in advantages.items()),
    }
    gains = {
        "repeat": math.fsum(math.fsum(max(one, 0) for one in found) * sums[key] for key, found in advantages.items()),
        "once": math.fsum(max(math.fsum(found) / len(found), 0) * sums[key] for key, found in advantages.items()),
    }
    samples = tl.train.turns(forest, estimator=estimator, shared="repeat", keep_masked=False)
    untrained = sum(len(tree.rollouts) for tree in forest) - len({(one.group, one.rollout) for one in samples})
    for name, batch in {"repeat": repeat, "once": once}.items():
        for one in (batch, batch.by_turn()):
            assert one.report["untrained"] == untrained
            rows = one.ragged()
            ends = itertools.pairwise(rows["offsets"])
            assert kept or all(any(rows["loss_mask"][start:end]) for start, end in ends), "a row trains something"
            layouts = [one.padded(), one.ragged(), one.tree(), one.ragged(merge=name == "repeat")]
            layouts.append(one.tree(max_tokens=60, oversize="split"))
            for columns in layouts:
                assert flat_sum(columns) == pytest.approx(wanted[name], abs=1e-4), columns
                if "gains" in columns:
                    assert flat_sum(columns, "gains") == pytest.approx(gains[name], abs=1e-4)
            for token, seen in contexts(one.ragged()):
                group = token // 10_000
                (node,) = (key[1] for key in advantages if key[0] == group and token in own(forest[group], key[1]))
                path = context(forest[group], node) + own(forest[group], node)
                assert seen == path[: path.index(token)]
    trained = [token for token, _ in contexts(once.ragged())]
    assert len(trained) == len(set(trained)) == sum(len(own(forest[key[0]], key[1])) for key in advantages)
    assert sorted(trained) == sorted(token for token, _ in contexts(once.by_turn().ragged()))
    assert [tree.digest() for tree in forest] == before


@given(trees(0))
def test_rows_say_which_rollout_they_are_and_hold_its_tokens(tree: Tree):
    batch = tl.train.batch([tree, tree], estimator="dr_grpo", shared="repeat", keep_masked=True)
    assert batch.report["groups"] == 2
    assert len(batch) == batch.report["samples"] == 2 * len(tree.rollouts)
    padded, ragged, wide = batch.padded(pad=9), batch.ragged(), batch.padded(pad=9, dtype="i64")
    for row, (group, number) in enumerate(zip(padded["groups"], padded["rollouts"], strict=True)):
        rollout, sample = tree.rollouts[number], padded["samples"][row]
        assert (batch.groups[sample], batch.rollouts[sample], batch.nodes[sample]) == (group, number, rollout.leaf.id)
        tokens = [token for node in rollout.nodes for token in node.token_ids]
        assert list(padded.unpack(row).ids) == list(ragged.unpack(row).ids) == tokens
        assert padded["lengths"][row] == len(tokens)
        versions = [version for node in rollout.nodes for version in node.weight_version]
        assert list(padded.unpack(row).versions) == versions
        sampled = [mark for node in rollout.nodes for mark in node.mask]
        trained = not math.isnan(rollout.reward) and rollout.termination != tl.Termination.TOOL_ERROR
        start, end = ragged["offsets"][row], ragged["offsets"][row + 1]
        assert list(ragged["loss_mask"][start:end]) == [mark * trained for mark in sampled]
        assert list(ragged["logprobs"][start:end]) == [one for node in rollout.nodes for one in node.logprobs]
    for name, column in wide.items():
        assert column.format == ("q" if padded[name].format in "BIiQ" else "f")
        assert column.shape == padded[name].shape
        assert numpy.array_equal(numpy.asarray(column), numpy.asarray(padded[name]))
        assert numpy.asarray(column).flags.writeable, "torch warns of arrays that it must not write"


def test_trees_without_token_ids_are_refused_by_task_and_turn():
    with pytest.raises(UsageError, match=r'task "small": turn 2 of rollout 0 has no token ids.*tokens=tl.TokenMode'):
        tl.train.batch([with_ids(tokens=None)], estimator="dr_grpo", shared="once")


@pytest.mark.parametrize("missing", ["prompt", "observation", "request"])
def test_a_turn_that_was_asked_with_messages_without_token_ids_is_refused(missing: str):
    tree = Tree(Task.ask("what?", id="part"))
    core = tree.core
    prompt = core.append(0, PROMPT, said("user", "what?"), 0, None if missing == "prompt" else TokenBuffer([1]))
    rollout, agent, model = core.open(prompt, [0, 0]), core.name("agent"), core.name("m")
    first = take(core, rollout, said("assistant", "a"), agent, model, TokenBuffer([2], [-0.5]))
    seen = None if missing == "observation" else TokenBuffer([3])
    core.observe(rollout, said("user", "seen"), agent, 1, False, seen)
    context = core.context([core.fragment(said("user", "else"))]) if missing == "request" else None
    figures = (core.name("stop"), 10, 0, 5, 0, 1, None, context, TokenBuffer([4], [-0.5]))
    second = core.turn(rollout, said("assistant", "b"), agent, model, *figures)
    core.close(rollout, "answer", "b")
    core.score(rollout, 1.0)
    turn = first if missing == "prompt" else second
    with pytest.raises(UsageError, match=f"turn {turn} of rollout 0 was asked with messages without token ids"):
        tl.train.batch([tree], estimator="dr_grpo", shared="repeat")


def test_a_column_that_is_not_there_is_named_with_those_that_are():
    columns = tl.train.batch([with_ids()], estimator="dr_grpo", shared="once").tree()
    with pytest.raises(ConfigError, match=r"there is no column 'advantage'; there are offsets, ids, .*advantages"):
        columns["advantage"]
    assert "advantage" not in columns
    assert set(columns) >= {"ids", "positions", "parents", "loss_mask", "logprobs", "advantages", "weights"}


def test_filters_judge_beside_those_of_the_run_and_write_nothing():
    tree = with_ids()
    notes.note(tree.core, 1, Verdict("run", "drop", "of the run"))

    class First:
        def judge(self, group: tl.Group) -> list[tuple[int, Verdict]]:
            assert [one.filter for one in group.verdicts(group.rollouts[1])] == ["run"]
            return [(0, Verdict("first", "mask"))]

    class Second:
        def judge(self, group: tl.Group) -> list[tuple[int, Verdict]]:
            assert [one.filter for one in group.verdicts(group.rollouts[0])] == ["first"]
            return []

    before = tree.rollouts[0].note
    batch = tl.train.batch([tree], estimator="dr_grpo", shared="repeat", filters=[First(), Second()])
    assert (batch.report["dropped"], batch.report["untrained"]) == (1, 1)
    assert list(batch.ragged()["rollouts"]) == [2]
    assert tree.rollouts[0].note == before

    class Broken:
        def judge(self, group: tl.Group) -> list[tuple[int, Verdict]]:
            raise ValueError("no")

    left = tl.train.batch([tree], estimator="dr_grpo", shared="repeat", filters=[Broken()])
    assert (left.report["groups_left_out"], len(left)) == (1, 0)
    with pytest.raises(ConfigError, match="filters must be a list of filters"):
        tl.train.batch([tree], estimator="dr_grpo", shared="repeat", filters="void")


def test_arrays_of_ones_own_pack_alike_and_a_wrong_column_is_named():
    columns = tl.train.batch([with_ids()], estimator="dr_grpo", shared="repeat").ragged()
    mine = tl.train.pack(
        "ragged",
        ids=columns["ids"],
        offsets=columns["offsets"],
        mask=columns["loss_mask"],
        logprobs=columns["logprobs"],
        versions=columns["versions"],
        values=numpy.array([1 / 3, -2 / 3, 1 / 3]),
    )
    for name in ("ids", "offsets", "loss_mask", "logprobs", "versions", "advantages", "prompt_lengths", "weights"):
        assert list(mine[name]) == list(columns[name]), name
    wide = tl.train.pack("tree", ids=[1, 2, 3], offsets=[0, 3], mask=[0, 1, 1], weights="once", dtype="i64")
    assert wide["ids"].format == "q"
    good: dict[str, Any] = {"ids": array("I", [1]), "offsets": array("Q", [0, 1]), "mask": b"\1"}
    for name, wrong, says in (
        ("ids", numpy.array([1]), "ids: a column holds int64; it must be uint32"),
        ("values", numpy.array([1]), "values: a column holds int64; it must be float32"),
        ("logprobs", numpy.array([0.5]), "logprobs: a column holds float64; it must be float32"),
        ("offsets", numpy.array([[0, 1]], "u8"), "offsets: a column of uint64 has 2 dimensions"),
        ("masked", ["no"], "masked: "),
        ("mask", [2], "mask must be 1 on tokens that were sampled"),
    ):
        with pytest.raises(ArgumentError, match=says):
            tl.train.pack("ragged", **good | {name: wrong})
    with pytest.raises(
        ConfigError, match="the layout tree has no option 'merge'; it has max_tokens, oversize, weights"
    ):
        tl.train.pack("tree", **good, merge=True)
    with pytest.raises(ArgumentError, match="group: a column holds float64; it must be uint32"):
        tl.train.estimate("verl_grpo", [1.0, 0.0], group=numpy.array([0.0, 0.0]))
    values, kept = tl.train.estimate("dr_grpo", numpy.array([1.0, 0.0]), group=numpy.array([0, 0], "u4"))
    assert (list(values), list(kept)) == ([0.5, -0.5], [1, 1])
    assert tl.train.presets()["dr_grpo"]["lands"] == "rows"
    with pytest.raises(ConfigError, match="shared"):
        tl.train.batch([with_ids()], estimator="dr_grpo", shared="twice")  # type: ignore[arg-type]


def test_an_estimator_of_ones_own_takes_the_trajectories_of_a_group_that_count():
    tree, other = with_ids(), with_ids()
    notes.note(other.core, 1, Verdict("own", "mask", "not now", count_in_baseline=False))
    seen: list[list[int]] = []

    def centred(trajectories: list[tl.Trajectory]) -> list[float | None]:
        seen.append([trajectory.id for trajectory in trajectories])
        mean = sum(trajectory.reward for trajectory in trajectories) / len(trajectories)
        return [numpy.float32(trajectory.reward - mean) if trajectory.id else None for trajectory in trajectories]

    batch = tl.train.batch([tree, other], estimator=centred, shared="repeat", keep_masked=True)
    assert seen == [[0, 1, 2], [0, 2]]
    ragged = batch.ragged()
    firsts = [at - 1 for at in list(ragged["offsets"])[1:]]
    assert [round(ragged["advantages"][at], 6) for at in firsts] == [0, -0.666667, 0.333333, 0, 0, 0]
    assert [ragged["loss_mask"][at] for at in firsts] == [0, 1, 1, 0, 0, 1]
    (sample,) = [one for one in tl.train.turns([tree], estimator=centred, shared="once") if one.rollout == 2]
    assert (round(sample.advantage, 6), sample.trained) == (0.333333, True)
    for wrong, says in (
        (lambda _: [1.0], 'returned 1 advantages for the 3 rollouts of task "small"'),
        (lambda _: ["1", 2, 3], "the estimator returned '1': an advantage is a finite number"),
        (lambda _: [math.inf, 2, 3], "the estimator returned inf"),
    ):
        with pytest.raises(ConfigError, match=says):
            tl.train.batch([tree], estimator=wrong, shared="once")
    with pytest.raises(ConfigError, match=r"options belong to presets.*leave gamma out"):
        tl.train.batch([tree], estimator=centred, shared="once", gamma=0.5)


def test_settings_are_checked_where_there_is_no_tree_too():
    for preset in tl.train.presets():
        empty = tl.train.batch([], estimator=preset, shared="repeat")
        assert (len(empty), len(empty.ragged()["ids"]), len(empty.by_turn().tree()["ids"])) == (0, 0, 0)
        wide = (empty.padded(dtype="i64"), empty.ragged(dtype="i64"), empty.tree(dtype="i64"))
        assert {column.format for columns in wide for column in columns.values()} == {"q", "f"}
        with pytest.raises(ArgumentError, match='an option is "nonsense"'):
            tl.train.batch([], estimator=preset, shared="repeat", nonsense=1)
