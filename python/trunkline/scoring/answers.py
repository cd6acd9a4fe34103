"""Extract answers, action keys."""

from __future__ import annotations

import json
import math
import re
from hashlib import blake2b
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline.llm.dialects.base import spoken
from trunkline.llm.dialects.builtin import Hermes, SearchR1
from trunkline.llm.types import ReplyChoice
from trunkline.tree.answers import DIGITS, LONG, normalise
from trunkline.tree.views import message_text

if TYPE_CHECKING:
    from trunkline._internal.text import JSON
    from trunkline.types import Message


_BOXED = re.compile(r"\\boxed\s*\{")
_BRACE = re.compile(r"\\[{}\\]|[{}]")  # an escaped brace balances nothing
_NUMBER = re.compile(rf"(?:(?<![\w.)])-)?(?<![\w.]){DIGITS}(?:e[-+]?[0-9]{{1,3}})?(?![0-9])")
_dumps = json.JSONEncoder(sort_keys=True).encode
_SPACE = re.compile(r"\s")
_FRACTION = re.compile(r"-?[0-9]{1,30}\s*/\s*[0-9]{1,30}")


def _boxed(text: str) -> str | None:
    # One pass with a stack, as unbalanced braces must not make it quadratic; those before the first box do not count.
    boxes = [*_BOXED.finditer(text)]
    if not boxes:
        return None
    starts = {box.end() for box in boxes}
    found: tuple[int, int] | None = None
    opened: list[int] = []
    for match in _BRACE.finditer(text, boxes[0].start()):
        if match[0] == "{":
            opened.append(match.end())
        elif match[0] == "}" and opened:
            start = opened.pop()
            if start in starts and (found is None or start > found[0]):
                found = (start, match.start())
    return None if found is None else text[found[0] : found[1]].strip()


def extract_answer(text: str) -> str:
    r"""The final answer in an assistant's text, thinking left out.

    It is the last ``<answer>`` region, else the last ``\boxed{...}`` with balanced braces, else the whole text.
    """
    return _final(spoken(text))


def _final(text: str) -> str:
    """The final answer in a text without thinking."""
    if "<answer>" in text:
        # Without the closing tag the rest is the answer: servers drop a stop string from the reply.
        return text.rpartition("<answer>")[2].partition("</answer>")[0].strip()
    boxed = _boxed(text) if "\\boxed" in text else None
    return text.strip() if boxed is None else boxed


def tail(text: str, limit: int) -> str:
    """The end of a text, without the word that the cut went through."""
    if len(text) <= limit:
        return text
    space = _SPACE.search(text, len(text) - limit - 1)
    return "" if space is None else text[space.end() :]


def number(text: str) -> float | None:
    """The number an answer states: the whole answer if it is a fraction, else the last number in it."""
    text = tail(text.strip(), LONG).casefold().replace("\u2212", "-")
    if _FRACTION.fullmatch(text):
        above, below = text.split("/")
        return int(above) / int(below) if int(below) else None
    found = _NUMBER.findall(text)
    if not found:
        return None
    value = float(found[-1].replace(",", ""))
    return value if math.isfinite(value) else None


# Dialects whose calls stand in the text, with what they must know of tools to read one.
_WRITTEN = (Hermes(), SearchR1())
_TOOLS = [{"function": {"name": "search", "parameters": {"properties": {"query": {"type": "string"}}}}}]


def action(turn: Message) -> str:
    """A key of a model turn's action: its tool calls, else its normalised answer.

    Calls are read from ``tool_calls`` and from text in the ``hermes`` or ``search-r1`` form, without thinking. The
    order of calls and arguments, and case and white space of texts, make no difference.
    """
    calls: list[tuple[str, str]] = []
    if "tool_calls" in turn:
        calls = [(str(call.get("name")), str(call.get("arguments"))) for call in called_functions(turn)]
    text = turn.get("content")
    if type(text) is not str:
        text = message_text(turn)
    said = spoken(text)
    if not calls and ("<tool_call>" in said or "<search>" in said):
        calls = _written(text)
    if calls:
        key = _dumps(sorted([[name, _plain(arguments)] for name, arguments in calls]))
    else:
        key = encode_basestring_ascii(normalise(_final(said)))
    # ASCII, so that lone surrogates can be hashed.
    return blake2b(key.encode(), digest_size=8).hexdigest()


def called_functions(message: Message) -> list[dict[str, Any]]:
    """The function objects of a message's native tool calls; entries of another form are left out."""
    listed = message.get("tool_calls")
    found = [call.get("function") for call in listed if isinstance(call, dict)] if isinstance(listed, list) else []
    return [function for function in found if isinstance(function, dict)]


def _written(text: str) -> list[tuple[str, str]]:
    for dialect in _WRITTEN:
        calls = dialect.parse(ReplyChoice(text, None, [], "stop"), _TOOLS).calls
        if calls:
            return [(call.name, call.arguments) for call in calls]
    return []


def _plain(arguments: str) -> str:
    """Return arguments in one spelling; text that is no JSON stands for itself."""
    try:
        return _dumps(_folded(msgspec.json.decode(arguments)))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return _dumps(_folded(arguments))


def _folded(value: Any) -> JSON:
    match value:
        case str():
            return " ".join(value.casefold().split())
        case list():
            return [_folded(item) for item in value]
        case dict():
            return {key: _folded(item) for key, item in value.items()}
    return value
