"""Mistakes in the settings of batches: each is an error that names the setting, and none a traceback of the inside."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from groves import with_ids

import trunkline as tl
from trunkline.errors import ArgumentError, ConfigError
from trunkline.scoring import notes
from trunkline.scoring.notes import Verdict
from trunkline.train.prime import training_samples
from trunkline.tree.views import Tree
from trunkline.types import Task

SETTINGS: dict[str, Any] = {"estimator": "dr_grpo", "shared": "repeat"}


@pytest.mark.parametrize(
    ("layout", "options", "says"),
    [
        ("padded", {"max_response": 1}, "response .* 1"),
        ("ragged", {"max_prompt": 1}, "prompt"),
        ("tree", {"max_tokens": 1}, "the path to node"),
        ("padded", {"max_prompt": -1}, "max_prompt: a number is out of range"),
        ("padded", {"max_prompt": "x"}, "max_prompt"),
        ("padded", {"pad": None}, "pad"),
        ("ragged", {"merge": "yes"}, "merge"),
        ("ragged", {"long_prompt": "x"}, 'long_prompt is "x"'),
        ("tree", {"oversize": "x"}, 'oversize is "x"'),
    ],
)
def test_a_layout_says_which_limit_or_option_does_not_fit(layout: str, options: dict[str, Any], says: str):
    batch = tl.train.batch([with_ids()], **SETTINGS)
    for one in (batch, batch.by_turn()):
        with pytest.raises(ArgumentError, match=says):
            getattr(one, layout)(**options)


@pytest.mark.parametrize("name", ["group", "rewards", "preset", "masked", "parents", "step_rewards", "lands", "nope"])
def test_a_column_of_an_estimator_is_no_option_of_a_preset(name: str):
    with pytest.raises(ArgumentError, match=f'an option is "{name}", and there are scopes, unit, centre'):
        tl.train.batch([with_ids()], **SETTINGS, **{name: 1})
    with pytest.raises(ArgumentError, match="scopes must be a string"):
        tl.train.batch([with_ids()], **SETTINGS, scopes=None)


@pytest.mark.parametrize(
    "returned",
    [None, 1.0, {0: 1.0, 1: 1.0, 2: 1.0}, {1.0, 2.0, 3.0}, [object()] * 3, [10**400] * 3, [1j] * 3, numpy.ones((3, 1))],
    ids=lambda value: type(value).__name__,
)
def test_an_estimator_of_ones_own_that_returns_something_else_is_refused(returned: Any):
    with pytest.raises(ConfigError, match="the estimator returned"):
        tl.train.batch([with_ids()], estimator=lambda _: returned, shared="once")


@pytest.mark.parametrize("run", [None, with_ids(), "run.db", [1]], ids=lambda value: type(value).__name__)
def test_what_is_no_run_is_refused(run: Any):
    for take in (tl.train.batch, tl.train.turns):
        with pytest.raises(ConfigError, match="give a run, or a list of trees"):
            take(run, **SETTINGS)
    with pytest.raises(ConfigError, match="give a run, or a list of trees"):
        training_samples(run, estimator="dr_grpo")


def test_samples_that_are_not_trained_are_refused():
    with pytest.raises(ConfigError, match="estimator must be a preset or a function"):
        training_samples([with_ids()], estimator=None)  # type: ignore[arg-type]


def test_a_column_that_is_not_there_has_a_default():
    columns = tl.train.batch([with_ids()], **SETTINGS).ragged()
    assert columns.get("gains") is None
    assert columns.get("gains", 1) == 1
    assert columns.get("ids") is columns["ids"]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("mask", 3),
        ("mask", None),
        ("mask", "01"),
        ("mask", numpy.array([0, 1])),
        ("mask", [numpy.array([0, 1])]),
        ("offsets", 5),
        ("offsets", None),
        ("parents", 5),
        ("ids", None),
    ],
)
def test_a_column_of_ones_own_that_cannot_be_read_is_named(name: str, wrong: Any):
    good: dict[str, Any] = {"ids": [1, 2], "offsets": [0, 2], "mask": [0, 1]}
    with pytest.raises(ArgumentError, match=name):
        tl.train.pack("ragged", **good | {name: wrong})


@pytest.mark.parametrize("estimator", ["dr_grpo", "spo_rloo", "gigpo_mean"])
@pytest.mark.parametrize("shared", ["repeat", "once"])
def test_a_run_of_which_nothing_is_left_has_empty_layouts(estimator: str, shared: Any):
    empty = Tree(Task.ask("what?", id="empty"))
    dropped = with_ids()
    for number in range(3):
        notes.note(dropped.core, number, Verdict("all", "drop"))
    for run in ([], [empty], [empty, dropped]):
        batch = tl.train.batch(run, estimator=estimator, shared=shared)
        assert len(batch) == 0
        for one in (batch, batch.by_turn()):
            for columns in (one.padded(), one.ragged(), one.tree()):
                assert len(columns["loss_mask"]) == 0, columns
                assert all(column is not None for column in columns.values())


def test_a_column_that_is_written_to_changes_no_batch():
    batch = tl.train.batch([with_ids()], **SETTINGS)
    for name in ("groups", "rollouts"):
        batch.tree()[name][0] = 77
        assert batch.tree()[name][0] == 0
    assert (batch.groups[0], batch.rollouts[0]) == (0, 0)


def test_turns_read_each_path_once(monkeypatch: pytest.MonkeyPatch):
    read: list[int] = []
    of = tl.train.turns.__globals__["turns_of"]
    monkeypatch.setitem(tl.train.turns.__globals__, "turns_of", lambda *given: read.append(given[1]) or of(*given))
    assert len(list(tl.train.turns([with_ids()], estimator="dr_grpo", shared="once"))) == 3
    assert read == [0, 1, 2]
