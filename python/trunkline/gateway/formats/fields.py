"""Reads fields of a request that may hold anything, and the parts of a request that interfaces share."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline._internal.text import excerpt
from trunkline._internal.validation import did_you_mean, short_repr
from trunkline.errors import ConfigError
from trunkline.gateway.types import RequestRefused
from trunkline.llm.messages import check
from trunkline.llm.request import Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

MOST_CHOICES: Final = 128
_MOST_TOOLS: Final = 512

NOT_HANDED_OUT: Final = "the run keeps log-probabilities, and hands none out"

SAMPLING: Final = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
"""Fields that are parameters of :class:`Sampling` by the same name."""

PASSED_ON: Final[Mapping[str, tuple[type, ...]]] = {
    "parallel_tool_calls": (bool,),
    "response_format": (dict,),
    "reasoning_effort": (str,),
    "verbosity": (str,),
    "logit_bias": (dict,),
    "top_k": (int,),
    "min_p": (int, float),
    "min_tokens": (int,),
    "repetition_penalty": (int, float),
    "chat_template_kwargs": (dict,),
}
"""Fields that the model's server gets as they are, and what they may be."""

IGNORED: Final = frozenset(
    {"metadata", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier"}
    | {"seed", "service_tier", "store", "stream_options", "user"}
)
"""Fields that change nothing here."""

_FUNCTION: Final = {"name": str, "description": str, "parameters": dict, "strict": bool}
_KINDS: Final = {
    str: "a string",
    dict: "an object",
    list: "a list",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
}

_WORD: Final = re.compile(r"\w*")


def unsupported(field: str, why: str) -> RequestRefused:
    """Return the refusal of a field that is not offered."""
    shown = excerpt(field, 80)
    return RequestRefused(f"Unsupported parameter: '{shown}': {why}", 400, "unsupported_parameter", param=shown)


def invalid(field: str, expected: str, value: object) -> RequestRefused:
    """Return the refusal of a value that a field cannot have."""
    shown = excerpt(field, 80)
    got = excerpt(short_repr(value), 80)
    return RequestRefused(
        f"Invalid value for '{shown}': expected {expected}, got {got}", 400, "invalid_value", param=shown
    )


def check_offered(body: Mapping[str, Any], known: Collection[str], refused: Mapping[str, str]) -> None:
    """Refuse a request with a field that is not offered; ``refused`` says why for each."""
    for field, why in refused.items():
        if given(body, field) not in (None, False):
            raise unsupported(field, why)
    for field in body:
        if field not in known and field not in refused and given(body, field) is not None:
            raise unsupported(
                field, f"it is not offered here{excerpt(did_you_mean(field[:80], known), 80)}; leave it out"
            )


def given(body: Mapping[str, Any], field: str) -> Any:
    """Return a field; None where it is absent, null or empty."""
    value = body.get(field)
    return None if value is None or value in ("", [], {}) else value


def of_kind(body: Mapping[str, Any], field: str, kinds: tuple[type, ...], place: str = "") -> Any:
    """Return a field of one of some types of JSON; None where it is absent, null or empty."""
    value = given(body, field)
    if value is not None and type(value) not in kinds:
        raise invalid(place or field, " or ".join(_KINDS[kind] for kind in kinds), value)
    return value


def text(body: Mapping[str, Any], field: str, place: str = "") -> str:
    """Return a text; empty where there is none."""
    found: str | None = of_kind(body, field, (str,), place)
    return found or ""


def flag(body: Mapping[str, Any], field: str, place: str = "") -> bool:
    """Return a flag; false where there is none."""
    return bool(of_kind(body, field, (bool,), place))


def mapping(body: Mapping[str, Any], field: str, place: str = "") -> dict[str, Any]:
    """Return an object; empty where there is none."""
    return of_kind(body, field, (dict,), place) or {}


def items(body: Mapping[str, Any], field: str, place: str = "") -> list[Any]:
    """Return a list; empty where there is none."""
    return of_kind(body, field, (list,), place) or []


def objects(body: Mapping[str, Any], field: str, place: str = "") -> list[dict[str, Any]]:
    """Return a list of objects; empty where there is none."""
    found = items(body, field, place)
    if not all(isinstance(one, dict) for one in found):
        raise invalid(place or field, "a list of objects", found)
    return found


def choices(body: Mapping[str, Any]) -> int:
    """Return how many choices are asked for."""
    value = body.get("n")
    if value is None:
        return 1
    if type(value) is not int or not 1 <= value <= MOST_CHOICES:
        raise invalid("n", f"a whole number from 1 to {MOST_CHOICES}", value)
    return value


def passed_on(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that the model's server gets as they are."""
    return {field: of_kind(body, field, kinds) for field, kinds in PASSED_ON.items()}


def sampling(
    body: Mapping[str, Any], extra: Mapping[str, Any], most: str = "max_tokens", stop: str = "stop"
) -> Sampling:
    """Return sampling parameters; those that are None are left out.

    Args:
        body: The request.
        extra: Further fields of the request to the model's server.
        most: The field of the most tokens.
        stop: The field of the stop strings.

    Raises:
        RequestRefused: A value is out of range.
    """
    names = {**{name: name for name in SAMPLING}, "max_tokens": most, "stop": stop}
    known = {name: value for name, field in names.items() if (value := given(body, field)) is not None}
    if isinstance(known.get("stop"), str):
        known["stop"] = (known["stop"],)
    elif "stop" in known:
        known["stop"] = tuple(items(body, stop))
    try:
        return Sampling(**known, extra={name: value for name, value in extra.items() if value is not None})
    except ConfigError as problem:
        said = str(problem).removeprefix("sampling.")
        found = _WORD.match(said)
        name = found[0] if found else ""
        field = names.get(name, name)
        shown = excerpt(field + said[len(name) :], 200)
        raise RequestRefused(f"Invalid value: {shown}", 400, "invalid_value", param=field) from None


def function_tools(
    listed: list[dict[str, Any]], read: Callable[[dict[str, Any]], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return tools in the form of chat completions; ``read`` returns the function that a tool of the list holds."""
    if len(listed) > _MOST_TOOLS:
        raise invalid("tools", f"at most {_MOST_TOOLS} tools", len(listed))
    found: list[dict[str, Any]] = []
    for place, tool in enumerate(listed):
        kind = given(tool, "type") or "function"
        if kind != "function":
            shown = excerpt(short_repr(kind), 80)
            raise unsupported(f"tools[{place}].type", f"{shown} is run by its provider; give tools that are functions")
        function = read(tool)
        if not text(function, "name", f"tools[{place}].name"):
            raise invalid(f"tools[{place}]", "a function with a name", tool)
        kept = {name: of_kind(function, name, (kind,), f"tools[{place}].{name}") for name, kind in _FUNCTION.items()}
        found.append({"type": "function", "function": {name: one for name, one in kept.items() if one is not None}})
    if found:
        _check_json("tools", found)
    return found


def _check_json(field: str, value: object) -> None:
    """Refuse a value that cannot be sent."""
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as problem:
        raise RequestRefused(f"Invalid value for '{field}': {excerpt(str(problem), 100)}", 400, param=field) from None


def joined(parts: list[dict[str, Any]], between: str = "\n") -> Any:
    """Return the text of parts that are all texts, joined; else the parts."""
    return between.join(part["text"] for part in parts) if all(part["type"] == "text" for part in parts) else parts


def text_part(part: Mapping[str, Any], place: str, field: str = "text") -> dict[str, Any]:
    """Return a part that is a text, in the form of chat completions."""
    return {"type": "text", "text": text(part, field, f"{place}.{field}")}


def function_call(call_id: Any, name: Any, arguments: str, place: str) -> dict[str, Any]:
    """Return a call in the form of chat completions."""
    if not isinstance(call_id, str) or not isinstance(name, str):
        raise invalid(place, "a call with an id and a name that are strings", {"id": call_id, "name": name})
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def checked(messages: list[dict[str, Any]], field: str = "messages") -> list[dict[str, Any]]:
    """Return messages that can be sent.

    Raises:
        RequestRefused: There are none, or one is no message.
    """
    if not messages:
        raise invalid(field, "at least one message", messages)
    try:
        check(messages)
    except ConfigError as problem:
        shown = excerpt(str(problem), 200)
        raise RequestRefused(f"Invalid value: {shown}", 400, "invalid_value", param=field) from None
    return messages
