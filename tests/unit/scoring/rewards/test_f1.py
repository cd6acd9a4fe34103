"""Words that an answer shares with a reference answer, against counting them one by one."""

from __future__ import annotations

import pytest
from endings import ending
from hypothesis import given
from hypothesis import strategies as st

from trunkline.scoring.rewards import F1
from trunkline.tree.answers import fold

TEXTS = st.lists(st.sampled_from(["the", "Paris", "paris,", "is", "big", "1,200", "1200", "a", "!"]), max_size=8).map(
    " ".join
)


def counted(answer: str, accepted: str) -> float:
    """The harmonic mean of precision and recall, by taking words away one by one."""
    mine, theirs = fold(answer).split(), fold(accepted).split()
    left, shared = list(theirs), 0
    for word in mine:
        if word in left:
            left.remove(word)
            shared += 1
    if not shared:
        return 0.0
    precision, recall = shared / len(mine), shared / len(theirs)
    return 2 * precision * recall / (precision + recall)


@given(TEXTS, st.lists(TEXTS.filter(str.strip), min_size=1, max_size=3))
def test_it_is_the_best_harmonic_mean_of_precision_and_recall(answer: str, accepted: list[str]) -> None:
    value = F1()(ending(answer, *accepted))
    assert value == pytest.approx(max(counted(answer, one) for one in accepted))


@pytest.mark.parametrize(
    ("answer", "accepted", "value"),
    [
        ("The Eiffel Tower", ("Eiffel tower",), 1.0),
        ("the big Eiffel tower", ("Eiffel tower",), 0.8),
        ("yes yes", ("yes",), 2 / 3),
        ("no", ("yes",), 0.0),
        (None, ("yes",), 0.0),
        ("", ("yes",), 0.0),
        ("yes", (" ",), None),
        ("yes", (), None),
        ("b", ("a b c d", "b c"), 2 / 3),
    ],
)
def test_what_answers_score(answer: str | None, accepted: tuple[str, ...], value: float | None) -> None:
    assert F1()(ending(answer, *accepted)) == (value if value is None else pytest.approx(value))


def test_of_a_runaway_answer_the_end_counts() -> None:
    assert F1()(ending("yes " + "word " * 20_000, "yes")) == 0.0
