"""Calls of broken JSON: which are repaired, what the model is told, and what hostile ones cost."""

from __future__ import annotations

import json
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.errors import ConfigError
from trunkline.llm.types import ToolCall
from trunkline.tools.json_repair import mend, sound
from trunkline.tools.tool import tool
from trunkline.tools.toolbox import Toolbox

BROKEN = '{"query": "Rome"'


@tool
def look(query: str, top: int = 1) -> str:
    """Look something up.

    Args:
        query: What.
        top: How many.
    """
    return f"{top} of {query}"


def call(arguments: str, name: str = "look") -> ToolCall:
    return ToolCall("", name, arguments)


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        ('{"query": "x", ', {"query": "x"}),
        ('{"query": ["a", "b"', {"query": ["a", "b"]}),
        ('{"query": "cut o', {"query": "cut o"}),
        ("{'query': 'x'}", {"query": "x"}),
        ('{query: "x"}', {"query": "x"}),
        ('{"query": "x",}', {"query": "x"}),
        ('{"query": "x"}}', {"query": "x"}),
        ('{"a": True, "b": None}', {"a": True, "b": None}),
        ('{"query": "two\nlines"}', {"query": "two\nlines"}),
        ('{"query": "he said "hi" to me"}', {"query": 'he said "hi" to me'}),
        ('```json\n{"query": "x"}\n```', {"query": "x"}),
        ('"{\\"query\\": \\"x\\"}"', {"query": "x"}),  # encoded twice
        ('"{\\"query\\": \\"x\\""', {"query": "x"}),
        ('"{\\"query\\": \\"x\\\\ny\\""', {"query": "x\ny"}),
        ("Rome", None),
        ('"Rome"', None),
        ("[1, 2]", None),
        ("null", None),
        ('{"a": 1} {"b": 2}', None),
        ('{"a": 1e999', None),  # no JSON holds infinity
    ],
)
def test_broken_arguments_are_read_where_that_gives_an_object(arguments: str, read: dict | None) -> None:
    (mended,) = mend([call(arguments)])
    if read is None:
        assert mended.call.arguments == arguments
        assert mended.note == ""
    else:
        assert mended.call.name == "look"
        assert json.loads(mended.call.arguments) == read
        assert mended.note == f"[The arguments were no JSON object; read as {json.dumps(read, ensure_ascii=False)}]\n"


@pytest.mark.parametrize("arguments", ["", " ", "{}", '{"query": "x"}', '{"a": "\\ud800"}', '{"a": {"b": [1e5]}}'])
def test_sound_arguments_are_left_as_they_are(arguments: str) -> None:
    assert sound(call(arguments))
    assert mend([call(arguments)])[0] == (call(arguments), "")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"name": "look", "arguments": {"query": "x"}', "look"),
        ("{'name': 'look', 'arguments': {'query': 'x'}}", "look"),
        ('{"name": "look", "arguments": {"query": "x"}}}', "look"),
        ('{"arguments": {"query": "x"}', ""),
        ("look(query=x)", ""),
        ("", ""),
    ],
)
def test_a_call_that_a_dialect_could_not_read_is_repaired_as_a_whole(text: str, name: str) -> None:
    (mended,) = mend([call(text, "")])
    assert mended.call.name == name
    assert mended.note.startswith("[The tool call was no JSON object; read as {") == bool(name)


FRAGMENTS = st.lists(st.sampled_from([*"{}[]()\"'`,:\\/*#", "\n", "a", "1", '"a":', "```json", "\ud800"]), max_size=40)


@given(FRAGMENTS.map("".join) | st.text(max_size=40))
def test_a_repair_never_raises_and_gives_a_sound_call_or_none(text: str) -> None:
    for name in ("look", ""):
        (mended,) = mend([call(text, name)])
        assert sound(mended.call) if mended.note else mended.call == call(text, name)


@pytest.mark.parametrize("piece", ["[", "{", '{"a":', '"', "'", '{"a": "b"c", ', "```json", "(", "\\", "\n]```json*"])
def test_hostile_arguments_cost_little_however_long_they_are(piece: str) -> None:
    began = time.process_time()
    mend([call(piece * (1_000_000 // len(piece)))])
    mend([call(piece * (size // len(piece))) for size in (4096, 2048, 1024, 512) for _ in range(50)])
    assert time.process_time() - began < 4.0  # half a second on a quiet machine; without a bound, minutes


def test_one_turn_gets_so_much_repair_in_the_order_of_its_calls() -> None:
    costly = '{"query": "' + "x" * 3000 + '", "top": {"a": {"b": "c"'
    mended = mend([call(costly) for _ in range(20)] + [call(BROKEN)])
    repaired = [bool(each.note) for each in mended]
    assert repaired[0]
    assert not repaired[19]
    assert repaired[:20] == sorted(repaired[:20], reverse=True)
    assert repaired[20], "a small one still fits"
    assert len(mended[0].note) < 1200


def test_a_text_that_is_too_long_is_not_repaired() -> None:
    for size, repaired in ((4000, True), (4100, False)):
        (mended,) = mend([call('{"query": "' + "x" * size)])
        assert bool(mended.note) == repaired


def test_a_repair_without_the_library_is_refused_with_the_extras_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "json_repair", None)
    with pytest.raises(ConfigError, match=r"pip install 'trunkline\[repair\]'"):
        Toolbox([look], repair=True)
    assert len(Toolbox([look])) == 1


async def test_a_repaired_call_runs_and_its_observation_says_so() -> None:
    seen = await Toolbox([look], repair=True).call_all([call(BROKEN), call('{"query": "x"}'), call("no", "")])
    assert seen[0].text == '[The arguments were no JSON object; read as {"query": "Rome"}]\n1 of Rome'
    assert (seen[1].text, [each.ok for each in seen]) == ("1 of x", [True, True, False])


async def test_a_repair_that_does_not_fit_the_tool_is_an_error_beside_its_note() -> None:
    (seen,) = await Toolbox([look], repair=True).call_all([call('{"top": 1')])
    assert seen.text == ("[The arguments were no JSON object; read as {\"top\": 1}]\nError: missing argument 'query'.")
    assert not seen.ok


@pytest.mark.parametrize(
    ("arguments", "name", "words"),
    [
        (BROKEN, "look", "the arguments are not valid JSON: they end too early, after"),
        (BROKEN, "", "could not be read: its contents are not valid JSON: they end too early, after"),
        ('{"query": "x"}', "", 'could not be read: it must be an object with the tool\'s "name"'),
        ("[" * 100_000, "", "could not be read: it is nested too deeply"),
        ("\x1b[31m\ud800", "", r"at byte 0, near '\x1b[31m"),
    ],
)
async def test_without_repair_the_model_is_told_what_is_wrong(arguments: str, name: str, words: str) -> None:
    (seen,) = await Toolbox([look]).call_all([call(arguments, name)])
    assert words in seen.text
    assert not seen.ok
