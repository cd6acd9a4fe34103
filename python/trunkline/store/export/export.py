"""Writing the rollouts of a run for other programs."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Collection
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from trunkline._internal.text import describe_error, printable
from trunkline._internal.validation import check_bool, check_choice, short_repr
from trunkline.errors import ConfigError, TrunklineError
from trunkline.store.export.formats import Chat, ParallelMuse
from trunkline.store.export.parquet import Columns, Table
from trunkline.store.export.tables import LEVELS, columns_of, write_table
from trunkline.store.export.target import STDOUT, Leaf, Lines, Shape, check_target, leaves, standard_output, target
from trunkline.store.reader import RunReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import BinaryIO

    from trunkline.tree.views import Tree


class ExportSelection(msgspec.Struct, frozen=True, kw_only=True):
    """The wanted rollouts of a run; all by default."""

    tasks: tuple[str, ...] = ()  # ids of the tasks; empty for all
    ended: bool = False  # only rollouts that have ended, in whatever way
    scored: bool = False  # only rollouts with a reward
    min_reward: float | None = None  # only rollouts with a reward that is no less

    def __post_init__(self) -> None:
        # Callers may pass values of other types.
        for name in ("ended", "scored"):
            check_bool(name, getattr(self, name))
        least: object = self.min_reward
        if least is None:
            return
        if isinstance(least, bool) or not isinstance(least, int | float) or not abs(least) <= sys.float_info.max:
            raise ConfigError(f"min_reward must be a finite number, not {short_repr(least)}")

    def ids(self, reader: RunReader) -> list[str]:
        """The ids of the tasks that are wanted, in the order of the run."""
        there = reader.task_ids()
        if not self.tasks:
            return there
        for name in self.tasks:
            reader.number(name)
        wanted = set(self.tasks)
        return [name for name in there if name in wanted]

    def refuses(self, leaf: Leaf) -> str | None:
        """Why a record is left out, in a few words; None if it is wanted."""
        if self.ended and leaf.first.termination is None:
            return "still growing"
        if (self.scored or self.min_reward is not None) and leaf.reward is None:
            return "unscored"
        if self.min_reward is not None and leaf.reward is not None and leaf.reward < self.min_reward:
            return f"reward below {self.min_reward:g}"
        return None


FORMATS: Final[dict[str, type[Shape]]] = {"messages": Chat, "parallelmuse": ParallelMuse, "parquet": Table}
"""The formats by name."""

CSV: Final = "csv"
NAMES: Final = (*FORMATS, CSV)
"""The names of all formats; ``csv`` has no records of rollouts and is a table of a level."""

GROUP: Final = "trunkline.exporters"
"""The group of entry points by which packages bring formats: functions of the trees of a run and of a binary stream."""

_SUFFIXES: Final = {".jsonl": "messages", ".ndjson": "messages", ".parquet": "parquet", ".csv": CSV}


class Exported(msgspec.Struct, frozen=True):
    """The result of an export.

    Attributes:
        format: The format.
        records: Records that were written.
        rollouts: Rollouts that these stand for.
        tasks: Tasks that these are of.
        left_out: Rollouts of the tasks that were asked for and that are in no record, by reason.
        chosen: Tries of the run that were asked again because of their result.
        level: What a row of the table is; None for records of rollouts. ``rollouts`` is 0 where a row is no rollout.
    """

    format: str
    records: int
    rollouts: int
    tasks: int
    left_out: dict[str, int]
    chosen: int = 0
    level: str | None = None


def _installed() -> dict[str, EntryPoint]:
    """The formats of installed packages by name; none takes the place of one of ours."""
    return {found.name: found for found in entry_points(group=GROUP) if found.name not in NAMES}


def guess(out: str | Path, format: str | None) -> str:
    """Return the format of an export: as given, or by the file's suffix."""
    suffix = Path(out).suffix.lower()
    installed = _installed()
    listed = ", ".join((*NAMES, *installed))
    if format is None:
        if suffix not in _SUFFIXES:
            raise ConfigError(f"which format? {printable(str(out))} does not say; there is {listed}")
        return _SUFFIXES[suffix]
    if isinstance(format, str) and format in installed:
        return format
    if not isinstance(format, str) or format not in NAMES:
        raise ConfigError(f"no export format {short_repr(format)}; there is {listed}")
    if str(out) == STDOUT and format == "parquet":
        raise ConfigError("parquet is no format for standard output: name a file")
    tabular = format if format in {"parquet", CSV} else "messages"
    if suffix in _SUFFIXES and tabular != _SUFFIXES[suffix]:
        raise ConfigError(f"{printable(str(out))}: a file of format {format} is not called {suffix}")
    return format


def _listed(name: str, given: object, what: str) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Collection) or not all(isinstance(one, str) for one in given):
        raise ConfigError(f"{name} must be a list of {what}, not {short_repr(given)}")
    return tuple(given)


def _level(level: str | None, format: str, choice: ExportSelection) -> str | None:
    """Return the level of a table; None for records of rollouts."""
    if level is None:
        level = "rollout" if format == CSV else None
    if level is None:
        return None
    check_choice("level", level, *LEVELS)
    if format not in {CSV, "parquet"}:
        raise ConfigError(f"level={level} is a table: write it as csv or parquet, not {format}")
    if choice.ended or choice.scored or choice.min_reward is not None:
        raise ConfigError(
            f"ended, scored and min_reward choose records of rollouts; a table of level {level} has all rows"
        )
    return level


def _write_installed(
    entry: EntryPoint, reader: RunReader, choice: ExportSelection, stream: BinaryIO
) -> tuple[int, int]:
    """Let a package's exporter write; returns the rollouts and the tasks that it read."""
    rollouts = tasks = 0

    def trees() -> Iterator[Tree]:
        nonlocal rollouts, tasks
        for name in choice.ids(reader):
            tree = reader.tree(name)
            rollouts += tree.core.rollouts
            tasks += 1
            yield tree

    try:
        entry.load()(trees(), stream)
    except (TrunklineError, OSError):
        raise
    except Exception as problem:
        raise ConfigError(f"export format {entry.name} ({entry.value}): {describe_error(problem)}") from problem
    return rollouts, tasks


def _kept(shape: Shape, format: str, only: Collection[str]) -> tuple[str, ...]:
    for name in only:
        if name not in shape.fields:
            raise ConfigError(f"{format} has no field {short_repr(name)}; there is {', '.join(shape.fields)}")
    return tuple(name for name in shape.fields if name in only) if only else shape.fields


def _write(
    reader: RunReader, choice: ExportSelection, shape: Shape, sink: Columns | Lines, fields: Sequence[str]
) -> tuple[int, int, int, Counter[str]]:
    """Write the wanted records; returns records, rollouts, tasks, and the rollouts left out by reason."""
    records = rollouts = tasks = 0
    left: Counter[str] = Counter()
    for name in choice.ids(reader):
        before = records
        for leaf in leaves(reader.tree(name)):
            why = choice.refuses(leaf) or shape.lacks(leaf)
            if why is not None:
                left[why] += leaf.weight
                continue
            record = shape.record(leaf)
            sink.write({field: record[field] for field in fields if field in record})
            records += 1
            rollouts += leaf.weight
        tasks += records > before
    sink.close()
    return records, rollouts, tasks, left


def export(
    run: str | Path,
    out: str | Path,
    *,
    format: str | None = None,
    tasks: Sequence[str] = (),
    ended: bool = False,
    scored: bool = False,
    min_reward: float | None = None,
    only: Sequence[str] = (),
    force: bool = False,
    level: str | None = None,
) -> Exported:
    """Write the rollouts of a run to a file that other programs read.

    A record is a rollout. Rollouts that said the same to the end and of which the same became are one record, whose
    ``weight`` is their number. Of a team's rollout its path is written: everything that was said, in order, and not
    what each role was shown, which ``trunkline.train.turns`` has.

    A run that is not finished, or is being written just now, can be exported: what is in the file by then. One task is
    in memory at a time. The file takes its place when it is complete; if anything fails, nothing is left of it.

    Args:
        run: The run file.
        out: The file to write; ``-`` for standard output, which ``parquet`` cannot go to.
        format: ``messages`` (JSON lines of chat messages), ``parallelmuse`` (JSON lines as ParallelMuse's scripts have
            them), ``parquet`` or ``csv``; guessed from the file's name when not given. Also a format of an installed
            package: an entry point of the group ``trunkline.exporters``, a function ``exporter(trees, stream)`` that
            gets an iterator of ``trunkline.Tree`` and a binary stream. Only ``tasks`` goes with it.
        tasks: Ids of the tasks to write; all when not given.
        ended: Leave out rollouts that still grow.
        scored: Leave out rollouts without a reward.
        min_reward: Leave out rollouts without a reward, or with one that is less.
        only: The fields to write; all when not given. ``["messages"]`` makes records of nothing but messages.
        force: Replace a file that is there.
        level: Write a table with a row for each ``task``, ``rollout``, ``turn`` or ``call``, as ``csv`` or ``parquet``
            (columns: ``docs/reference/exports.md``); ``rollout`` for ``csv`` when not given. Of the other choices,
            ``tasks`` and ``only`` go with it. In ``csv``, text that a spreadsheet would compute gets an apostrophe.

    Returns:
        How much was written, and what was left out and why.

    Raises:
        ConfigError: An option cannot be used, the file is there already or cannot be made, or pyarrow is missing.
        UsageError: The run has no such task, or is scored again in part.
        RunFileError: The run cannot be read.
        InfrastructureError: The file cannot be written, as on a full disk.
    """
    named, wanted = guess(out, format), _listed("only", only, "fields")
    choice = ExportSelection(tasks=_listed("tasks", tasks, "ids"), ended=ended, scored=scored, min_reward=min_reward)
    level = _level(level, named, choice)
    to_stdout = str(out) == STDOUT
    with RunReader.open(run) as reader, contextlib.ExitStack() as stack:
        reader.require_one_reward()
        entry = _installed().get(named)
        if entry is not None:
            if choice.ended or choice.scored or choice.min_reward is not None or wanted:
                raise ConfigError(f"ended, scored, min_reward and only are no choices of the format {named}")
        elif level is None:
            shape = FORMATS[named](reader.settings)
            fields = _kept(shape, named, wanted)
        else:
            columns_of(level, wanted)
        if to_stdout:
            stream = stack.enter_context(standard_output())
        else:
            stream = stack.enter_context(target(check_target(out, Path(run), force=force), force=force))
        if entry is not None:
            rollouts, written = _write_installed(entry, reader, choice, stream)
            return Exported(named, rollouts, rollouts, written, {}, reader.chosen())
        if level is not None:
            records, written = write_table(reader, level, named, stream, choice.tasks, wanted)
            rollouts = records if level == "rollout" else 0
            return Exported(named, records, rollouts, written, {}, reader.chosen(), level)
        sink: Columns | Lines
        if named == "parquet":
            sink = Columns(stream, fields)
        else:
            sink = Lines(stream, ascii_only=to_stdout and sys.stdout.isatty())
        try:
            records, rollouts, written, left = _write(reader, choice, shape, sink, fields)
        except BaseException:
            sink.abandon()
            raise
        chosen = reader.chosen()
    return Exported(named, records, rollouts, written, dict(sorted(left.items())), chosen)
