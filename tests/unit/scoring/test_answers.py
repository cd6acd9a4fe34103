from __future__ import annotations

import time

import pytest

from trunkline.scoring.answers import extract_answer, number, tail


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("  plain ", "plain"),
        ("<think>a <answer>no</answer></think> <answer> yes </answer>", "yes"),
        ("thought</think>yes", "yes"),
        ("<think>cut off", ""),
        ("<think>a</think>b<think>c</think>d", "bd"),
        ("x</think>y<think>z</think>w", "yw"),
        ("<answer>1</answer> no, <answer>2</answer>", "2"),
        ("<answer>stop string dropped", "stop string dropped"),
        (r"so \boxed{\frac{1}{2}} it is", r"\frac{1}{2}"),
        (r"\boxed{1} then \boxed{ 2 }", "2"),
        (r"\boxed{good} and \boxed{cut", "good"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{a} <answer>b</answer>", "b"),
        (r"\boxed{ \boxed{in} }", "in"),
        ("", ""),
    ],
)
def test_extraction(text: str, answer: str) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize("piece", ["<think>", "</think>", "<answer>", r"\boxed{", "{", "}", "<think></think>"])
def test_hostile_text_takes_linear_time(piece: str) -> None:
    began = time.process_time()
    extract_answer(piece * 60_000)
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("about 1,200.5 km", 1200.5),
        ("3/4", 0.75),
        ("-2e3", -2000.0),
        ("\u22127", -7.0),
        ("1990-1995", 1995.0),
        ("$5", 5.0),
        ("-.5", -0.5),
        ("first 1, then 2", 2.0),
        ("5km", 5.0),
        ("1/0", None),
        ("none", None),
        ("9e999", None),
        ("", None),
    ],
)
def test_numbers(text: str, value: float | None) -> None:
    assert number(text) == value


def test_the_number_of_a_long_answer_is_looked_for_at_its_end() -> None:
    assert number("step 7. " * 1_000 + "So it is 1,234.") == 1234.0
    assert number("7 " + "word " * 1_000) is None
    assert number("7" * 5_000) is None  # no part of a longer number is a number
    began = time.process_time()
    assert number("1." * 1_000_000) is None
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    ("text", "limit", "end"),
    [("a bc", 4, "a bc"), ("a bc de", 4, "de"), ("a\tbc de", 5, "bc de"), ("abcdef", 3, ""), ("", 3, "")],
)
def test_the_tail_begins_with_a_whole_word(text: str, limit: int, end: str) -> None:
    assert tail(text, limit) == end
