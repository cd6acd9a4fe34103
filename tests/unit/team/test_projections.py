"""Projections: what of a reply counts, and which actions are valid."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from team_reference import boxed, tagged

from trunkline.errors import ConfigError
from trunkline.team.projection import Boxed, Reader, Reading, Tag, Whole

PIECES = ["<a>", "</a>", "<think>", "</think>", "<A>", " ", "\n", "x", "是", "{", "}", "\\boxed", "\\boxed{", "\\"]
replies = st.lists(st.sampled_from(PIECES), max_size=9).map("".join)


@pytest.mark.parametrize(
    ("reply", "content"),
    [
        ("<a> x </a>", "x"),
        ("before <a>\n x y\n</a> after", "x y"),
        ("<a>x</a> <a>y</a>", "x"),
        ("<a>x <a>y</a>", "x <a>y"),
        ("<a>x</a></a>", "x"),
        ("</a> x <a>", ""),
    ],
)
def test_from_the_first_opener_to_the_first_closer_counts(reply: str, content: str) -> None:
    assert Tag("a", keep="content").read(reply, None) == Reading(content, True)
    assert Tag("a").read(reply, None) == Reading(f"<a>{content}</a>", True)


def test_with_all_the_content_of_the_tag_is_trimmed_within_the_whole_reply() -> None:
    assert Tag("a", keep="all").read("so <a> x </a> there ", None) == Reading("so <a>x</a> there ", True)
    assert Tag("a", keep="all").read("</a> x <a> y", None) == Reading("</a> x <a></a> x <a> y", True)


@pytest.mark.parametrize("reply", ["", "x", "<a>x", "x</a>", "<A>x</A>", "<a >x</a>"])
def test_without_both_tags_an_action_is_not_valid_and_nothing_counts_but_with_all(reply: str) -> None:
    for keep, text in (("block", ""), ("content", ""), ("all", reply)):
        assert Tag("a", keep=keep).read(reply, None) == Reading(text, False)


@pytest.mark.parametrize(("character", "valid"), [("一", False), ("龿", False), ("\u9fff", False), ("ꀀ", True)])
def test_a_chinese_character_anywhere_makes_an_action_invalid_where_that_is_asked(character: str, valid: bool) -> None:
    for reply in (f"{character}<a>x</a>", f"<a>x{character}</a>"):
        assert Tag("a", chinese=False).read(reply, None).valid is valid
        assert Tag("a", chinese=False).read(reply, None).text
        assert Tag("a").read(reply, None).valid
    assert Tag("a", chinese=False).read("<a>x</a>", character).valid is valid


@pytest.mark.parametrize(
    ("reply", "valid"),
    [
        ("<think>t</think><a>x</a>", True),
        ("<a>x</a><think></think>", True),
        ("<a>x</a>", False),
        ("<think>t<a>x</a>", False),
        ("</think>t<think><a>x</a>", False),
        ("<think>t</think><think>u</think><a>x</a>", False),
        ("<think>t</think></think><a>x</a>", False),
        ("<THINK>t</THINK><a>x</a>", False),
    ],
)
def test_one_thought_is_asked_for_and_an_action_without_it_is_invalid_but_stays(reply: str, valid: bool) -> None:
    assert Tag("a", thinks=True).read(reply, None) == Reading("<a>x</a>", valid)


def test_thoughts_that_the_server_returns_apart_count() -> None:
    assert Tag("a", thinks=True).read("<a>x</a>", "I thought").valid
    assert not Tag("a", thinks=True).read("<a>x</a>", "").valid


@pytest.mark.parametrize(
    ("reply", "valid"),
    [
        (r"\boxed{1}", True),
        (r"\boxed{\frac{1}{2}} so", True),
        (r"是 \boxed{}", True),
        (r"\boxed{\}", True),
        (r"\boxed{1", False),
        (r"\boxed {1}", False),
        (r"\boxed{1} and \boxed 2", False),
        (r"\fbox{1}", False),
        ("1", False),
    ],
)
def test_a_solution_is_valid_if_its_last_box_closes_and_its_text_is_left_alone(reply: str, valid: bool) -> None:
    assert Boxed().read(reply, None) == Reading(reply, valid)


def test_all_of_a_reply_counts_by_default() -> None:
    assert Whole().read(" x ", None) == Reading(" x ", True)


@given(reply=replies, thinks=st.booleans())
def test_any_reply_is_read_as_a_reader_of_our_tests_reads_it(reply: str, thinks: bool) -> None:
    assert Tag("a", thinks=thinks, chinese=False).read(reply, None) == tagged("a", thinks=thinks)(reply)
    whole = tagged("a", whole=True, thinks=thinks)(reply)
    assert Tag("a", keep="all", thinks=thinks, chinese=False).read(reply, None) == whole
    assert Boxed().read(reply, None) == boxed(reply)


def test_a_hundred_thousand_braces_are_read_at_once() -> None:
    assert not Boxed().read("\\boxed{" * 100_000, None).valid
    assert Boxed().read("\\boxed{" + "{" * 100_000 + "}" * 100_001, None).valid


def test_projections_are_equal_where_their_options_are_and_say_them() -> None:
    assert Tag("a") == Tag("a") != Tag("b")
    assert repr(Tag("a", keep="all")) == "Tag(name='a', keep='all', thinks=False, chinese=True)"
    assert all(isinstance(one, Reader) for one in (Whole(), Boxed(), Tag("a")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "<a>"}, "Tag: name must be a tag's name without brackets, not '<a>'"),
        ({"name": ""}, "Tag: name must be"),
        ({"name": "a", "keep": "inside"}, "Tag: keep must be one of content, block, all, not 'inside'"),
        ({"name": "a", "thinks": 1}, "Tag: thinks must be true or false, not 1"),
        ({"name": "a", "chinese": "no"}, "Tag: chinese must be true or false, not 'no'"),
    ],
)
def test_an_option_that_cannot_be_is_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as problem:
        Tag(**options)
    assert str(problem.value).startswith(message)
