"""Reads fields of a request that may hold anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from trunkline._internal.text import excerpt
from trunkline._internal.validation import short_repr
from trunkline.errors import ConfigError
from trunkline.gateway.types import RequestRefused
from trunkline.llm.request import Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MOST_CHOICES: Final = 128
_MOST_TOOLS: Final = 512
_FUNCTION: Final = ("name", "description", "parameters", "strict")


def unsupported(field: str, why: str) -> RequestRefused:
    """Return the refusal of a field that is not offered."""
    shown = excerpt(field, 80)
    return RequestRefused(f"Unsupported parameter: '{shown}': {why}", 400, "unsupported_parameter")


def invalid(field: str, expected: str, value: object) -> RequestRefused:
    """Return the refusal of a value that a field cannot have."""
    shown = excerpt(short_repr(value), 80)
    return RequestRefused(
        f"Invalid value for '{excerpt(field, 80)}': expected {expected}, got {shown}", 400, "invalid_value"
    )


def given(body: Mapping[str, Any], field: str) -> Any:
    """Return a field; None where it is absent, null or empty."""
    value = body.get(field)
    return None if value is None or value in ("", [], {}) else value


def text(body: Mapping[str, Any], field: str, place: str = "") -> str:
    """Return a text; empty where there is none."""
    value = given(body, field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise invalid(place or field, "a string", value)
    return value


def flag(body: Mapping[str, Any], field: str) -> bool:
    """Return a flag; false where there is none."""
    value = body.get(field)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise invalid(field, "true or false", value)
    return value


def objects(body: Mapping[str, Any], field: str, place: str = "") -> list[dict[str, Any]]:
    """Return a list of objects; empty where there is none."""
    value = given(body, field)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise invalid(place or field, "a list of objects", value)
    return value


def choices(body: Mapping[str, Any]) -> int:
    """Return how many choices are asked for."""
    value = body.get("n")
    if value is None:
        return 1
    if type(value) is not int or not 1 <= value <= MOST_CHOICES:
        raise invalid("n", f"a whole number from 1 to {MOST_CHOICES}", value)
    return value


def sampling(found: Mapping[str, Any], extra: Mapping[str, Any]) -> Sampling:
    """Return sampling parameters; those that are None are left out.

    Raises:
        RequestRefused: A value is out of range.
    """
    known = {name: value for name, value in found.items() if value is not None}
    stop = known.get("stop")
    if isinstance(stop, str):
        known["stop"] = (stop,)
    elif isinstance(stop, list):
        known["stop"] = tuple(stop)
    try:
        return Sampling(**known, extra={name: value for name, value in extra.items() if value is not None})
    except ConfigError as problem:
        raise RequestRefused(f"Invalid value: {excerpt(str(problem), 200)}", 400, "invalid_value") from None


def function_tools(listed: list[dict[str, Any]], read: Callable[[dict[str, Any]], Any]) -> list[dict[str, Any]]:
    """Return tools in the form of chat completions; ``read`` returns the function that a tool of the list holds."""
    if len(listed) > _MOST_TOOLS:
        raise invalid("tools", f"at most {_MOST_TOOLS} tools", len(listed))
    found = []
    for place, tool in enumerate(listed):
        kind = tool.get("type", "function")
        if kind != "function":
            raise unsupported(f"tools[{place}].type", f"{short_repr(kind)} is run by its provider; give function tools")
        function = read(tool)
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise invalid(f"tools[{place}]", "a function with a name", function)
        for name, kind_of in (("description", str), ("parameters", dict), ("strict", bool)):
            if function.get(name) is not None and not isinstance(function[name], kind_of):
                raise invalid(f"tools[{place}].{name}", f"a {kind_of.__name__}", function[name])
        kept = {name: function[name] for name in _FUNCTION if function.get(name) is not None}
        found.append({"type": "function", "function": kept})
    return found
