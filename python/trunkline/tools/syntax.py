"""What is wrong with a JSON text, in words for the model that wrote it."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from trunkline.llm.text import excerpt, scrub

__all__ = ["fault", "unreadable"]

_BYTE: Final = re.compile(r"\(byte (\d+)\)")


def fault(text: str, error: str) -> str:
    """Say where a text stops being JSON.

    Args:
        text: The text, without lone surrogates.
        error: What msgspec says of it.
    """
    reason = error.removeprefix("JSON is malformed: ")
    if "truncated" in reason:
        return f"they end too early, after '{excerpt(text[-30:], 60)}'"
    byte = _BYTE.search(reason)
    if byte is None:
        return excerpt(reason, 120)
    at = int(byte.group(1))
    near = text.encode()[max(0, at - 20) : at + 20]
    return f"{reason[: byte.start()].strip()} at byte {at}, near '{excerpt(near, 60)}'"


def unreadable(text: str) -> str:
    """Say why a text is no tool call: it is no JSON, or JSON that names no tool.

    Args:
        text: All that the model wrote for the call.
    """
    text = scrub(text)
    try:
        msgspec.json.decode(text)
    except RecursionError:
        return "it is nested too deeply"
    except (msgspec.DecodeError, UnicodeError) as error:
        return f"its contents are not valid JSON: {fault(text, str(error))}"
    return 'it must be an object with the tool\'s "name" and its "arguments"'
