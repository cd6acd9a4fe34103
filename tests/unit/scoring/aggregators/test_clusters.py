"""Clusters of answers: what counts as the same, and that it is an equivalence whatever the order."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.errors import ConfigError
from trunkline.scoring.aggregators.voting import Majority, cluster, key_of, votes
from trunkline.tree.answers import vote

WORDS = ["Paris", "paris", "The Paris", "Paris, France", "Paris Texas", "France", "not Paris", "Paris or Rome", "Rome"]
NUMBERS = ["1/2", "0.5", ".5", "50 %", "50 percent", "50", "1/3", "2/6", "½", "in 1962", "1962", "1/0", "-1/2", "$50"]
ANSWERS = st.lists(st.sampled_from([*WORDS, *NUMBERS, None, "", "  "]), max_size=12)


def ends_alike(one: str, other: str) -> bool:
    """No equivalence by itself: not transitive over first and last letters, and asked in one order only."""
    return one[:1] < other[:1] and one[-1:] == other[-1:]


def parts(answers, **options):
    """The clusters as sets of answers' positions."""
    return {frozenset(one.members) for one in cluster(answers, **options)}


def naive(answers, pairs):
    """The transitive closure of pairs of positions, by relabelling until nothing changes."""
    label = {place: place for place, answer in enumerate(answers) if answer and answer.strip()}
    changed = True
    while changed:
        changed = False
        for one, other in itertools.permutations(label, 2):
            if pairs(one, other) and label[one] != label[other]:
                label[one] = label[other] = min(label[one], label[other])
                changed = True
    return {frozenset(place for place in label if label[place] == one) for one in label.values()}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1/2", "0.5", True),
        ("½", ".50", True),
        ("1/3", "2/6", True),
        ("1/3", "0.3333333333", False),
        ("50 %", "50 percent", True),
        ("50%", "50", True),
        ("50%", "0.5", False),
        ("-3/4", "\u22120.75", True),
        ("1/1000", "1e-3", True),
        ("10/5", "2", True),
        ("1\u00bd", "1.5", True),
        ("-1 1/2", "\u22121\u00bd", True),
        ("1\u00bd", "11/2", False),
        ("10\u00bc miles", "10 1/4 miles", True),
        ("1/2.", "0.5", True),
        ("$(1/2)$", "1/2", True),
        ("1/0", "1", False),
        ("1/2", "1-2", False),
        ("the Paris!", "paris", True),
        ("$1,200", "1200.0", True),
    ],
)
def test_what_counts_as_the_same_answer(one: str, other: str, same: bool) -> None:
    assert (key_of(one) == key_of(other)) is same
    assert len(cluster([one, other])) == (1 if same else 2)


@settings(max_examples=60)
@given(st.integers(-(10**9), 10**9), st.integers(0, 6), st.integers(0, 6))
def test_a_fraction_is_the_decimal_number_that_it_equals(above: int, twos: int, fives: int) -> None:
    below = 2**twos * 5**fives
    scaled = Fraction(above, below) * 10**6
    assert scaled.denominator == 1
    digits = f"{abs(scaled.numerator):07d}"
    decimal = f"{'-' if above < 0 else ''}{digits[:-6]}.{digits[-6:]}"
    assert key_of(f"{above}/{below}") == key_of(decimal)


@settings(max_examples=60)
@given(ANSWERS, st.randoms(use_true_random=False))
def test_clusters_do_not_depend_on_the_order(answers, luck) -> None:
    order = list(range(len(answers)))
    luck.shuffle(order)
    shuffled = [answers[place] for place in order]
    for options in ({}, {"contain": True}, {"same": ends_alike}, {"contain": True, "same": ends_alike}):
        found = cluster(answers, **options)
        again = cluster(shuffled, **options)
        assert [(one.key, one.answer) for one in found] == [(one.key, one.answer) for one in again]
        assert {frozenset(order[place] for place in one.members) for one in again} == parts(answers, **options)


@settings(max_examples=60)
@given(ANSWERS)
def test_clusters_are_a_partition_of_what_is_no_blank(answers) -> None:
    members = sorted(place for one in cluster(answers, contain=True, same=ends_alike) for place in one.members)
    assert members == [place for place, answer in enumerate(answers) if answer and answer.strip()]


@settings(max_examples=60)
@given(ANSWERS)
def test_a_relation_of_ones_own_is_closed_as_a_naive_closure_closes_it(answers) -> None:
    spelt = {
        key: min(there, key=lambda answer: (-there.count(answer), answer))
        for key in {key_of(one) for one in answers if one and one.strip()}
        if (there := [one.strip() for one in answers if one and one.strip() and key_of(one) == key])
    }

    def pairs(one: int, other: int) -> bool:
        first, second = key_of(answers[one]), key_of(answers[other])
        return first == second or ends_alike(spelt[first], spelt[second]) or ends_alike(spelt[second], spelt[first])

    assert parts(answers, same=ends_alike) == naive(answers, pairs)


@settings(max_examples=60)
@given(st.text("a1\u00bd'\u200b\u2060\u0301 -.\u2026\u00b0", max_size=5))
def test_an_answer_votes_if_it_has_a_key(answer: str) -> None:
    assert votes(answer) is bool(key_of(answer)) is (len(cluster([answer])) == 1)
    assert not votes(None)


@settings(max_examples=60)
@given(st.lists(st.sampled_from([*WORDS, None, ""]), max_size=12))
def test_without_numbers_clusters_are_the_classes_of_a_vote(answers) -> None:
    expected = {(votes.answer, votes.voters) for votes in vote(answers)}
    assert {(one.answer, one.members) for one in cluster(answers)} == expected


@pytest.mark.parametrize(
    ("answers", "clusters"),
    [
        (["Paris", "Paris, France"], 1),
        (["1962", "It was in 1962."], 1),
        (["Paris", "Parisian"], 2),
        (["Paris", "not Paris"], 2),
        (["Paris", "Paris or Rome"], 2),
        (["Paris", "Rome", "Paris and Rome"], 3),
        (["Paris", "Paris, France", "Paris, Texas"], 3),
        (["5", "5 million"], 2),
        (["5", "minus 5"], 2),
        (["5", "more than 5"], 2),
        (["Paris", "Rome rather than Paris"], 2),
        (["Paris", "anything except Paris"], 2),
        (["5", "July 5, 1962"], 2),
        (["Paris", "Paris France", "Paris France Europe"], 1),
        (["Paris", f"Paris {'word ' * 60}"], 2),
    ],
)
def test_an_answer_joins_the_longer_one_that_holds_it_only_without_a_doubt(answers, clusters: int) -> None:
    assert len(cluster(answers, contain=True)) == clusters
    assert len(cluster(answers)) == len(answers), "containment is no default"


def test_the_spelling_is_the_most_frequent_one_then_the_first_in_the_alphabet() -> None:
    (found,) = cluster(["paris", "PARIS", " Paris ", "Paris", "paris."])
    assert found.answer == "Paris"
    (found,) = cluster(["b", "B"])
    assert found.answer == "B"


def raises(_one: str, _other: str) -> bool:
    raise RuntimeError("no\x1b[31m idea")


async def later(_one: str, _other: str) -> bool:
    return True


def test_a_function_that_fails_or_says_nothing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"same raised RuntimeError.*no\\x1b"):
        cluster(["a", "b"], same=raises)
    with pytest.raises(ConfigError, match="Majority: same must be a plain function of two answers, not a coroutine"):
        Majority(same=later)
    with pytest.raises(ConfigError, match="same must return True or False, not None"):
        cluster(["a", "b"], same=lambda _one, _other: None)
    with pytest.raises(ConfigError, match=r"same must return True or False, not 1\.0"):
        cluster(["a", "b"], same=lambda _one, _other: 1.0)
