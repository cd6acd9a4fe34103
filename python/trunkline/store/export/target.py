"""The output file of an export, which appears whole or not at all; its records; JSON lines."""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Final, cast

import msgspec

from trunkline._core import TURN
from trunkline._internal.text import JSON, printable
from trunkline.errors import ConfigError, InfrastructureError
from trunkline.store.lock import sync_folders
from trunkline.store.sqlite import files_of
from trunkline.tree.records import EnvironmentRecords
from trunkline.tree.views import Trajectory
from trunkline.types import UNSCORED, Usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trunkline.tree.views import Tree


STDOUT: Final = "-"
_MEANWHILE: Final = "another process has made it meanwhile; force=True (--force) replaces it"
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
    """Refuse an unusable target before anything is read; returns the file itself where ``out`` is a link."""
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
        # Unlike a rename, this fails where another process has made the file meanwhile.
        path.hardlink_to(beside)
    except FileExistsError:
        raise _refusal(path, _MEANWHILE) from None
    except OSError:
        # Some file systems have no links.
        if os.path.lexists(path):
            raise _refusal(path, _MEANWHILE) from None
        beside.replace(path)


@contextlib.contextmanager
def target(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """A stream into a file that appears when the block ends well; otherwise nothing is left of it."""
    beside, stream = _made(path)
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
    """Standard output, for bytes."""
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


# Characters that end a line for some readers, such as str.splitlines of Python; control characters proper are escaped
# by JSON itself. Within a line of JSON these bytes stand in strings alone, and mean nothing else in UTF-8.
_BREAKS: Final = {"\x85".encode(): b"\\u0085", "\u2028".encode(): b"\\u2028", "\u2029".encode(): b"\\u2029"}
_FOREIGN: Final = re.compile(r"[^\x20-\x7e]")
_encoder = msgspec.json.Encoder()


def _escaped(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def line(record: Mapping[str, Any], *, ascii_only: bool = False) -> bytes:
    """Encode one record as one line for every reader; NaN and infinities become null."""
    data = _encoder.encode(record)
    for char, escape in _BREAKS.items():
        if char in data:
            data = data.replace(char, escape)
    if ascii_only:
        data = _FOREIGN.sub(_escaped, data.decode()).encode("ascii")
    return data + b"\n"


class Lines:
    """Writes records as lines."""

    def __init__(self, stream: BinaryIO, *, ascii_only: bool = False) -> None:
        self._stream = stream
        self._ascii = ascii_only

    def write(self, record: Mapping[str, Any]) -> None:
        """Write one record."""
        self._stream.write(line(record, ascii_only=self._ascii))

    def close(self) -> None:
        """Every record is written at once."""

    abandon = close


class Leaf(msgspec.Struct, frozen=True):
    """Rollouts of one tree with the same path and the same end: one record."""

    first: Trajectory  # the one that was opened first; it stands for all
    rollouts: tuple[int, ...]  # the numbers of all, ascending
    reward: float | None  # their reward; None while unscored, and for those that no reward function sees
    usage: Usage  # what the calls of all of them cost, so that sums over an export are those of its run
    step_rewards: list[float | None] | None = None  # of each turn on the path; None where no turn has one
    final_info: dict[str, JSON] | None = None  # the facts that the environment left

    @property
    def weight(self) -> int:
        """How many rollouts it stands for."""
        return len(self.rollouts)

    @property
    def references(self) -> tuple[str, ...]:
        """The reference answers of its task."""
        return self.first.task.reference

    @property
    def report(self) -> str | None:
        """The compressed reasoning that was noted on its last node, if any was."""
        return self.first.leaf.compressed_reasoning

    @property
    def raw(self) -> msgspec.Raw:
        """Its conversation as the JSON that was sent."""
        return msgspec.Raw(self.first.tree.core.messages(self.first.leaf.id))

    @property
    def asked(self) -> msgspec.Raw:
        """The conversation that its last turn was asked with, and that turn: of an agent that makes its own prompt."""
        core = self.first.tree.core
        turn = next((node for node in reversed(core.path(self.first.leaf.id)) if core.node(node).kind == TURN), None)
        context = None if turn is None else core.node(turn).context
        if turn is None or context is None or not core.has_messages(context):
            return self.raw
        return msgspec.Raw(core.request_context(context, b"[", b"," + core.message(turn) + b"]"))


def leaves(tree: Tree) -> list[Leaf]:
    """The records of a tree, in the order in which their first rollouts were opened.

    Rollouts never merge, nodes do: several rollouts may end on one node. They are one record with their number as its
    weight where termination, answer, reward, error, note and what environments said agree as well, since a record has
    one of each. Weights of a tree add up to its rollouts.
    """
    environments = EnvironmentRecords(tree.core)
    alike: dict[tuple[object, ...], list[Trajectory]] = {}
    rewards: dict[tuple[object, ...], float | None] = {}
    for number in range(tree.core.rollouts):
        facts = tree.core.rollout(number)
        reward = facts.reward if math.isfinite(facts.reward) and facts.termination not in UNSCORED else None
        said = repr((environments.rewards(number), environments.info.get(number)))
        key = (facts.leaf, facts.termination, facts.answer, reward, facts.error, facts.note, said)
        alike.setdefault(key, []).append(Trajectory(tree, number))
        rewards[key] = reward
    return [
        Leaf(
            first=rollouts[0],
            rollouts=tuple(rollout.id for rollout in rollouts),
            reward=rewards[key],
            usage=sum((rollout.usage for rollout in rollouts), Usage()),
            step_rewards=_given(environments.rewards(rollouts[0].id)),
            final_info=environments.info.get(rollouts[0].id),
        )
        for key, rollouts in alike.items()
    ]


def _given(rewards: list[float]) -> list[float | None] | None:
    found = [None if math.isnan(reward) else reward for reward in rewards]
    return None if found.count(None) == len(found) else found


class Shape:
    """The records of one export format, made from the settings of a run; derive a format from it."""

    fields: ClassVar[tuple[str, ...]]

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings

    def lacks(self, leaf: Leaf) -> str | None:
        """Why a leaf has no record in this format, in a few words; None if it has one."""
        return None

    def record(self, leaf: Leaf) -> dict[str, Any]:
        """Make the record of a leaf that the format does not lack."""
        raise NotImplementedError
