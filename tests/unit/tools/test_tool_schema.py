"""Schemas from signatures, and arguments read through them."""

import dataclasses
import enum
import functools
import json
import pickle
from typing import Annotated, Any, Literal, NotRequired, Optional, TypedDict, Union

import cloudpickle
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.errors import ConfigError
from trunkline.tools.schema import BadArguments, parse
from trunkline.tools.tool import Tool, tool
from trunkline.tools.toolbox import Toolbox


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass
class Place:
    name: str
    near: list["Place"] = dataclasses.field(default_factory=list)


class Options(TypedDict):
    title: str
    size: NotRequired[int]


@tool
async def search(query: list[str], limit: int = 5) -> str:
    """Search the corpus
    for documents.

    The best come first.

    Args:
        query: Search queries, most
            important first.
        limit (int): How many: at most ten.

    Returns:
        Text.
    """
    return f"{query} {limit}"


@tool(name="everything", description="All of it", timeout=2.5)
def everything(
    a: str,
    b: int | float,  # noqa: PYI041
    c: bool,
    d: dict[str, int],
    e: Literal["x", "y"],
    f: Colour,
    g: Level,
    h: Place,
    i: Options,
    j: Annotated[float, "in metres"],
    k: Annotated[int, msgspec.Meta(ge=1, description="a count")],
    l: Optional[str] = None,  # noqa: E741, UP045
    m: Union[list[int], str, None] = None,  # noqa: UP007
    n: Any = (),
    o: Colour = Colour.RED,
    p: list[str] = ["a"],  # noqa: B006
) -> Any:
    return locals()


GIVEN = {
    "a": "t",
    "b": 1.5,
    "c": True,
    "d": {"x": 1},
    "e": "y",
    "f": "blue",
    "g": 2,
    "h": {"name": "p", "near": [{"name": "q"}]},
    "i": {"title": "t"},
    "j": 2,
    "k": 3,
}


def read(made, arguments):
    positional, named = made.schema.decode(arguments)
    return made(*positional, **named)


def test_name_description_and_schema():
    assert search.definition == {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search the corpus for documents.\n\nThe best come first.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {
                        "type": "array",
                        "items": {"type": "string"},
                        "description": "Search queries, most important first.",
                    },
                    "limit": {"type": "integer", "description": "How many: at most ten.", "default": 5},
                },
                "required": ["query"],
                "additionalProperties": False,
            },
        },
    }
    assert (search.is_async, everything.is_async) == (True, False)
    assert (everything.name, everything.description, everything.policy.timeout) == ("everything", "All of it", 2.5)
    assert (search.module, search.qualname) == (__name__, "search")
    assert search.__doc__.startswith("Search the corpus")


async def test_a_tool_is_still_its_function():
    assert await search(["a"], limit=2) == "['a'] 2"
    copy = pickle.loads(cloudpickle.dumps(search))
    assert await copy(["a"], limit=2) == "['a'] 2"
    assert copy.definition == search.definition


def test_every_type_has_its_schema():
    properties = everything.parameters["properties"]
    assert properties["a"] == {"type": "string"}
    assert {option["type"] for option in properties["b"]["anyOf"]} == {"integer", "number"}
    assert properties["e"] == {"enum": ["x", "y"], "type": "string"}
    assert properties["f"] == {"enum": ["blue", "red"], "type": "string"}
    assert properties["g"] == {"enum": [1, 2], "type": "integer"}
    assert properties["i"]["required"] == ["title"]
    assert properties["i"]["properties"]["title"] == {"type": "string"}
    assert properties["j"] == {"type": "number", "description": "in metres"}
    assert properties["k"] == {"type": "integer", "minimum": 1, "description": "a count"}
    assert properties["l"]["default"] is None
    assert properties["o"]["default"] == "red"
    assert properties["p"]["default"] == ["a"]
    assert everything.parameters["required"] == list("abcdefghijk")
    # A type that refers to itself is the only one that stays a reference.
    assert properties["h"]["properties"]["near"]["items"] == {"$ref": "#/$defs/Place"}
    assert list(everything.parameters["$defs"]) == ["Place"]
    assert "UNSET" not in json.dumps(everything.definition)


def test_arguments_are_converted():
    found = read(everything, json.dumps(GIVEN))
    assert found["f"] is Colour.BLUE
    assert found["g"] is Level.HIGH
    assert found["h"] == Place("p", [Place("q")])
    assert found["i"] == {"title": "t"}
    assert isinstance(found["j"], float)
    assert (found["l"], found["m"], found["n"], found["o"], found["p"]) == (None, None, (), Colour.RED, ["a"])
    assert read(everything, json.dumps(GIVEN | {"k": "7", "c": "true", "m": [1]}))["k"] == 7


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"a": 5}, "argument 'a': expected str, got int"),
        ({"k": 0}, "argument 'k': expected int >= 1"),
        ({"e": "z"}, "argument 'e': invalid enum value 'z'"),
        ({"d": {"x": "many"}}, r"argument 'd\[\.\.\.\]': expected int, got str"),
        ({"h": {"near": []}}, "missing argument 'name' in 'h'"),
        ({"h": {"name": "a", "near": [{"name": 1}]}}, r"argument 'h.near\[0\].name': expected str, got int"),
        ({"i": {"size": 1}}, "missing argument 'title' in 'i'"),
        ({"zz": 1}, "unknown argument 'zz'; the arguments are: a, b"),
    ],
)
def test_a_field_that_does_not_fit_is_named(change, words):
    with pytest.raises(BadArguments, match=words):
        everything.schema.decode(json.dumps(GIVEN | change))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "missing argument 'query'"),
        ("{}", "missing argument 'query'"),
        ('{"query": ["a"', "they end too early, after '.*query"),
        ('{"query": [a]}', r"not valid JSON: invalid character at byte 11, near '.*\[a\]"),
        ('{"query": ["a"]} extra', "trailing characters at byte 18"),
        ("{'query': 1}", "not valid JSON"),
        ('["a"]', "must be one JSON object: expected object, got array"),
        ('{"query": NaN}', "not valid JSON"),
        ('{"query": ["a"], "limit": 1e999}', "'limit'"),
        ('{"query":' * 100_000, "nested too deeply|'query'"),
    ],
)
def test_what_is_no_argument_object(arguments, words):
    with pytest.raises(BadArguments, match=words):
        search.schema.decode(arguments)


def test_lone_surrogates_are_replaced():
    assert search.schema.decode('{"query": ["\\ud800"]}') == ([], {"query": ["\ufffd"]})
    assert search.schema.decode('{"query": ["\ud800"]}') == ([], {"query": ["\ufffd"]})


@given(st.text(st.characters(codec=None, exclude_categories=()), max_size=60))
@settings(max_examples=200)
def test_any_text_is_arguments_or_the_one_error(text):
    for arguments in (text, '{"query": ["' + text + '"]}', '{"query": ' + text, '{"' + text + '": 1}'):
        try:
            _, named = search.schema.decode(arguments)
        except BadArguments as error:
            shown = str(error)
        else:
            shown = ""
            assert isinstance(named["query"], list)
        assert shown.isprintable()


@given(
    st.fixed_dictionaries(
        {"a": st.integers(), "b": st.floats(allow_nan=False, allow_infinity=False), "c": st.lists(st.text())},
        optional={"d": st.none() | st.booleans()},
    )
)
@settings(max_examples=100)
def test_what_fits_arrives_unchanged(values):
    @tool
    def fits(a: int, b: float, c: list[str], d: bool | None = None) -> Any:
        return {"a": a, "b": b, "c": c, "d": d}

    clean = json.loads(json.dumps(values, ensure_ascii=True))
    if any("\ud800" <= char <= "\udfff" for text in clean["c"] for char in text):
        return
    assert read(fits, json.dumps(clean)) == {"d": None} | clean


def test_positional_only_parameters():
    @tool
    def f(a: int, b: int = 2, /, *, c: int = 3) -> Any:
        return a, b, c

    assert read(f, '{"a": 1}') == (1, 2, 3)
    assert read(f, '{"a": 1, "b": 5, "c": 6}') == (1, 5, 6)


def test_bound_methods_and_partials():
    class Shop:
        def __init__(self, name):
            self.name = name

        def price(self, item: str) -> str:
            """Price of an item."""
            return f"{self.name}: {item}"

        async def __call__(self, item: str) -> str:
            return item

    assert read(tool(Shop("x").price), '{"item": "tea"}') == "x: tea"
    bound = tool(name="tea")(functools.partial(Shop("x").price, item="tea"))
    assert bound.parameters["properties"]["item"]["default"] == "tea"
    assert read(bound, "{}") == "x: tea"
    assert tool(name="shop")(Shop("x")).is_async


def no_annotation(a):
    return a


def variadic(*words: str):
    return words


def keywords(**words: str):
    return words


def opaque(a: object):
    return a


def complicated(a: complex):
    return a


def two_arrays(a: "list[int] | set[int]"):
    return a


def unknown(a: "Nowhere"):  # noqa: F821
    return a


def syntax(a: "list["):  # noqa: F722
    return a


def method(self, a: int):
    return a


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (no_annotation, "parameter 'a' has no annotation"),
        (variadic, r"parameter \*words cannot be described"),
        (keywords, r"parameter \*\*words cannot be described"),
        (opaque, "parameter 'a' has the type object"),
        (complicated, "parameter 'a' has the type complex"),
        (two_arrays, "more than one array-like"),
        (unknown, "names 'Nowhere'"),
        (syntax, "cannot be read"),
        (method, "decorate a function, not a method"),
        (5, "must be a function, not int"),
        (lambda: None, "tool name '<lambda>'"),
    ],
)
def test_a_function_that_is_no_tool(function, words):
    with pytest.raises(ConfigError, match=words) as caught:
        tool(function)
    if callable(function) and function.__name__.isidentifier():
        assert f"tool {function.__name__!r}" in str(caught.value)


@pytest.mark.parametrize(
    "options", [{"name": "a b"}, {"name": ""}, {"name": "x" * 65}, {"timeout": 0}, {"timeout": -1}]
)
def test_an_option_that_cannot_be_used(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        tool(**options)(search.__wrapped__)


def test_definitions_are_canonical():
    box = Toolbox([search, everything])
    assert box.definitions() == Toolbox([search, everything]).definitions()
    assert [d["function"]["name"] for d in json.loads(box.definitions())] == box.names == ["search", "everything"]
    assert Toolbox().definitions() == b"[]"
    assert isinstance(tool(search.__wrapped__), Tool)


@pytest.mark.parametrize(
    ("text", "summary", "arguments"),
    [
        (None, "", {}),
        ("", "", {}),
        ("One line.", "One line.", {}),
        ("\nArgs:\n    a: one", "", {"a": "one"}),
        (
            "S.\n\nArguments:\n    a: one\n    *b (str, optional): two\n\n      lines\n\nRaises:\n    E: no",
            "S.",
            {"a": "one", "b": "two lines"},
        ),
        ("S.\n\nArgs:\n  a:\n    below\n  stray\n\nExample:\n  b: not one", "S.", {"a": "below stray"}),
    ],
)
def test_docstrings(text, summary, arguments):
    assert parse(text) == (summary, arguments)
