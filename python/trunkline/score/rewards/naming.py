"""What a reward is called, with the options that tell it from another of its kind."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline.llm.text import HIDDEN, without_secrets
from trunkline.printable import printable
from trunkline.score.rewards.policy import policy_of

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["full_name", "short_name"]

_HOW: Final = frozenset({"timeout", "batch", "thread"})
"""Options that say how a reward is asked, and not what it says."""

_SECRET: Final = re.compile(r"(?i)(key|authorization|passw(or)?d|secret|credentials?|token|cookie)$")
"""Options that no file and no message says."""

_LONG: Final = 60
"""Characters of a text option that are spelt out; of a longer one a digest tells it from others."""


class _Made(msgspec.Struct):
    """Shows how msgspec holds a default that is made anew each time."""

    new: list[int] = msgspec.field(default_factory=list)


_FACTORY: Final = type(_Made.__struct_defaults__[0])


def short_name(reward: Any) -> str:
    """Return what a reward is called, without its options.

    Args:
        reward: A function, or another object that can be called.
    """
    return policy_of(reward).name or str(getattr(reward, "__name__", type(reward).__name__))


def full_name(reward: Any) -> str:
    """Return what a run file calls a reward: its name, and of a struct the options that are not as by default.

    Options that only say how it is asked (``timeout``, ``batch``, ``thread``) are left out: they change no value.

    Args:
        reward: A function, or another object that can be called.
    """
    options = ", ".join(_options(reward)) if isinstance(reward, msgspec.Struct) else ""
    return f"{short_name(reward)}({options})" if options else short_name(reward)


def _options(struct: msgspec.Struct) -> Iterator[str]:
    """The options of a struct that are not as by default."""
    # Not by msgspec.structs.fields, which looks annotations up: those of a user's class may lead nowhere here.
    names, defaults = struct.__struct_fields__, struct.__struct_defaults__
    required = (msgspec.NODEFAULT,) * (len(names) - len(defaults))
    for name, default in zip(names, (*required, *defaults), strict=True):
        value = getattr(struct, name)
        usual = default.factory() if isinstance(default, _FACTORY) else default
        if name not in _HOW and (usual is msgspec.NODEFAULT or value != usual):
            yield f"{name}={HIDDEN if _SECRET.search(name) else _spelt(value)}"


def _spelt(value: object) -> str:
    """A value on one line, the same in every process."""
    match value:
        case str():
            return _text(value)
        case None | bool() | int() | float():
            return str(value).removesuffix(".0")  # a whole number may come back from a file as a float
        case dict():
            return "{" + ", ".join(f"{_spelt(key)}: {_spelt(item)}" for key, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_spelt, value)) + "]"
    if isinstance(value, msgspec.Struct) and not callable(value):
        return f"{type(value).__name__}({', '.join(_options(value))})"
    return full_name(value)


def _text(value: str) -> str:
    """A text as it is, or the beginning of a long one with a digest of all of it."""
    if len(value) <= _LONG:
        return printable(without_secrets(value), 4 * _LONG)
    digest = hashlib.blake2b(value.encode(errors="replace"), digest_size=4).hexdigest()
    return f"{printable(without_secrets(value)[:_LONG], 4 * _LONG)}...#{digest}"
