"""How two runs' settings differ, field by field, and which differences give results another meaning."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trunkline.printable import printable, quoted
from trunkline.store.redact import redact
from trunkline.team.team import ALIKE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["Change", "as_stored", "changes", "fingerprint", "gives_meaning"]

_FREE = {"trunkline", "labels", "cache", "budget", "timing_dependent", "weights"}
"""What may change from one sitting of a run to the next."""

_OF_LLM = {"tokens", "kind"}
"""What of an LLM may not; where it is, what it costs, and how it is asked may."""

_OF_TEAM = ALIKE
"""What of a team may: what is sent and what comes of it stay the same."""

_SHOWN = 60
_NAMED = 120


class Change(NamedTuple):
    """One field that differs.

    Attributes:
        field: Its name, with those of what it is in: ``strategy.options.n``.
        there: Its value in the run file, for people.
        here: Its value now, for people.
    """

    field: str
    there: str
    here: str

    @property
    def root(self) -> str:
        """The outermost of these names."""
        return re.split(r"[.\[]", self.field, maxsplit=1)[0]

    def __str__(self) -> str:
        return f"{printable(self.field, _NAMED)}: {self.there} there, {self.here} here"


def as_stored(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as a run file has them: without secrets, and nothing but data."""
    plain = redact(msgspec.to_builtins(dict(settings), enc_hook=str))
    return msgspec.json.decode(msgspec.json.encode(plain), type=dict[str, Any])


def gives_meaning(field: str) -> bool:
    """Whether results with another value of a field are results of something else."""
    first, _, rest = field.partition(".")
    if first == "llms" and "." in rest:
        first, rest = "llm", rest.partition(".")[2]
    if first == "llm":
        return rest.partition(".")[0] in _OF_LLM
    if first == "team":
        return rest not in _OF_TEAM
    return first not in _FREE


def changes(there: Any, here: Any, field: str = "") -> Iterator[Change]:
    """Compare settings; what is absent is as if it were nothing.

    Args:
        there: Those of the run file.
        here: Those of now, as they would be stored.
        field: The name of what is compared.

    Yields:
        Each field that differs.
    """
    if isinstance(there, dict) and isinstance(here, dict):
        for name in [*there, *(name for name in here if name not in there)]:
            inner = f"{field}.{name}" if field else name
            yield from changes(there.get(name), here.get(name), inner)
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        for place, (old, new) in enumerate(zip(there, here, strict=True)):
            yield from changes(old, new, f"{field}[{place}]")
    elif there != here:
        yield Change(field, _shown(there), _shown(here))


def fingerprint(settings: Mapping[str, Any], tasks: Iterable[bytes]) -> str:
    """Return eight hexadecimal digits that runs share which are asked to do the same.

    Args:
        settings: What gives the results their meaning, as it would be stored; the rest of it is not looked at.
        tasks: The tasks' records.
    """
    found = hashlib.sha256()
    said = {name: _grave(value, name) for name, value in settings.items() if name not in _FREE}
    found.update(msgspec.json.encode(said, order="sorted"))
    for record in tasks:
        found.update(len(record).to_bytes(8, "little"))
        found.update(record)
    return found.hexdigest()[:8]


def _grave(value: Any, field: str) -> Any:
    """What of a setting gives results their meaning."""
    if not isinstance(value, dict):
        return value
    inner = {name: (part, f"{field}.{name}") for name, part in value.items()}
    return {name: _grave(part, below) for name, (part, below) in inner.items() if gives_meaning(below)}


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return quoted(value, _SHOWN)
    return printable(msgspec.json.encode(value).decode(), _SHOWN)
