"""Drops and verdicts: what is left out of training is noted on the rollout, and on nothing that is not there."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from scripted import Say, grow

from trunkline import train
from trunkline._core import PROMPT, ROOT, CoreTree
from trunkline.errors import ConfigError, StrategyError
from trunkline.scoring.notes import Verdict, dropped, note, read
from trunkline.strategies.base import Drop, Fork, Move, View
from trunkline.strategies.tree_grpo import TreeGRPO


def answers(conversation: list[dict], seed: int) -> Say:
    return Say(f"{seed}", final=True)


class Dropping:
    """Two chains, of which it drops some when they have ended."""

    def __init__(self, *dropped: int, at_start: bool = False) -> None:
        self.dropped = dropped
        self.at_start = at_start

    def rollouts(self) -> int:
        return 2

    def start(self, view: View) -> Iterable[Move]:
        yield Fork(n=2)
        if self.at_start:
            yield Drop(0)

    def ended(self, view: View) -> Iterable[Move]:
        for number in self.dropped:
            yield Drop(number, f"dull {number}")


async def test_a_dropped_rollout_stays_in_the_tree_with_the_strategys_word_on_it():
    tree, _ = await grow(Dropping(1), answers, reward=lambda _: 1.0)
    assert read(tree.rollouts[0].note) == []
    assert read(tree.rollouts[1].note) == [Verdict("Dropping", "drop", "dull 1")]
    assert tree.rollouts[1].reward == 1.0
    plain, _ = await grow(Dropping(), answers, reward=lambda _: 1.0)
    assert tree.digest() == plain.digest(), "a note is in no digest"


async def test_a_rollout_that_is_not_there_cannot_be_dropped():
    with pytest.raises((StrategyError, ExceptionGroup)) as caught:
        await grow(Dropping(2), answers)
    assert "there is no rollout 2" in repr(caught.value)


async def test_nothing_can_be_dropped_at_the_start():
    with pytest.raises((ConfigError, ExceptionGroup)) as caught:
        await grow(Dropping(at_start=True), answers)
    assert "yields Drop in start()" in repr(caught.value)


@pytest.mark.parametrize(
    ("options", "says"), [({"rollout": -1}, "rollout"), ({"rollout": 0, "reason": 3}, "reason must be a string")]
)
def test_a_drop_says_what_it_cannot_be(options: dict, says: str):
    with pytest.raises(ConfigError, match=f"Drop: {says}"):
        Drop(**options)


def test_verdicts_stand_behind_each_other_and_come_back_as_they_were():
    core = CoreTree()
    core.open(core.append(ROOT, PROMPT, b'{"role":"user","content":"q"}'), (0, 0))
    first = Verdict("void", "mask", 'said "nothing"\n\u202e', count_in_baseline=True)
    second = Verdict("overlong", "drop")
    note(core, 0, first)
    note(core, 0, second)
    assert read(core.rollout(0).note) == [first, second]
    assert read(None) == read("") == []


async def test_views_train_the_leaves_that_were_kept_and_figures_count_all_of_them():
    tree, _ = await grow(TreeGRPO(trees=2, forks=3, rounds=1, keep=2), answers, reward=lambda one: float(one.id))
    kept = [rollout.id for rollout in tree.rollouts if not dropped(read(rollout.note))]
    assert len(kept) == 4, "M K"
    samples = list(train.turns([tree], estimator="dr_grpo", shared="repeat"))
    assert [sample.rollout for sample in samples] == kept
    mean = sum(kept) / 4
    assert [sample.advantage for sample in samples] == [number - mean for number in kept], "the baseline is theirs"
    assert tree.reward == 3.5, "the mean of 0 to 7"
    (pair,) = train.pairs([tree])
    assert (pair.chosen_value, pair.rejected_value) == (kept[-1], kept[0])
