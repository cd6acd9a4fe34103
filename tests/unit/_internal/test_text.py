from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline._internal.text import HIDDEN, cells, format_error, from_difference, printable, quoted, without_secrets


@settings(max_examples=300)
@given(st.text(st.characters(), max_size=60), st.none() | st.integers(0, 30))
def test_nothing_printed_can_steer_a_terminal(text: str, width: int | None) -> None:
    shown = printable(text, width)
    assert all(unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"} for c in shown)
    assert width is None or cells(shown) <= width
    assert printable(shown) == shown


@given(
    st.text(st.sampled_from("_-/.:= \"'\n(é0aZ"), max_size=4),
    st.from_regex(r"sk-[A-Za-z0-9_-]{8,30}", fullmatch=True),
    st.text('/.: "\n)', max_size=3),
)
def test_a_key_is_found_behind_all_but_a_letter_or_a_digit(before: str, key: str, after: str) -> None:
    inside = before[-1:].isalnum()
    assert without_secrets(before + key + after) == (before + key if inside else f"{before}{HIDDEN}") + after


@pytest.mark.parametrize(
    "text", ["risk-free-investment", "task-123456789", "desk-organizer_1", "sk-1", "a_sk-1", "_task-12345678"]
)
def test_words_are_no_keys(text: str) -> None:
    assert without_secrets(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\nb\rc\td", "a\\nb\\rc\\td"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("\x9b2J\x07\x00", "\\x9b2J\\x07\\x00"),
        ("\ud800", "\\ud800"),
        ("\u2028", "\\u2028"),
        ("na\u00efve \u4f60", "na\u00efve \u4f60"),
    ],
)
def test_escapes(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_cut_text_ends_in_an_ellipsis_and_counts_wide_characters() -> None:
    assert printable("abcdef", 6) == "abcdef"
    assert printable("abcdefg", 6) == "abcde\u2026"
    assert printable("\u4f60\u597d\u4f60", 5) == "\u4f60\u597d\u2026"
    assert printable("abc", 0) == ""
    assert len(printable("x" * 10**7, 10)) == 10
    assert quoted('say "hi"') == '"say \\"hi\\""'


@pytest.mark.parametrize(
    ("one", "other", "before", "found"),
    [
        ("abcdef", "abcxef", 2, (1, "bcdef", "bcxef")),
        ("abcdef", "abcxef", 9, (0, "abcdef", "abcxef")),
        ("abc", "abcdef", 1, (2, "c", "cdef")),
        ("abc", "abc", 0, (3, "", "")),
        ("na\u00efve".encode(), "na\u00efv\u00e9", 1, (3, "ve", "v\u00e9")),
        (b"a\xff", "ab", 0, (1, "\ufffd", "b")),
    ],
)
def test_two_texts_are_shown_from_where_they_begin_to_differ(
    one: bytes | str, other: bytes | str, before: int, found: tuple[int, str, str]
) -> None:
    assert from_difference(one, other, before) == found


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_an_error_that_cannot_say_what_it_is_ends_nothing(kind: type[BaseException]) -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise kind

    assert format_error(Silent()) == "(its message cannot be read)"


def test_a_message_is_a_plain_text_whatever_class_it_is_of() -> None:
    class Text(str):
        __slots__ = ()

        def __iter__(self):  # type: ignore[no-untyped-def]
            raise SystemExit

    class Odd(Exception):
        def __str__(self) -> str:
            return Text("a\tb")

    assert format_error(Odd()) == "a\\tb"
