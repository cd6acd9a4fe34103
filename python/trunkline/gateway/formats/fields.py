"""Reads fields of a request that may hold anything, and the parts of a request that interfaces share."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from trunkline._internal.text import excerpt
from trunkline._internal.validation import did_you_mean, short_repr, type_phrase
from trunkline.errors import ConfigError
from trunkline.gateway.types import RequestRefused
from trunkline.llm.messages import LONGEST, check
from trunkline.llm.request import Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

FieldPath: TypeAlias = tuple[str | int, ...]
"""Where an object is in a request: names of fields, and places in lists."""

MOST_CHOICES: Final = 128
_MOST_TOOLS: Final = 512

_HEAD_SIZE: Final = 100
"""Bytes that a message may be longer by than the item that it is of, however its texts are escaped."""
_ESCAPED_SIZE: Final = len(r"\u0000")
"""Bytes of the longest character."""

NOT_HANDED_OUT: Final = "the run keeps log-probabilities, and hands none out"

SAMPLING: Final = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
"""Fields that are parameters of ``Sampling`` by the same name."""

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

_FUNCTION: Final = (("name", (str,)), ("description", (str,)), ("parameters", (dict,)), ("strict", (bool,)))
_NEVER_EMPTY: Final = (bool, int, float)
_KINDS: Final = {
    str: "a string",
    dict: "an object",
    list: "a list",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
}

_WORD: Final = re.compile(r"\w*")


def named(*path: str | int) -> str:
    """Return the name of a field by its path: ``messages[3].content``."""
    return "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in path).removeprefix(".")


def shown(value: object) -> str:
    """Return a value for a message, whatever its size: a list or an object is not written out."""
    if type(value) in (list, dict):
        return type_phrase(value)
    return excerpt(short_repr(value[:80] if isinstance(value, str) else value), 80)


def unsupported(field: str, why: str) -> RequestRefused:
    """Return the refusal of a field that is not offered."""
    param = excerpt(field, 80)
    return RequestRefused(f"Unsupported parameter: '{param}': {why}", 400, "unsupported_parameter", param=param)


def unsupported_kind(at: FieldPath, kind: object, why: str) -> RequestRefused:
    """Return the refusal of a part of a request whose ``type`` is not offered."""
    return unsupported(named(*at, "type"), f"{shown(kind)} {why}")


def invalid(field: str, expected: str, value: object) -> RequestRefused:
    """Return the refusal of a value that a field cannot have."""
    param = excerpt(field, 80)
    message = f"Invalid value for '{param}': expected {expected}, got {shown(value)}"
    return RequestRefused(message, 400, "invalid_value", param=param)


def check_offered(body: Mapping[str, Any], known: Collection[str], refused: Mapping[str, str]) -> None:
    """Refuse a request with a field that is not offered; ``refused`` says why for each."""
    for field in body:
        if field not in known and given(body, field) not in (None, False):
            near = excerpt(did_you_mean(field[:80], known), 80)
            raise unsupported(field, refused.get(field) or f"it is not offered here{near}; leave it out")


def given(body: Mapping[str, Any], field: str) -> Any:
    """Return a field; None where it is absent, null or empty."""
    value = body.get(field)
    return value if value or type(value) in _NEVER_EMPTY else None


def of_kind(body: Mapping[str, Any], field: str, kinds: tuple[type, ...], at: FieldPath = ()) -> Any:
    """Return a field of one of some types of JSON; None where it is absent, null or empty.

    Args:
        body: The object that has the field.
        field: Its name.
        kinds: The types.
        at: The path of the object in the request.
    """
    value = body.get(field)
    if not value and type(value) not in _NEVER_EMPTY:
        return None
    if type(value) not in kinds:
        words = [_KINDS[kind] for kind in kinds if kind is not int or float not in kinds]
        raise invalid(named(*at, field), " or ".join(words), value)
    return value


def text(body: Mapping[str, Any], field: str, at: FieldPath = ()) -> str:
    """Return a text field; an absent field is the empty text."""
    return of_kind(body, field, (str,), at) or ""


def flag(body: Mapping[str, Any], field: str, at: FieldPath = ()) -> bool:
    """Return a flag; an absent field is false."""
    return of_kind(body, field, (bool,), at) is True


def mapping(body: Mapping[str, Any], field: str, at: FieldPath = ()) -> dict[str, Any]:
    """Return an object; an absent field is an empty object."""
    return of_kind(body, field, (dict,), at) or {}


def items(body: Mapping[str, Any], field: str, at: FieldPath = ()) -> list[Any]:
    """Return a list; an absent field is an empty list."""
    return of_kind(body, field, (list,), at) or []


def objects(body: Mapping[str, Any], field: str, at: FieldPath = ()) -> list[dict[str, Any]]:
    """Return a list of objects; an absent field is an empty list."""
    found = items(body, field, at)
    for one in found:
        if type(one) is not dict:
            raise invalid(named(*at, field), "a list of objects", found)
    return found


def of_list(field: str, item: Any) -> dict[str, Any]:
    """Return an item of a list, which must be an object."""
    if type(item) is not dict:
        raise invalid(field, "a list of objects", [])
    return item


def no_list(field: str, value: Any) -> list[dict[str, Any]]:
    """Refuse a value in place of a list of objects; an absent field is an empty list."""
    return objects({field: value}, field)


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
    return {field: of_kind(body, field, PASSED_ON[field]) for field in body if field in PASSED_ON}


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
    known = {name: value for name in SAMPLING if (value := of_kind(body, name, (int, float))) is not None}
    known["max_tokens"] = of_kind(body, most, (int,))
    if ends := of_kind(body, stop, (str, list)):
        listed = [ends] if isinstance(ends, str) else items(body, stop)
        if not all(isinstance(one, str) for one in listed):
            raise invalid(stop, "strings", listed)
        known["stop"] = tuple(listed)
    names = {"max_tokens": most, "stop": stop}
    try:
        return Sampling(**known, extra={name: value for name, value in extra.items() if value is not None})
    except ConfigError as problem:
        said = str(problem).removeprefix("sampling.")
        found = _WORD.match(said)
        name = found[0] if found else ""
        field = names.get(name, name)
        message = f"Invalid value: {excerpt(field + said[len(name) :], 200)}"
        raise RequestRefused(message, 400, "invalid_value", param=field) from None


def function_tools(
    listed: list[dict[str, Any]], read: Callable[[dict[str, Any]], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return tools in the form of chat completions; ``read`` returns the function that a tool of the list holds."""
    if len(listed) > _MOST_TOOLS:
        raise invalid("tools", f"at most {_MOST_TOOLS} tools", len(listed))
    found: list[dict[str, Any]] = []
    for place, tool in enumerate(listed):
        at = ("tools", place)
        kind = given(tool, "type") or "function"
        if kind != "function":
            raise unsupported_kind(at, kind, "is run by its provider; give tools that are functions")
        function = read(tool)
        kept = {name: value for name, kinds in _FUNCTION if (value := of_kind(function, name, kinds, at)) is not None}
        if "name" not in kept:
            raise invalid(named(*at), "a function with a name", tool)
        found.append({"type": "function", "function": kept})
    check_sendable("tools", found)
    return found


def check_sendable(field: str, value: object) -> None:
    """Refuse a value that cannot be encoded."""
    if not is_sendable(value):
        raise RequestRefused(
            f"Invalid value for '{field}': it is nested too deeply; use fewer levels", 400, "invalid_value", param=field
        )


def is_sendable(value: object) -> bool:
    """Whether a value can be encoded, within a body too: its nesting is at least eight levels below the deepest."""
    try:
        msgspec.json.encode([[[[[[[[value]]]]]]]])
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False
    return True


def joined(parts: list[dict[str, Any]], between: str = "\n") -> Any:
    """Return the text of parts that are all texts, joined; else the parts."""
    return between.join(part["text"] for part in parts) if all(part["type"] == "text" for part in parts) else parts


def text_part(part: Mapping[str, Any], at: FieldPath, field: str = "text") -> dict[str, Any]:
    """Return a part that is a text, in the form of chat completions."""
    return {"type": "text", "text": text(part, field, at)}


def function_call(call_id: Any, name: Any, arguments: str, at: FieldPath) -> dict[str, Any]:
    """Return a call in the form of chat completions."""
    if type(call_id) is not str or type(name) is not str:
        raise invalid(named(*at), "a call with an id and a name that are strings", {"id": call_id, "name": name})
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool_result(call_id: Any, content: Any, at: FieldPath) -> dict[str, Any]:
    """Return the message of a tool in the form of chat completions."""
    if type(call_id) is not str:
        raise invalid(named(*at), "a result with the id of its call, a string", call_id)
    return {"role": "tool", "content": content, "tool_call_id": call_id}


def check_messages(messages: list[dict[str, Any]], field: str, size: int, first: int = 0) -> None:
    """Refuse messages that cannot be sent; all is checked but their number, their size and parts that are no text.

    Args:
        messages: The messages.
        field: The field that they are in.
        size: Bytes of them as they came.
        first: How many were checked before, but for their number and size.

    Raises:
        RequestRefused: There are none, they are too long, or a part cannot be sent.
    """
    if not messages:
        raise invalid(field, "at least one message", messages)
    size += _HEAD_SIZE * len(messages)
    if size * _ESCAPED_SIZE <= LONGEST:
        for one in messages[first:]:
            if type(one["content"]) is not str:
                break
        else:
            return
    try:
        check(messages, field)
    except ConfigError as problem:
        message = f"Invalid value: {excerpt(str(problem), 200)}"
        raise RequestRefused(message, 400, "invalid_value", param=field) from None
