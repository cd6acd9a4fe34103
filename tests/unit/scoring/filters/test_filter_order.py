"""How filters judge a group: in which order, and what becomes of one that breaks."""

from __future__ import annotations

import json
import logging

import pytest
from groves import Try, group, grove

from trunkline import filters
from trunkline.errors import ConfigError
from trunkline.scoring import notes
from trunkline.scoring.filters.base import Group, check, judge, name_of
from trunkline.scoring.notes import Verdict
from trunkline.tree.views import Tree

VOID_AND_EQUAL = [Try(["a"], 1.0), Try(["b"], 1.0), Try([""], 0.0)]


def judged(tree: Tree, *given: object) -> list[list[tuple[str, str]]]:
    judge(check(list(given), scored=True), group(tree))
    return [[(one.filter, one.action) for one in notes.read(rollout.note)] for rollout in tree.rollouts]


@pytest.mark.parametrize("turned", [False, True])
def test_masks_come_before_the_test_of_variance_in_whatever_order_they_are_given(turned: bool):
    given = [filters.VoidTurns(), filters.ZeroVariance()]
    found = judged(grove(VOID_AND_EQUAL), *(given[::-1] if turned else given))
    drop = ("zero_variance", "drop")
    assert found == [[drop], [drop], [("void_turns", "mask"), drop]], "without the void one, all rewards are 1"


def test_without_the_mask_the_same_group_is_kept():
    assert judged(grove(VOID_AND_EQUAL), filters.ZeroVariance()) == [[], [], []]


def test_a_rollout_that_was_dropped_is_not_judged_again():
    tries = [Try([""], 0.0, "max_tokens"), Try(["a"], 1.0, "max_tokens")]
    found = judged(grove(tries), filters.VoidTurns(action="drop"), filters.OverlongMask())
    assert found == [[("void_turns", "drop")], [("overlong_mask", "mask")]]


def test_what_a_strategy_did_not_keep_is_not_compared():
    tree = grove([Try(["a"], 1.0), Try(["b"], 1.0), Try(["c"], 0.0)])
    notes.note(tree.core, 2, Verdict("TreeGRPO", "drop"))
    drop = ("zero_variance", "drop")
    assert judged(tree, filters.ZeroVariance()) == [[drop], [drop], [("TreeGRPO", "drop"), drop]]


class Raising:
    def judge(self, group: Group):
        yield 0, Verdict("mine", "drop")
        raise RuntimeError("no\x1b[2J luck")


class Leaving(Raising):
    def judge(self, group: Group):
        raise SystemExit(3)


class Wrong:
    name = "wrong"

    def __init__(self, entry: object) -> None:
        self.entry = entry

    def judge(self, group: Group):
        return [self.entry]


class Odd(Verdict, frozen=True):
    """A verdict that no note can hold."""

    extra: object = None


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (Wrong((0, Odd("a", "mask", extra=object()))), "TypeError: Encoding objects of type object"),
        (Raising(), "RuntimeError: no\\x1b[2J luck"),
        (Leaving(), "SystemExit: 3"),
        (Wrong((7, Verdict("a", "mask"))), "must yield (rollout id, Verdict)"),
        (Wrong((True, Verdict("a", "mask"))), "must yield (rollout id, Verdict)"),
        (Wrong((-1, Verdict("a", "mask"))), "must yield (rollout id, Verdict)"),
        (Wrong((0, "mask")), "must yield (rollout id, Verdict)"),
        (Wrong(None), "must yield (rollout id, Verdict)"),
    ],
)
def test_a_filter_that_breaks_leaves_the_tree_as_it_was_and_is_reported(
    broken: filters.Filter, says: str, caplog: pytest.LogCaptureFixture
):
    tree = grove(VOID_AND_EQUAL)
    tree.core.note(1, "kept")
    digest = tree.digest()
    with caplog.at_level(logging.WARNING, "trunkline.scoring"):
        judge(check([filters.VoidTurns(), broken, filters.ZeroVariance()], scored=True), group(tree))
    (failed,) = notes.read(tree.rollouts[0].note)
    assert (failed.filter, failed.action) == (name_of(broken), "failed")
    assert says in failed.reason
    assert tree.rollouts[1].note == "kept"
    assert tree.rollouts[2].note is None, "what the filter before it said is taken back"
    assert tree.digest() == digest
    assert says in caplog.text
    assert "left unjudged" in caplog.text
    tree.core.check()


def test_an_empty_tree_has_nobody_to_note_a_word_on():
    tree = grove([])
    judge([filters.ZeroVariance(), Raising()], group(tree))
    assert tree.core.rollouts == 0
    tree.core.check()


class Twice:
    def judge(self, group: Group):
        yield 1, Verdict("first", "mask")
        yield 0, Verdict("first", "mask")
        yield 1, Verdict("second", "penalty", amount=-1.0)


def test_a_filter_may_say_several_things_of_one_rollout():
    found = judged(grove(VOID_AND_EQUAL), Twice())
    assert found == [[("first", "mask")], [("first", "mask"), ("second", "penalty")], []]


class Plain:
    def judge(self, group: Group):
        for rollout in group.live:
            if rollout.answer == "b":
                yield rollout.id, Verdict("plain", "penalty", "b", amount=-0.5)


def test_a_filter_of_ones_own_is_five_lines():
    tree = grove(VOID_AND_EQUAL)
    assert judged(tree, Plain()) == [[], [("plain", "penalty")], []]
    assert json.loads(tree.rollouts[1].note or "")[0]["amount"] == -0.5


@pytest.mark.parametrize(
    ("given", "scored", "says"),
    [
        (filters.VoidTurns(), True, "filters must be a list of filters"),
        ("dapo", True, "filters must be a list of filters"),
        ([3], True, r"filters\[0\] must have judge\(group\), which 3 lacks"),
        ([filters.VoidTurns], True, r"filters\[0\] must have judge\(group\)"),
        ([filters.ZeroVariance()], False, "filter zero_variance compares rewards, and the run has none"),
    ],
)
def test_what_is_no_filter_is_refused_before_the_run(given: object, scored: bool, says: str):
    with pytest.raises(ConfigError, match=says):
        check(given, scored=scored)


def test_filters_of_ones_own_come_in_the_order_given_and_those_of_whole_groups_last():
    whole, first, second = filters.SkyRL(), Plain(), filters.VoidTurns()
    assert check([whole, first, second], scored=True) == (first, second, whole)
