"""The file that an export goes to: it is there whole, or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from trunkline.errors import ConfigError, InfrastructureError
from trunkline.printable import printable
from trunkline.store.files import sync_folders
from trunkline.store.identify import files_of

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["STDOUT", "check_target", "standard_output", "target"]

STDOUT: Final = "-"
_SQLITE: Final = b"SQLite format 3\0"


def _refusal(path: Path, why: str) -> ConfigError:
    return ConfigError(f"cannot write {printable(str(path))}: {why}")


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False


def _same(one: Path, other: Path) -> bool:
    # A file that is not there is the same if it would stand in the same place.
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    try:
        return one.samefile(other)
    except OSError:
        return False


def check_target(out: str | Path, run: Path, *, force: bool) -> Path:
    """Refuse a place that an export cannot go to, before anything is read.

    Args:
        out: The file, as the caller named it.
        run: The run file, which no export may replace, nor what SQLite keeps beside it.
        force: Whether another file may be replaced.

    Returns:
        The file itself, where ``out`` is a link to one.

    Raises:
        ConfigError: Saying why.
    """
    if not str(out):
        raise ConfigError("the file to write has no name: name one, or - for standard output")
    path = Path(out)
    if any(_same(path, file) for file in files_of(run)):
        raise _refusal(path, "that is the run itself")
    if not os.path.lexists(path):
        return path
    found = Path(os.path.realpath(path))
    if found.is_dir():
        raise _refusal(path, "it is a directory")
    if found.exists() and not found.is_file():
        raise _refusal(path, "it is no regular file; - is standard output")
    if _is_database(found):
        raise _refusal(path, "a database is there, which may be a run, and no export replaces one")
    if not force:
        raise _refusal(path, "it is there already; force=True (--force) replaces it")
    return found


def _made(path: Path) -> tuple[Path, BinaryIO]:
    # Beside the target, since a rename does not cross file systems; a name may have 255 bytes.
    beside = path.with_name(f".trunkline-export-{secrets.token_hex(6)}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as problem:
        raise _refusal(path, problem.strerror or str(problem)) from None
    return beside, os.fdopen(descriptor, "wb")


def _place(beside: Path, path: Path, *, force: bool) -> None:
    if force:
        beside.replace(path)
        return
    try:
        # Unlike a rename, this fails where somebody else has made the file meanwhile.
        path.hardlink_to(beside)
    except FileExistsError:
        raise _refusal(path, "somebody has made it meanwhile; force=True (--force) replaces it") from None
    except OSError:
        # Some file systems have no links.
        if os.path.lexists(path):
            raise _refusal(path, "somebody has made it meanwhile; force=True (--force) replaces it") from None
        beside.replace(path)


@contextlib.contextmanager
def target(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """A stream into a file that takes its place when the block ends well; else nothing is left of it.

    Args:
        path: The file, as :func:`check_target` returned it.
        force: Whether it may be replaced.

    Raises:
        ConfigError: It cannot be made, or was made by somebody else meanwhile.
        InfrastructureError: It cannot be written, as on a full disk.
    """
    beside, stream = _made(path)
    try:
        try:
            with stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            _place(beside, path, force=force)
            beside.unlink(missing_ok=True)
            sync_folders([path.absolute()])
        except OSError as problem:
            what = f"{printable(str(path))} cannot be written: {problem.strerror or problem}"
            raise InfrastructureError(f"{what}; nothing of it was kept") from problem
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


@contextlib.contextmanager
def standard_output() -> Iterator[BinaryIO]:
    """Standard output, for bytes.

    Raises:
        BrokenPipeError: Whoever read it has left.
        ConfigError: It takes no bytes here.
        InfrastructureError: It cannot be written, as on a full disk.
    """
    stream = getattr(sys.stdout, "buffer", None)
    if stream is None or sys.stdout.closed:
        raise ConfigError("standard output takes no bytes here: name a file")
    try:
        sys.stdout.flush()
        yield cast("BinaryIO", stream)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as problem:
        raise InfrastructureError(f"cannot write to standard output: {problem.strerror or problem}") from None
