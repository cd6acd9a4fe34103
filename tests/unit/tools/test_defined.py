"""Tools from definitions in the OpenAI form: what is refused, what reaches the function, what the model is told."""

from __future__ import annotations

import asyncio
import functools
import json
import pickle
import threading

import pytest

from trunkline.errors import ConfigError, ToolError
from trunkline.tools.environment import Environment
from trunkline.tools.openai_definition import DefinedTool
from trunkline.tools.tool import tool
from trunkline.tools.toolbox import Toolbox

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 1}},
            "required": ["a"],
        },
        "strict": False,
    },
}


def add(a: int, b: int = 1) -> int:
    return a + b


async def slow_add(a: int, b: int = 1) -> dict[str, int]:
    await asyncio.sleep(0)
    return {"sum": a + b}


class Notes(Environment):
    """A state."""


def noting(a: int, notes: Notes) -> str:
    return str(a)


def doubled(a, b=1):
    return 2 * (a + b)


class Adder:
    """An object that is called; what it holds is its own affair."""

    def __init__(self) -> None:
        self.name = self.policy = self.schema = None

    async def __call__(self, a: int, b: int = 1) -> int:
        return a + b


async def told(function: object, arguments: str, definition: object = ADD) -> tuple[str, bool]:
    box = Toolbox([DefinedTool(definition, function)])
    try:
        seen = await box.call("add", arguments)
    finally:
        await box.close()
    return seen.text, seen.ok


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (add, "5"),
        (slow_add, '{"sum":5}'),
        (doubled, "10"),
        (lambda **all: str(sorted(all.items())), "[('a', 2), ('b', 3)]"),
        (functools.partial(slow_add, b=7), '{"sum":5}'),
        (Adder(), "5"),
        (tool(add), "5"),
    ],
    ids=["sync", "async", "bare", "any", "partial", "object", "tool"],
)
async def test_members_reach_the_function_by_name(function: object, expected: str):
    assert await told(function, '{"b": 3, "a": 2}') == (expected, True)


async def test_sync_functions_run_in_threads():
    seen: list[str] = []
    await told(lambda a: seen.append(threading.current_thread().name), '{"a": 1}')
    assert seen
    assert seen != [threading.main_thread().name]


async def test_a_tool_behind_a_definition_converts_as_it_always_does():
    assert await told(tool(add), '{"a": "2", "b": 3}') == ("5", True)
    assert await told(tool(add), '{"a": "two"}') == ("Error: argument 'a': expected int, got str.", False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("{}", "Error: missing argument 'a'."),
        ("", "Error: missing argument 'a'."),
        ("[1]", "Error: the arguments must be one JSON object, not a list."),
        ("{", "the arguments are not valid JSON: they end too early"),
        ("[" * 100_000, "Error: the arguments"),
        ('{"a": 1, "c": 2}', "got an unexpected keyword argument 'c'"),
    ],
    ids=["missing", "nothing", "list", "cut", "deep", "unknown"],
)
async def test_arguments_that_do_not_fit_are_told_to_the_model(arguments: str, words: str):
    text, ok = await told(add, arguments)
    assert words in text
    assert not ok


async def test_what_a_function_raises_is_an_observation():
    def broken(a: int) -> None:
        raise ValueError(f"no {a}")

    def kind(a: int) -> None:
        raise ToolError("try b")

    assert await told(broken, '{"a": 1}') == ("Error: add failed with ValueError: no 1", False)
    assert await told(kind, '{"a": 1}') == ("try b", False)


async def test_escaped_lone_surrogates_reach_the_function_as_text():
    assert await told(lambda a: a, '{"a": "x\\ud800"}') == ("x\ufffd", True)


def test_the_definition_goes_out_as_it_was_given():
    made = DefinedTool(ADD, add)
    assert made.definition == ADD
    made.definition["function"]["name"] = "other"
    assert made.definition == ADD
    assert json.loads(Toolbox([made]).definitions()) == [ADD]
    bare = {"type": "function", "function": {"name": "add"}}
    assert DefinedTool(bare, add).definition == bare
    assert (DefinedTool(bare, add).name, DefinedTool(bare, add).description) == ("add", "")


def test_it_can_be_pickled_where_its_function_can():
    copied = pickle.loads(pickle.dumps(DefinedTool(ADD, add)))
    assert (copied.definition, copied(2, 3), copied.schema.decode('{"a": 1}')) == (ADD, 5, ([], {"a": 1}))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("add", r"tools\[0\] is a string, expected a tool definition"),
        ({"type": "web_search"}, "type must be 'function', not 'web_search'"),
        ({"type": "function", "name": "add", "parameters": {}}, "its fields stand beside type; write"),
        ({"name": "add", "parameters": {}}, "has no object in the field function"),
        ({"type": "function", "function": {"name": "a b"}}, "function.name must be 1 to 64 of .* not 'a b'"),
        ({"type": "function", "function": {}}, "function.name must be .* not None"),
        ({"type": "function", "function": {"name": "a", "description": 3}}, "description must be a string, not 3"),
        ({"type": "function", "function": {"name": "a", "parameters": []}}, "must be a JSON schema"),
        ({"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}, "type is 'object'"),
        ({"type": "function", "function": {"name": "a", "parameters": {"x": object()}}}, "is not JSON"),
    ],
    ids=["text", "type", "flat", "legacy", "name", "no name", "description", "parameters", "array", "no json"],
)
def test_what_is_no_definition_is_refused(given: object, words: str):
    with pytest.raises(ConfigError, match=words):
        DefinedTool(given, add, "tools[0]")


def test_what_cannot_stand_behind_a_definition_is_refused():
    with pytest.raises(ConfigError, match="'add': its implementation must be a function, not 3"):
        DefinedTool(ADD, 3)
    with pytest.raises(ConfigError, match="a tool that works on an environment; put it among the tools themselves"):
        DefinedTool(ADD, tool(noting))
    with pytest.raises(ConfigError, match="runs in processes of its own"):
        DefinedTool(ADD, tool(isolated=True)(add))
