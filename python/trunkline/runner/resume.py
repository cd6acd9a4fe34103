"""A run file that is to be gone on with: what its run was asked to do, and what is other now."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline.errors import ConfigError
from trunkline.printable import printable, quoted
from trunkline.runtime.changes import Change, as_stored, changes, gives_meaning
from trunkline.store.identify import is_stub
from trunkline.store.reader import RunReader
from trunkline.store.scorings import under_way

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trunkline.types import Task

__all__ = ["UnfinishedRun"]

_SPENT = {"budget", "deadline"}
_MOST = 8  # changes that an error shows


class UnfinishedRun:
    """What a run file says of its run; the file is closed again.

    Args:
        path: The file.

    Attributes:
        path: The file.
        settings: What the run was asked to do.
        state: How it ended, or ``running``.
        finished: How many of its tasks are done.

    Raises:
        RunFileError: It is no run that can be read here.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with RunReader.open(path) as reader:
            self.settings: dict[str, Any] = reader.settings
            self._records = reader.records()
            self.state = reader.meta.get("state", "")
            self._scoring = under_way(reader.meta)
            self.finished = reader.finished

    @classmethod
    def at(cls, path: Path | None) -> UnfinishedRun | None:
        """Return the run at a path, whether it is finished or not; None where none has begun."""
        return None if path is None or not os.path.lexists(path) or is_stub(path) else cls(path)

    @property
    def size(self) -> int:
        """How many tasks it has."""
        return len(self._records)

    def tasks(self) -> list[Task]:
        """Return its tasks."""
        with RunReader.open(self.path) as reader:
            return reader.tasks()

    @property
    def seed(self) -> int | None:
        """The run's seed."""
        seed = self.settings.get("seed")
        return seed if type(seed) is int else None

    def is_over(self, changed: Sequence[Change]) -> bool:
        """Whether there is nothing left to do.

        Args:
            changed: What is other now: with another budget, a run goes on that the old one has ended.
        """
        if self.state in _SPENT:
            return not any(change.root == "budget" for change in changed)
        return self.state in {"done", "exhausted"}

    def continues(self, start_from: Path) -> dict[str, Any]:
        """What the settings say of an earlier run that this one goes on from."""
        there = self.settings.get("continues")
        same = isinstance(there, dict) and there.get("run") == str(start_from)
        return there if same and isinstance(there, dict) else {"run": str(start_from)}

    def joined(self, described: Mapping[str, Any]) -> dict[str, Any]:
        """Return today's settings as the file will have them: prices of endpoints that were asked before stay known."""
        here = as_stored(described)
        _keep_prices(self.settings.get("llm"), here["llm"])
        known = self.settings.get("llms")
        for name, llm in (here["llms"] or {}).items():
            _keep_prices(known.get(name) if isinstance(known, dict) else None, llm)
        return here

    def compare(self, here: Mapping[str, Any], tasks: Sequence[Task], *, forced: bool) -> list[Change]:
        """Return what is other now; refuse what would give the results another meaning.

        Args:
            here: Today's settings, as :meth:`joined` returns them.
            tasks: Today's tasks.
            forced: Whether to refuse nothing but other tasks.

        Raises:
            ConfigError: Showing the differences; or the run was scored again, and that is not finished.
        """
        self._same_tasks(tasks)
        if self._scoring is not None:
            raise ConfigError(
                f"{self._name} is scored by {printable(self._scoring.reward, 80)} in part: go on with that first, "
                "with `trunkline score` (rescore), and then resume it"
            )
        found = list(changes(self.settings, dict(here)))
        grave = [change for change in found if gives_meaning(change.field)]
        if grave and not forced:
            more = f" and {len(grave) - _MOST} more" if len(grave) > _MOST else ""
            raise ConfigError(
                f"{self._name} was begun with other settings: {'; '.join(map(str, grave[:_MOST]))}{more}: give "
                "the same to resume it, another --out to begin anew, or --force (resume='force') to go on all the same"
            )
        return found

    def _same_tasks(self, tasks: Sequence[Task]) -> None:
        """Refuse other tasks than those of the file."""
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
    """Let an LLM's settings know the prices that it had, too."""
    prices = there.get("price") if isinstance(there, dict) else None
    if here is not None and isinstance(prices, dict) and isinstance(here.get("price"), dict):
        here["price"] = prices | here["price"]
