"""Answers kept in a file, found by the body up to the draws and the draw's seed, so that repeats stay distinct."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from trunkline._core import read_reply
from trunkline._internal.key_value import KeyValueFile
from trunkline._internal.validation import check_text, check_that
from trunkline.errors import ReplyError

if TYPE_CHECKING:
    from trunkline.llm.types import Request


_APPLICATION_ID: Final = 0x54524C43  # TRLC, in the header of every cache
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_choices = msgspec.json.Decoder(list[msgspec.Raw])
_choice = msgspec.json.Decoder(dict[str, msgspec.Raw])


def place(cache: Any) -> str:
    """The absolute path of a cache's file, valid in workers too."""
    fits = isinstance(cache, str | Path) and str(cache) and "\0" not in str(cache)
    check_that(fits, "cache must be the path of a file", cache)
    return check_text("cache", str(Path(cache).absolute()))


class Key(NamedTuple):
    """A request without its draws, and the seed of its first draw."""

    request: bytes
    seed: int


class Cache:
    """A file of answers, which several processes may use at once; losing it costs nothing but requests."""

    def __init__(self, path: str | Path) -> None:
        self._file = KeyValueFile(path, "the cache", _APPLICATION_ID, table="answers", column="body BLOB")

    def key(self, request: Request, llm: str = "") -> Key:
        """The key of a request, under which its draws are stored."""
        digest = hashlib.blake2b(request.route.encode() + b"\0", digest_size=16)
        digest.update(memoryview(request.body)[: request.constant or len(request.body)])
        if request.weights is not None:
            digest.update(b"\0weights:" + request.weights.encode())
        if llm:
            digest.update(b"\0llm:" + llm.encode())
        return Key(digest.digest(), request.seed or 0)

    def get(self, key: Key, draw: int) -> bytes | None:
        """Return the answer to a draw: a completion with that choice alone; None if it is not kept."""
        body: bytes | None = self._file.get(_row(key, draw))
        return body

    def keep(self, key: Key, first: int, place: int, count: int, data: bytes) -> None:
        """Keep an answer, one row per draw."""
        try:
            rows = [(_row(key, first + place + number), alone) for number, alone in enumerate(_alone(data)[:count])]
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return  # A log-probability that is no number, for example: the reader takes what is no strict JSON.
        self._file.keep(rows)

    def close(self) -> None:
        """Close the file; may be called more than once."""
        self._file.close()


def _row(key: Key, draw: int) -> bytes:
    return key.request + (key.seed + draw).to_bytes(8, "little")


def _alone(data: bytes) -> list[bytes]:
    """Split an answer into answers of one choice each, in the order of their draws."""
    if data.lstrip()[:1] == b"[":
        return [bytes(one) for one in _choices.decode(data)]
    members = _members.decode(data)
    if "choices" not in members:
        return [data]
    choices = _choices.decode(members["choices"])
    if len(choices) == 1:
        return [data]
    fields = [_choice.decode(choice) for choice in choices]
    if all(bytes(field.get("index", b"null")) != b"null" for field in fields):
        fields.sort(key=lambda field: float(bytes(field["index"])))
    reported = msgspec.json.decode(members.get("usage", msgspec.Raw(b"null")))
    usage: dict[str, object] = reported if isinstance(reported, dict) else {}
    generated, sizes = _generated(data, fields), [sum(map(len, map(bytes, field.values()))) for field in fields]
    alone, before = [], 0
    for place, field in enumerate(fields):
        until = before + sizes[place]
        if isinstance(generated, int):
            total = sum(sizes)
            usage["completion_tokens"] = generated * until // total - generated * before // total
        before = until
        one = members | {"choices": msgspec.Raw(msgspec.json.encode([field | {"index": msgspec.Raw(b"0")}]))}
        alone.append(msgspec.json.encode(one | ({"usage": usage} if usage else {})))
    return alone


def _generated(data: bytes, choices: list[dict[str, msgspec.Raw]]) -> int | None:
    """Generated tokens of all choices, as the replies' reader counts them."""
    try:
        return read_reply(data, form="completion" if "text" in choices[0] else "chat").generated
    except ReplyError:
        return None
