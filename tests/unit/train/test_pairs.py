"""Pairs of siblings: by hand on small trees, and against a loop over all turns."""

from __future__ import annotations

import json
import math
from itertools import combinations

import pytest
from groves import D6, E6, Try, grove
from hypothesis import given
from hypothesis import strategies as st

import trunkline as tl
from trunkline.errors import ConfigError, UsageError
from trunkline.scoring import notes
from trunkline.scoring.notes import Verdict


def text(raw: object) -> str:
    return json.loads(bytes(raw))["content"]


def figures(pair: tl.train.Pair) -> tuple:
    return pair.chosen_value, pair.rejected_value, pair.chosen_visits, pair.rejected_visits


def told(pairs: object) -> list[tuple]:
    return [
        (
            p.depth,
            text(p.chosen),
            text(p.rejected),
            p.chosen_value,
            p.rejected_value,
            p.chosen_visits,
            p.rejected_visits,
        )
        for p in pairs
    ]


def test_every_state_with_turns_of_different_value_gives_a_pair_of_its_best_and_worst():
    # V(A) = 1/3, V(B) = 2/3 over three rollouts each; A1 = 1 over A2 = 0; B1 = 1 over two rollouts, B2 = 0
    assert told(tl.train.pairs([grove(D6)])) == [
        (0, "B", "A", 2 / 3, 1 / 3, 3, 3),
        (1, "A1", "A2", 1.0, 0.0, 1, 1),
        (1, "B1", "B2", 1.0, 0.0, 2, 1),
    ]


def test_or_all_pairs_of_different_value():
    assert told(tl.train.pairs([grove(D6)], which="all"))[1:3] == [
        (1, "A1", "A2", 1.0, 0.0, 1, 1),
        (1, "A1", "A3", 1.0, 0.0, 1, 1),
    ]
    # three of reward 1 (a, d, e) against three of 0 (b, c, f)
    assert len(list(tl.train.pairs([grove(E6)], which="all"))) == 9
    assert len(list(tl.train.pairs([grove(E6)], which="all", most=4))) == 4


def test_the_rounding_of_a_mean_is_no_preference():
    # (.1 + .1 + .1) / 3 is .10000000000000002
    tries = [*(Try(["a", name], 0.1) for name in "xyz"), Try(["b"], 0.1)]
    assert list(tl.train.pairs([grove(tries)], which="all")) == []
    assert list(tl.train.pairs([grove(tries)])) == []


def test_turns_that_say_the_same_are_one():
    # a ladder of temperatures: "a" was drawn at three, which are three nodes; (1 + 0 + 1) / 3 against 0
    rewards = [("a", 1.0), ("a", 0.0), ("a", 1.0), ("b", 0.0), ("c", math.nan), ("c", math.nan)]
    tries = [Try([name], reward, sampling=place) for place, (name, reward) in enumerate(rewards)]
    tree = grove(tries)
    assert len(tree.core.children(1)) == 6
    assert told(tl.train.pairs([tree], which="all")) == [(0, "a", "b", 2 / 3, 0.0, 3, 1)]
    assert told(tl.train.pairs([tree], which="all", min_visits=2)) == []
    assert [pair.chosen_node for pair in tl.train.pairs([tree])] == [2], "the one that came first stands for it"


def test_small_margins_and_few_visits_are_left_out():
    assert [p[0] for p in told(tl.train.pairs([grove(D6)], min_margin=0.5))] == [1, 1]
    assert [p[0] for p in told(tl.train.pairs([grove(D6)], min_margin=1))] == [1, 1], "a margin of 1 is enough"
    assert told(tl.train.pairs([grove(D6)], min_visits=2)) == [(0, "B", "A", 2 / 3, 1 / 3, 3, 3)]
    assert list(tl.train.pairs([grove(D6)], min_visits=4)) == []


def test_the_largest_margin_comes_first():
    tries = [Try([name], reward) for name, reward in (("a", 0.5), ("b", 0.75), ("c", 0.0), ("d", 1.0))]
    found = told(tl.train.pairs([grove(tries)], which="all"))
    assert [(p[1], p[2]) for p in found] == [("d", "c"), ("b", "c"), ("a", "c"), ("d", "a"), ("b", "a"), ("d", "b")]


def test_the_conversation_is_that_of_the_state():
    *_, pair = tl.train.pairs([grove(D6)])
    assert [message["content"] for message in json.loads(bytes(pair.conversation))] == ["what?", "B", "seen B"]
    assert pair.margin == 1.0
    assert pair.task == "q"


def test_verdicts_are_kept_to():
    tree = grove(D6)
    notes.note(tree.core, 0, Verdict("f", "mask"))
    found = told(tl.train.pairs([tree]))
    assert (0, "B", "A", 2 / 3, 1 / 3, 3, 3) in found, "a masked rollout counts where it says so"
    assert not any("A1" in entry for entry in found), "and is in no pair by itself"
    notes.note(tree.core, 0, Verdict("f", "drop"))
    assert told(tl.train.pairs([tree]))[0] == (0, "B", "A", 2 / 3, 0.0, 3, 2)


def test_cut_rollouts_need_a_word_and_unscored_ones_are_in_no_value():
    tries = [Try(["a"], 1.0), Try(["b"], 0.0), Try(["c"], ended="censored"), Try(["d"], ended="llm_error")]
    with pytest.raises(UsageError, match="cut off"):
        list(tl.train.pairs([grove(tries)]))
    assert told(tl.train.pairs([grove(tries)], which="all", censored="mask")) == [(0, "a", "b", 1.0, 0.0, 1, 1)]
    assert list(tl.train.pairs([grove(tries)], censored="mask", on_failed="drop_group")) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"which": "some"}, "which must be one of best_worst, all"),
        ({"min_margin": -1}, "min_margin must be a number"),
        ({"min_visits": 0}, "min_visits must be a whole number"),
        ({"most": 0}, "most must be a whole number"),
        ({"on_failed": "retry"}, "is for the run"),
    ],
)
def test_settings_that_cannot_be_are_named(options: dict, says: str):
    with pytest.raises(ConfigError, match=says):
        tl.train.pairs([grove(D6)], **options)


TRIES = st.lists(
    st.builds(
        lambda turns, reward: Try(turns, reward, "max_turns"),
        st.lists(st.sampled_from("ab"), min_size=1, max_size=3),
        st.sampled_from([0.0, 0.25, 1.0, math.nan]),
    ),
    max_size=8,
)


# No difference of two such means is 0.47, so rounding decides nothing.
@given(TRIES, st.integers(1, 3), st.sampled_from([0.0, 0.47]))
def test_pairs_are_those_of_a_loop_over_prefixes(tries: list[Try], min_visits: int, min_margin: float):
    rewards: dict[tuple, list[float]] = {}
    for one in tries:
        for end in range(1, len(one.turns) + 1):
            if not math.isnan(one.reward):
                rewards.setdefault(tuple(one.turns[:end]), []).append(one.reward)
    means = {path: sum(found) / len(found) for path, found in rewards.items() if len(found) >= min_visits}
    expected = {
        (max(a, b, key=means.__getitem__), min(a, b, key=means.__getitem__))
        for a, b in combinations(means, 2)
        if a[:-1] == b[:-1] and abs(means[a] - means[b]) > 0 and abs(means[a] - means[b]) >= min_margin
    }
    found = set()
    for pair in tl.train.pairs([grove(tries)], which="all", min_visits=min_visits, min_margin=min_margin):
        before = tuple(m["content"] for m in json.loads(bytes(pair.conversation)) if m["role"] == "assistant")
        found.add(((*before, text(pair.chosen)), (*before, text(pair.rejected))))
        assert math.isclose(pair.chosen_value, means[(*before, text(pair.chosen))])
        assert len(before) == pair.depth
    assert found == expected
