"""Which run file a command writes: a new one, or that of an earlier time the same was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trunkline.cli.options import run_path, safe_name
from trunkline.errors import DamagedRunFile, RunFileError
from trunkline.printable import printable
from trunkline.runtime.unfinished import UnfinishedRun

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["find_run", "standing"]

_OVER = {"done", "exhausted"}
_MODEL = 50  # characters of a model's name in that of a file, which end before the fingerprint is cut off


def find_run(out: str | None, model: str, fingerprint: Callable[[], str], *, fresh: bool) -> tuple[Path, bool]:
    """Return the run file, and whether to go on in it if it is there.

    Without a name, that is the newest run in ``runs`` that was asked to do the same and is not finished.

    Args:
        out: Its name, as told.
        model: The model's name.
        fingerprint: Returns what runs share that are asked to do the same.
        fresh: Whether a new one is wanted.

    Raises:
        ConfigError: A name is there and cannot be meant.
    """
    if out is not None:
        return run_path(out, model), not fresh
    label = f"{safe_name(model)[:_MODEL]}-{fingerprint()}"
    return (None if fresh else _newest(label)) or run_path(None, label), not fresh


def standing(path: Path, *, resume: bool) -> str:
    """Return a line on what becomes of a run file that is there, or that there is a new one."""
    there = UnfinishedRun.at(path) if resume else None
    name = printable(str(path))
    if there is None:
        return f"begins {name}"
    done = f"{there.finished:,} of {there.size:,} tasks are finished"
    return f"{'finished' if there.state in _OVER else 'resumes'} {name}: {done}"


def _newest(label: str) -> Path | None:
    """Return the newest unfinished run of a label.

    Raises:
        DamagedRunFile: It is damaged: to begin another in silence would be to pay for it twice.
    """
    for path in sorted(Path("runs").glob(f"*-{label}.run"), reverse=True):
        try:
            there = UnfinishedRun.at(path)
        except DamagedRunFile as problem:
            raise DamagedRunFile(f"{problem}; --fresh begins anew without it") from None
        except RunFileError:
            continue
        if there is not None and there.state not in _OVER:
            return path
    return None
