"""Repairs tool calls whose JSON is broken.

The repair itself is the library json-repair (MIT, no dependencies), an extra. Hostile text of a few kilobytes can keep
it busy for seconds, so the work for one turn is bounded.
"""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from trunkline._internal.text import loads, scrub
from trunkline.errors import ConfigError
from trunkline.llm.dialects.base import call_of
from trunkline.llm.types import ToolCall

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from trunkline._internal.text import JSON

_LONGEST: Final = 4096
_WORK: Final = 500_000
"""Work that the calls of one turn may cause, by ``_work``."""

_SHOWN: Final = 1000

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


class RepairedCall(NamedTuple):
    """A call as it runs, and the note about a repair that the model reads before the result; empty without one."""

    call: ToolCall
    note: str = ""


def need_library() -> None:
    try:
        _library()
    except ImportError:
        raise ConfigError("malformed='repair' needs the repair extra: pip install 'trunkline[repair]'") from None


def sound(call: ToolCall) -> bool:
    """Whether a call has a name, and for arguments a JSON object or nothing."""
    if not call.name or not call.arguments.strip():
        return bool(call.name)
    try:
        _object.decode(call.arguments)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        # What a strict reader refuses may still be an object: one with an escaped lone surrogate.
        return isinstance(_value(call.arguments), dict)
    return True


def mend(calls: Sequence[ToolCall]) -> list[RepairedCall]:
    """Repair the calls of one turn, in order, within the work for a turn; a call that cannot be repaired stays."""
    left, mended = _WORK, []
    for call in calls:
        repaired = None
        if not sound(call) and (work := _work(call.arguments)) <= left:
            left -= work
            repaired = _repaired(call)
        mended.append(repaired or RepairedCall(call))
    return mended


def _work(text: str) -> int:
    """Estimate, in no unit, the worst cost of a repair: it grows with the length and with brackets and quotes."""
    if len(text) > _LONGEST:
        return _WORK + 1
    brackets, quotes = (sum(map(text.count, signs)) for signs in ("{[(", "\"'`\u201c\u201d"))
    return len(text) * (1 + brackets) * (1 + quotes)


def _repaired(call: ToolCall) -> RepairedCall | None:
    value = _value(call.arguments)
    try:
        # Arguments that were encoded twice are text that holds the object.
        found = value if isinstance(value, dict) else _library().loads(value or call.arguments, skip_json_loads=True)
        text = json.dumps(found, ensure_ascii=False)
    except Exception:  # noqa: BLE001 - a library at work on hostile text
        return None
    if not isinstance(found, dict):
        return None
    fixed = ToolCall(call.id, call.name, text) if call.name else call_of(found)
    what = "The arguments were" if call.name else "The tool call was"
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    return RepairedCall(fixed, f"[{what} no JSON object; read as {scrub(shown)}]\n") if sound(fixed) else None


def _value(text: str) -> JSON:
    """Return the JSON value of a text; None where it is no JSON."""
    try:
        return loads(text)
    except (ValueError, RecursionError):
        return None


def _library() -> ModuleType:
    return importlib.import_module("json_repair")
