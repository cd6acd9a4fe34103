"""Multiple choice: the letter or option that an answer names, in whatever dress."""

from __future__ import annotations

import math
from typing import Any

import pytest
from endings import ending
from hypothesis import given
from hypothesis import strategies as st

from trunkline.errors import ConfigError
from trunkline.scoring.rewards import Choice, Scored

CITIES = ["Oslo", "Paris", "Rome", "Paris, Texas"]


@pytest.mark.parametrize(
    "answer",
    [
        "B",
        "b",
        "(B)",
        "[B]",
        "B.",
        "B)",
        "**B**",
        "$B$",
        "\\boxed{B}",
        "\\boxed{\\text{(B)}}",
        "\\boxed{\\textbf{B}}",
        "<answer>B</answer>",
        "B. Paris",
        "(B) Paris",
        "B: Paris, of course",
        "Paris",
        "paris.",
        "The answer is B",
        "The answer is (B).",
        "The correct answer is: B) Paris",
        "Answer: B",
        "The answer is **B** because Rome is in Italy",
        "The correct option is B",
        "I think that it must be B",
        "A city on the Seine: it is Paris",
        "Rome and Oslo are others, so the answer is B",
        "Neither the first nor the third, so (B)",
        "<think>A? C?</think>B",
        "answer is b",
        "The answer is: **b**",
        "The right option is (b)",
        "I think that it is (b)",
        "b) because it is on the Seine",
        "B\n\nExplanation: option A is in Norway, and C in Italy.",
        "Option A is Oslo. Option C is Rome.\n\nB",
        "A. Oslo is in Norway. C. Rome is in Italy. The answer is B.",
        "Option A is wrong. The answer is B.",
        "The answer is not A, it is B",
        "It is not option A but B",
        "The answer is Paris, not Rome",
        "B rather than (C), not (D)",
        "Neither Rome nor Oslo: Paris",
        "'B'",
        "\uff22",
        "\uff08\uff22\uff09",
    ],
)
def test_an_answer_that_names_the_right_option(answer: str) -> None:
    assert Choice()(ending(answer, "B", choices=CITIES)) == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "",
        "A",
        "E",
        "Berlin",
        "A or B",
        "(A) (B)",
        "The answer is B or C",
        "The answer is (A) or (B).",
        "Answer: A, B",
        "A is right",
        "Paris or Rome",
        "The answer is A. The answer is B",
        "(B) Rome",
        "B. Rome",
        "Paris, Texas",
        "It is Paris, Texas",
        "A letter",
        "The answer is a mystery",
        "ABBA",
        "vitamin-B",
        "The answer is not B.",
        "It is not (B)",
        "It is not Paris",
        "It isn't B",
        "The answer is b-flat",
        "B\n\nA",
        "B\n\nSo the answer is C",
        "Option B is likely, option C is, too",
    ],
)
def test_an_answer_that_names_another_option_or_several_or_none(answer: str | None) -> None:
    assert Choice()(ending(answer, "B", choices=CITIES)) == 0.0


@pytest.mark.parametrize("label", list("ABCD"))
@pytest.mark.parametrize(
    "form", ["{}", "({})", "{}.", "The answer is {}", "Answer: ({})", "So it is ({}).", "\\boxed{{{}}}"]
)
def test_every_label_is_found_in_every_form(label: str, form: str) -> None:
    for right in "ABCD":
        value = Choice()(ending(form.format(label), right, choices=["w", "x", "y", "z"]))
        assert value == float(label == right)


@pytest.mark.parametrize(
    ("options", "reference", "given"),
    [
        (CITIES, "C", "C"),
        (CITIES, "(c)", "C"),
        (CITIES, "rome", "C"),
        (CITIES, "2", "C"),
        ({"1": "Oslo", "2": "Rome"}, "2", "2"),
        ({"1": "Oslo", "2": "Rome"}, "2", "Rome"),
        ({"label": ["A", "B"], "text": ["Oslo", "Rome"]}, "B", "(B)"),
        (["3", "2", "1"], "2", "B"),
        (["3", "2", "1"], "B", "2"),
        ([3, 2, 1], "2", "B"),
        (["True", "False"], "False", "false"),
        ({"a": "Oslo", "b": "Rome"}, "b", "The answer is B"),
        ({"a": "Oslo", "b": "Rome"}, "b", "It is a Roman town: B"),
        ({"a": "Oslo", "b": "Rome"}, "a", "The answer is a"),
        (CITIES, "\\boxed{C}", "C"),
        (["legal", "not legal"], "B", "It is not legal"),
        ({"1": "Oslo", "2": "Rome"}, "2", "The answer is 2, and not 1.5"),
        (["x+1", "x-1", "$x^2$"], "x-1", "x-1"),
        (["x+1", "x-1", "$x^2$"], "$x^2$", "\\boxed{x^2}"),
        (["-5", "5"], "B", "5"),
    ],
)
def test_options_and_accepted_answers_as_data_sets_write_them(options: Any, reference: str, given: str) -> None:
    assert Choice()(ending(given, reference, choices=options)) == 1.0


def test_how_accepted_answers_are_written_can_be_said() -> None:
    numbers = ["3", "2", "1"]
    assert Choice(reference="index")(ending("C", "2", choices=numbers)) == 1.0
    assert Choice(reference="text")(ending("C", "1", choices=numbers)) == 1.0
    assert Choice(options="options")(ending("C", "C", options=numbers)) == 1.0


@pytest.mark.parametrize(
    ("references", "metadata", "problem"),
    [
        ((), {"choices": CITIES}, None),
        (("B",), {}, None),
        (("E",), {"choices": CITIES}, "reference answer 'E' is none of the task's options"),
        (("9",), {"choices": CITIES}, "reference answer '9' is none of"),
        (("B",), {"choices": "Oslo, Rome"}, "'choices' is no list or dict of options"),
        (("B",), {"choices": []}, "'choices' is no list or dict of options"),
        (("B",), {"choices": [["Oslo"], None]}, "'choices' is no list or dict of options"),
        (("B",), {"choices": {"label": "AB", "text": ["Oslo", "Rome"]}}, "'choices' is no list or dict of options"),
    ],
    ids=range(8),
)
def test_without_options_or_an_accepted_one_there_is_no_value(
    references: tuple[str, ...], metadata: dict[str, Any], problem: str | None
) -> None:
    said = Choice()(ending("B", *references, **metadata))
    if problem is None:
        assert said is None
    else:
        assert isinstance(said, Scored)
        assert math.isnan(said.value)
        assert problem in (said.problem or "")


@given(st.text(max_size=60), st.lists(st.text(min_size=1, max_size=10), min_size=1, max_size=30))
def test_whatever_a_model_says_is_right_or_wrong(answer: str, options: list[str]) -> None:
    assert Choice()(ending(answer, "A", choices=options)) in {0.0, 1.0} or len(options) > 26


@pytest.mark.parametrize("options", [{"reference": "letter"}, {"options": 3}])
def test_options_of_its_own_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Choice: "):
        Choice(**options)


@pytest.mark.parametrize("right", list("AB"))
def test_two_options_are_wrong_whichever_is_right(right: str) -> None:
    assert Choice()(ending("A or B", right, choices=CITIES)) == 0.0


def test_more_options_than_letters_have_no_labels() -> None:
    said = Choice()(ending("A", "A", choices=[str(number) for number in range(27)]))
    assert isinstance(said, Scored)
    assert math.isnan(said.value)


@pytest.mark.parametrize("piece", ["(", "answer ", "A or ", "not ", "The answer is ", "[ ", "A,", "\\", "Paris, "])
def test_no_answer_takes_long(piece: str) -> None:
    assert Choice()(ending((piece * 4_000)[:4_000], "B", choices=[*CITIES, "not " * 30])) in {0.0, 1.0}
