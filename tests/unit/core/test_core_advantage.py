"""Estimators through their bindings, against models of a few lines."""

from __future__ import annotations

import math
import statistics
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline import _core
from trunkline.errors import ArgumentError

PARENTS = [0, 0, 0, 1, 1, 1, 2, 2, 6, 6]
LEAVES = [3, 4, 5, 8, 9, 7]
REWARDS = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0]

REWARD = st.one_of(st.sampled_from([0.0, 1.0, math.nan]), st.floats(-10, 10))
ROWS = st.lists(st.tuples(REWARD, st.integers(0, 3), st.integers(0, 2)), max_size=30)


def near(found: memoryview, expected: list[float]) -> bool:
    return list(found) == pytest.approx(expected, abs=1e-9, nan_ok=True)


def grpo(rewards: list[float], keys: list, eps: float = 1e-6) -> list[float]:
    """GRPO with 0 for a row that is alone, row by row."""
    found = []
    for reward, key in zip(rewards, keys, strict=True):
        group = [r for r, k in zip(rewards, keys, strict=True) if k == key and not math.isnan(r)]
        if math.isnan(reward):
            found.append(reward)
        elif len(set(group)) < 2:
            found.append(0.0)
        else:
            found.append((reward - statistics.fmean(group)) / (statistics.stdev(group) + eps))
    return found


@given(ROWS)
def test_grpo_and_tree_grpo_are_those_of_the_model(rows: list) -> None:
    rewards, groups, subgroups = ([row[i] for row in rows] for i in range(3))
    both = list(zip(groups, subgroups, strict=True))
    inter, intra = grpo(rewards, groups), grpo(rewards, both)
    values, kept = _core.estimate("tree_grpo_inter", rewards, group=groups)
    assert near(values, inter)
    assert list(kept) == [int(not math.isnan(reward)) for reward in rewards]
    assert (values.format, kept.format) == ("d", "B")
    assert near(_core.estimate("trl", rewards, group=groups, eps=1e-6)[0], inter)
    typed = {"group": array("I", groups), "subgroup": array("I", subgroups)}
    total = [a + b for a, b in zip(inter, intra, strict=True)]
    assert near(_core.estimate("tree_grpo", array("d", rewards), **typed)[0], total)
    assert near(_core.group_advantages(rewards, [[groups], [groups, subgroups]])[0], total)
    means = [value / 2 for value in total]
    assert near(_core.group_advantages(rewards, [[groups], [groups, subgroups]], combine="mean")[0], means)


@st.composite
def forests(draw: st.DrawFn) -> tuple[list[int], list[int], list[float]]:
    count = draw(st.integers(1, 15))
    parents = [draw(st.integers(0, node)) for node in range(count)]
    leaves = draw(st.lists(st.integers(0, count - 1), max_size=15))
    return parents, leaves, [draw(REWARD) for _ in leaves]


@given(forests(), st.data())
def test_the_forest_of_steps_has_the_turns_of_every_path(forest: tuple, data: st.DataObject) -> None:
    parents, leaves, _ = forest
    kinds = [data.draw(st.integers(_core.PROMPT, _core.MESSAGE)) for _ in parents]

    def path(parents: list[int], node: int) -> list[int]:
        return [node] if parents[node] == node else [*path(parents, parents[node]), node]

    def steps(nodes: list[int]) -> list[int]:
        return [node for node in nodes if parents[node] == node or kinds[node] == _core.TURN]

    above, ends = map(list, _core.step_forest(parents, kinds, leaves))
    assert [path(above, end) for end in ends] == [steps(path(parents, leaf)) for leaf in leaves]
    turns = [node for node in range(len(parents)) if kinds[node] == _core.TURN]
    assert [path(above, node) for node in turns] == [steps(path(parents, node)) for node in turns]
    with pytest.raises(ArgumentError, match=f"0 kinds where {len(parents)} are needed"):
        _core.step_forest(parents, [], leaves)


@given(forests())
def test_values_of_nodes_are_means_over_the_rollouts_that_pass(forest: tuple) -> None:
    parents, leaves, rewards = forest

    def above(node: int) -> list[int]:
        return [node] if parents[node] == node else [node, *above(parents[node])]

    def value(node: int) -> float:
        scored = [r for leaf, r in zip(leaves, rewards, strict=True) if node in above(leaf) and not math.isnan(r)]
        return statistics.fmean(scored) if scored else math.nan

    values, local, over = _core.node_values(parents, leaves, rewards)
    nodes = range(len(parents))
    assert near(values, [value(node) for node in nodes])
    assert near(local, [value(node) - value(parents[node]) for node in nodes])
    assert near(over, [value(node) - value(above(node)[-1]) for node in nodes])
    hard, kept = _core.estimate("arpo_hard", rewards, parents=parents, leaves=leaves)
    soft, _ = _core.estimate("arpo_soft", rewards, group=[above(leaf)[-1] for leaf in leaves])
    assert near(hard, list(_core.node_values(parents, leaves, soft)[0]))
    assert list(kept) == [int(not math.isnan(value)) for value in hard]


def test_the_backups_are_told_apart() -> None:
    assert list(_core.node_values(PARENTS, LEAVES, REWARDS)[0])[:3] == pytest.approx([0.5, 1 / 3, 2 / 3])
    children = _core.node_values(PARENTS, LEAVES, REWARDS, backup="child_mean")[0]
    assert list(children)[:3] == pytest.approx([5 / 12, 1 / 3, 0.5])
    rewards = [0.0, 0.2, 0.5, 0.8]
    found = _core.node_values([0, 0, 0, 1], [3, 2], rewards, backup="discounted", visits=[3, 2, 1, 1], gamma=0.9)
    assert list(found[0]) == pytest.approx([1.242, 1.32, 0.5, 0.8])


def test_options_change_what_a_preset_does() -> None:
    columns = {"parents": PARENTS, "leaves": LEAVES}
    treepo = {"whiten": "none", "zero_variance": "drop_subgroups"}
    found = _core.estimate("treepo_average", REWARDS, **columns, **treepo)[0]
    assert list(found) == pytest.approx([0.583333, -0.416667, -0.416667, 0.416667, 0.416667, -0.583333], abs=1e-5)
    edges, kept = _core.estimate("spo_rloo", REWARDS, **columns)
    assert list(edges)[1:3] == pytest.approx([-1 / 12, 1 / 12])
    assert list(kept) == [0, 1, 1, 1, 1, 1, 1, 1, 0, 0]
    assert list(_core.estimate("spo_rloo", REWARDS, **columns, drop_zero=False)[1]) == [1] * 10
    signal = _core.estimate("treerl_code", REWARDS, **columns, signal="value", damping="none")[0]
    assert list(signal)[:3] == pytest.approx([0.0, -0.2, 0.2])


def test_steps_have_returns_and_gigpo_adds_both_parts() -> None:
    trajectory, rewards = [1, 1, 1, 2, 2, 3], [0.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    returns = _core.step_returns(rewards, trajectory)
    assert list(returns) == pytest.approx([0.9025, 0.95, 1, 0, 0, 1])
    found, _ = _core.estimate(
        "gigpo_mean",
        [1.0, 1.0, 1.0, 0.0, 0.0, 1.0],
        group=[0] * 6,
        trajectory=trajectory,
        anchor=[0, 1, 2, 0, 1, 0],
        step_rewards=rewards,
    )
    expected = [0.601667, 0.808333, 0.333333, -1.300833, -1.141667, 0.699167]
    assert list(found) == pytest.approx(expected, abs=1e-5)
    assert list(_core.step_returns([1.0, 5.0, 2.0], [4, 4, 4], step=[1, 1, 2], gamma=0.5)) == [2.0, 2.0, 2.0]


def test_masked_rows_get_nothing_and_count_only_if_they_should() -> None:
    columns = {"group": [0, 0, 0], "masked": [False, True, False]}
    values, kept = _core.estimate("dr_grpo", [1.0, 0.0, 0.5], **columns)
    assert (list(values), list(kept)) == ([0.5, 0.0, 0.0], [1, 0, 1])
    values, kept = _core.estimate("dr_grpo", [1.0, 0.0, 0.5], **columns, count_masked=False)
    assert (list(values), list(kept)) == ([0.25, 0.0, -0.25], [1, 0, 1])


def test_no_nan_and_nothing_masked_reaches_a_token() -> None:
    values, mask = _core.to_tokens([1.5, math.nan, 2.0], [0, 2, 3, 5], kept=[1, 1, 0], mask=[1, 0, 1, 1, 1])
    assert (list(values), list(mask)) == ([1.5, 0.0, 0.0, 0.0, 0.0], [1, 0, 0, 0, 0])
    assert [list(column) for column in _core.to_tokens([1.5], [0, 2])] == [[1.5, 1.5], [1, 1]]


def grown() -> _core.Harvest:
    """Two trees: a prompt of two tokens, and two rollouts of three tokens each, of which a model chose two."""
    trees = []
    for rewards in ([1.0, 0.0], [0.0, 0.5]):
        tree = _core.CoreTree()
        prompt = tree.append(0, _core.PROMPT, b"{}", 0, _core.TokenBuffer([7, 8]))
        for draw, reward in enumerate(rewards):
            rollout = tree.open(prompt, [0, draw], draw)
            flags = [_core.SAMPLED, _core.SAMPLED | _core.SYNTHETIC, _core.SAMPLED | _core.TRUNCATED]
            sampled = _core.TokenBuffer([1, 2, draw], [-0.5] * 3, [0] * 3, flags)
            tree.turn(rollout, b"{}", 0, 0, 0, 0, -1, 0, 0, 0, None, None, sampled)
            tree.close(rollout, "answer")
            tree.score(rollout, reward)
        trees.append(tree)
    return _core.harvest(trees)


def test_values_land_on_rollouts_nodes_and_tokens_of_a_harvest() -> None:
    all_ = grown()
    trees = {"parents": all_.parents, "leaves": all_.leaves}
    rows, kept = _core.estimate("dr_grpo", all_.rewards, group=all_.groups)
    assert list(rows) == [0.5, -0.5, -0.25, 0.25]
    nodes, kept = _core.to_nodes(rows, kept=kept, **trees)
    assert list(nodes) == [0.0, 0.0, 0.5, -0.5, 0.0, 0.0, -0.25, 0.25]
    assert list(kept) == [1] * 8
    tokens, mask = _core.to_tokens(nodes, all_.offsets, kept=kept, flags=all_.flags)
    assert list(mask) == ([0, 0] + [1, 0, 1] * 2) * 2
    assert list(tokens) == [0, 0, 0.5, 0, 0.5, -0.5, 0, -0.5, 0, 0, -0.25, 0, -0.25, 0.25, 0, 0.25]
    nodes, kept = _core.estimate("treerl_code", all_.rewards, **trees)
    assert list(nodes) == [0.0, 0.0, 2.0, -2.0, 0.0, 0.0, -1.0, 1.0]
    assert [list(column) for column in _core.to_tokens(nodes, all_.offsets, kept=kept)][1] == [1] * 16


@given(forests(), st.lists(st.booleans(), min_size=15, max_size=15))
def test_nodes_get_the_mean_of_the_rollouts_that_are_kept(forest: tuple, flags: list) -> None:
    parents, leaves, values = forest
    flags = flags[: len(leaves)]
    found, kept = _core.to_nodes(values, parents, leaves, kept=flags)
    chosen = [value if flag else math.nan for value, flag in zip(values, flags, strict=True)]
    assert near(found, list(_core.node_values(parents, leaves, chosen)[0]))
    assert list(kept) == [int(not math.isnan(value)) for value in found]


def test_every_preset_is_listed_with_options_it_takes() -> None:
    table = _core.presets()
    assert list(table) == sorted(table)
    assert {row["lands"] for row in table.values()} == {"rows", "nodes"}
    column = [0] * 6
    for name, row in table.items():
        options = {key: value for key, value in row.items() if key != "lands"}
        values, kept = _core.estimate(
            name,
            REWARDS,
            subgroup=column,
            agent=column,
            anchor=column,
            trajectory=range(6),
            step_rewards=REWARDS,
            parents=PARENTS,
            leaves=LEAVES,
            **options,
        )
        assert len(values) == len(kept) == {"rows": 6, "nodes": 10}[row["lands"]]
        assert not any(math.isnan(value) for value in values)


@pytest.mark.parametrize(
    ("arguments", "columns", "text"),
    [
        (("median", [1.0]), {}, 'preset is "median", and there are arpo_hard'),
        (("trl", [1.0]), {}, "the column group is missing"),
        (("trl", [1.0]), {"group": [0, 0]}, "2 groups where 1 are needed"),
        (("trl", [math.inf]), {"group": [0]}, "reward 0 is inf; it must be between"),
        (("trl", [1.0]), {"group": [0], "gamma": 0.9}, 'an option is "gamma", and there are scopes'),
        (("trl", [1.0]), {"group": [0], "groups": [0]}, 'an option is "groups", and there are scopes'),
        (("trl", [1e300]), {"group": [0]}, "reward 0 is 1"),
        (("spo_rloo", [1.0]), {"eps": 0.5}, 'an option is "eps", and there are count_masked, drop_zero'),
        (("spo_rloo", [1.0]), {"scale": "batch_std"}, 'an option is "scale", and there are count_masked, drop_zero'),
        (("spo_grpo", [1.0]), {"scale": "none"}, 'an option is "scale", and there are ddof, eps, count_masked'),
        (("trl", [1.0]), {"group": [0], "centre": "median"}, 'centre is "median", and there are mean'),
        (("trl", [1.0]), {"group": [0], "centre": 1}, "centre is 1; it must be a string"),
        (("trl", [1.0]), {"group": [0], "eps": "small"}, 'eps is "small"; it must be a number'),
        (("trl", [1.0]), {"group": [0], "eps": math.nan}, "eps is NaN; it must be 0 to 1e100"),
        (("trl", [1.0]), {"group": [0], "drop_zero": 1}, "drop_zero is 1; it must be True or False"),
        (("spo_rloo", [1.0]), {"parents": [0]}, "give both or none"),
        (("spo_rloo", [1.0]), {"parents": [1], "leaves": [0]}, "the parent of node 0 is 1"),
        (("slime", [1.0]), {"group": [7]}, "the group of row 0 has 1 scored observation"),
        (("max_rl", [-1.0, -2.0]), {"group": [0, 0]}, "the group of row 0 has the mean -1.5; it must be positive"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(arguments: tuple, columns: dict, text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        _core.estimate(*arguments, **columns)
    assert text in str(caught.value)


def test_other_calls_refuse_too() -> None:
    with pytest.raises(ArgumentError, match="2 keys of a scope where 1 are needed"):
        _core.group_advantages([1.0], [[[0, 0]]])
    with pytest.raises(ArgumentError, match='backup is "median", and there are leaf_mean'):
        _core.node_values([0], [0], [1.0], backup="median")
    with pytest.raises(ArgumentError, match="visits are given to leaf_mean"):
        _core.node_values([0], [0], [1.0], visits=[1])
    with pytest.raises(ArgumentError, match="step 1 of row 1 comes after step 2"):
        _core.step_returns([0.0, 0.0], [3, 3], step=[2, 1])
    with pytest.raises(ArgumentError, match="1 offsets where 2 are needed"):
        _core.to_tokens([1.0], [0])
    with pytest.raises(ArgumentError, match="1 flags where 2 are needed"):
        _core.to_tokens([1.0], [0, 2], flags=[1])
    with pytest.raises(ArgumentError, match="give one of them"):
        _core.to_tokens([1.0], [0, 1], flags=[1], mask=[1])
    with pytest.raises(ArgumentError, match="2 rewards where 1 are needed"):
        _core.to_nodes([1.0, 2.0], [0], [0])
    with pytest.raises(ArgumentError, match="there is no scope; it must be at least one"):
        _core.group_advantages([1.0], [])
    with pytest.raises(TypeError, match="eps must be a string, a number or a bool"):
        _core.estimate("trl", [1.0], group=[0], eps=[])
    with pytest.raises(TypeError):
        _core.estimate("trl", "1")
