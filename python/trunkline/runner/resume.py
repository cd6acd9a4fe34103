"""Resume a run in its file: compare its settings and tasks with today's."""

from __future__ import annotations

import hashlib
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trunkline._internal.old_names import renamed, words_now
from trunkline._internal.text import printable, quoted, redact
from trunkline.errors import ConfigError
from trunkline.store.reader import RunReader
from trunkline.store.sqlite import is_stub
from trunkline.store.state import under_way
from trunkline.team.team import ALIKE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trunkline.types import Task


_FREE = {"trunkline", "labels", "cache", "budget", "timing_dependent", "weights"}
"""What may change from one sitting of a run to the next."""

_OF_LLM = {"tokens", "kind"}
"""What of an LLM may not; where it is, what it costs, and how it is asked may."""

_SHOWN = 60
_NAMED = 120


class Change(NamedTuple):
    """A field that differs: its dotted name, and its values in the run file and now, for people."""

    field: str
    there: str
    here: str

    @property
    def root(self) -> str:
        """The first part of the field's name."""
        return re.split(r"[.\[]", self.field, maxsplit=1)[0]

    def __str__(self) -> str:
        return f"{printable(self.field, _NAMED)}: {self.there} there, {self.here} here"


def as_stored(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as a run file holds them: plain data without secrets."""
    plain = redact(msgspec.to_builtins(dict(settings), enc_hook=str))
    return msgspec.json.decode(msgspec.json.encode(plain), type=dict[str, Any])


def gives_meaning(field: str) -> bool:
    """Whether another value of a field changes the meaning of results."""
    first, _, rest = field.partition(".")
    if first == "llms" and "." in rest:
        first, rest = "llm", rest.partition(".")[2]
    if first == "llm":
        return rest.partition(".")[0] in _OF_LLM
    if first == "team":
        return rest not in ALIKE
    return first not in _FREE


def changes(there: Any, here: Any, field: str = "") -> Iterator[Change]:
    """Yield the fields in which two settings differ; an absent field equals None."""
    if isinstance(there, dict) and isinstance(here, dict):
        for name in [*there, *(name for name in here if name not in there)]:
            inner = f"{field}.{name}" if field else name
            yield from changes(there.get(name), here.get(name), inner)
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        for place, (old, new) in enumerate(zip(there, here, strict=True)):
            yield from changes(old, new, f"{field}[{place}]")
    elif there != here and not (isinstance(there, str) and _earlier(there, field) == here):
        yield Change(field, _shown(there), _shown(here))


def _earlier(there: str, field: str) -> str:
    """What an earlier release wrote, in the names of now."""
    if field.endswith("program"):
        return renamed(there)
    return words_now(there) if field == "reward" else there


def fingerprint(settings: Mapping[str, Any], tasks: Iterable[bytes]) -> str:
    """Return eight hexadecimal digits of the settings that give results their meaning, and of the tasks' records."""
    found = hashlib.sha256()
    said = {name: _grave(value, name) for name, value in settings.items() if name not in _FREE}
    found.update(msgspec.json.encode(said, order="sorted"))
    for record in tasks:
        found.update(len(record).to_bytes(8, "little"))
        found.update(record)
    return found.hexdigest()[:8]


def _grave(value: Any, field: str) -> Any:
    """Return the parts of a setting that give results their meaning."""
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


_SPENT = {"budget", "deadline"}
_MOST = 8  # changes that an error shows


class ResumableRun:
    """Settings, task records and state of a run file; with ``partial`` also of one whose log is damaged."""

    def __init__(self, path: Path, *, partial: bool = False) -> None:
        self.path = path
        self._partial = partial
        with RunReader.open(path, partial=partial) as reader:
            self.settings: dict[str, Any] = reader.settings
            self.seed = reader.seed
            self._records = reader.records()
            self.size = len(self._records)
            self.state = reader.meta.get("state", "")
            self._scoring = under_way(reader.meta)
            self.finished = reader.finished

    @classmethod
    def at(cls, path: Path | None, *, partial: bool = False) -> ResumableRun | None:
        """Return the run at a path; None where none has begun."""
        return None if path is None or not os.path.lexists(path) or is_stub(path) else cls(path, partial=partial)

    def tasks(self) -> list[Task]:
        """Return its tasks."""
        with RunReader.open(self.path, partial=self._partial) as reader:
            return reader.tasks()

    def is_over(self, changed: Sequence[Change]) -> bool:
        """Whether nothing is left to do; with another budget a run continues that the old one ended."""
        if self.state in _SPENT:
            return not any(change.root == "budget" for change in changed)
        return self.state in {"done", "exhausted"}

    def continues(self, start_from: Path) -> dict[str, Any]:
        """Return the recorded source of a run that continues another."""
        there = self.settings.get("continues")
        return there if isinstance(there, dict) and there.get("run") == str(start_from) else {"run": str(start_from)}

    def joined(self, described: Mapping[str, Any]) -> dict[str, Any]:
        """Return today's settings as the file will hold them, with prices of earlier endpoints added."""
        here = as_stored(described)
        _keep_prices(self.settings.get("llm"), here["llm"])
        known = self.settings.get("llms")
        for name, llm in (here["llms"] or {}).items():
            _keep_prices(known.get(name) if isinstance(known, dict) else None, llm)
        return here

    def compare(self, here: Mapping[str, Any], tasks: Sequence[Task], *, forced: bool) -> list[Change]:
        """Return the changed settings; refuse other tasks and, unless forced, another meaning of results."""
        self._same_tasks(tasks)
        if self._scoring is not None:
            raise ConfigError(
                f"{self._name} is scored by {printable(self._scoring.reward, 80)} in part: finish that first, "
                "with `trunkline score` (rescore), and then resume it"
            )
        found = list(changes(self.settings, dict(here)))
        grave = [change for change in found if gives_meaning(change.field)]
        if grave and not forced:
            more = f" and {len(grave) - _MOST} more" if len(grave) > _MOST else ""
            raise ConfigError(
                f"{self._name} was begun with other settings: {'; '.join(map(str, grave[:_MOST]))}{more}: give the "
                "same to resume it, another --out to begin anew, or --force (resume='force') to resume it with these"
            )
        return found

    def _same_tasks(self, tasks: Sequence[Task]) -> None:
        if len(tasks) != self.size:
            raise self._other_tasks(f"{self.size} there, {len(tasks)} here")
        # By their records: most often none is to be read.
        for (name, record), task in zip(self._records, tasks, strict=True):
            if name != task.id:
                raise self._other_tasks(f"{quoted(name)} there, {quoted(task.id)} here in its place")
            if record != msgspec.json.encode(task):
                there, here = msgspec.json.decode(record), as_stored(msgspec.to_builtins(task))
                fields = ", ".join(sorted({change.root for change in changes(there, here)}))
                if fields:
                    raise self._other_tasks(f"{quoted(name)} has other {fields} here")

    def _other_tasks(self, how: str) -> ConfigError:
        return ConfigError(
            f"{self._name} was begun with other tasks: {how}; "
            "give the same to resume it, or another --out to begin anew"
        )

    @property
    def _name(self) -> str:
        return printable(str(self.path))


def _keep_prices(there: Any, here: dict[str, Any] | None) -> None:
    """Add earlier prices to an LLM's settings."""
    prices = there.get("price") if isinstance(there, dict) else None
    if here is not None and isinstance(prices, dict) and isinstance(here.get("price"), dict):
        here["price"] = prices | here["price"]
