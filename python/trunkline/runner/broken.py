"""Rollouts that broke: how many may, their causes in words, and the error or the warning that a run ends with."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from typing import TYPE_CHECKING, Final

from trunkline._internal.frames import warn_user
from trunkline._internal.text import counted, printable, without_secrets
from trunkline._internal.validation import short_repr
from trunkline.errors import BrokenRolloutsWarning, ConfigError, RunFailed
from trunkline.store.reader import RunReader
from trunkline.tree.records import Failure

if TYPE_CHECKING:
    from trunkline.runner.result import Run
    from trunkline.store.stats.summary import Summary

_CAUSES: Final = 3
_WIDTH: Final = 200
_MOST_DIVERGED: Final = 0.05


def check_fail_on_error(given: object) -> float | None:
    """Return the most rollouts that may break, a share below 1 or a count; None where any number may."""
    if isinstance(given, bool):
        return 0.0 if given else None
    if isinstance(given, int | float) and 0 <= given < math.inf and (given <= 1 or given == int(given)):
        return float(given)
    raise ConfigError(
        f"fail_on_error is {short_repr(given)}; give True (no rollout may break), False (any may), a share below 1 "
        "such as 0.1, or a count"
    )


def judge(summary: Summary, threshold: float) -> int:
    """Return 1 if more rollouts broke than allowed, or the groups are selected by divergence, else 0.

    ``threshold`` is a share below 1, a count from 1 on.

    Rollouts that broke in an earlier run do not count. A task that broke as a whole does, as when its worker died.
    """
    allowed = threshold * (summary.rollouts - summary.retried) if threshold < 1 else threshold
    return int(max(_failed(summary), summary.broken) > allowed or _selected(summary))


def broken_lines(run: Run, summary: Summary) -> list[str]:
    """How many rollouts broke or diverged, the most frequent causes, and how to retry; nothing where all is well."""
    failed = _failed(summary)
    if not failed and not summary.broken:
        return _selected_lines(summary)
    whole = f"{summary.broken:,} of {counted(summary.finished, 'task')} broke as a whole" if summary.broken else ""
    some = f"{failed:,} of {counted(summary.rollouts - summary.retried, 'rollout')} broke" if failed else ""
    lines = [", ".join(filter(None, (some, whole)))]
    causes = summary.failures if failed else _causes_of_tasks(run)
    lines += [f"  {count:,}: {printable(without_secrets(message), _WIDTH)}" for message, count in causes[:_CAUSES]]
    told = sum(count for _, count in causes[:_CAUSES])
    if (others := summary.failed - told) > 0 and failed:
        lines.append(f"  {others:,}: other causes")
    return [*lines, *_selected_lines(summary), _retry(run)]


def _selected_lines(summary: Summary) -> list[str]:
    calls = summary.agent_calls
    if calls is None or not _selected(summary):
        return []
    of = f"of {counted(calls.again, 'start')} of the agent over what is on record {calls.diverged:,} diverged"
    advice = "the groups are selected by that; cover what differs with a mask (--mask)"
    return [f"{of}, more than {_MOST_DIVERGED:.0%}: {advice}"]


def _selected(summary: Summary) -> bool:
    """Whether so many replays diverged that what is left is a selection."""
    calls = summary.agent_calls
    return calls is not None and calls.diverged > _MOST_DIVERGED * calls.again


def _failed(summary: Summary) -> int:
    # Those that broke in an earlier run are asked again with all others.
    return summary.failed - (0 if summary.taken is None or summary.retried else summary.taken.failed)


def _causes_of_tasks(run: Run) -> list[tuple[str, int]]:
    with RunReader.open(run.path) as reader:
        found = Counter(Failure.decode(row.error).message for _, row in reader.rows() if row.error)
    return found.most_common()


def _retry(run: Run) -> str:
    if run.temporary:
        return 'to retry them, keep the run file: tl.run(..., out=FILE), then with resume=True, retry="broken"'
    path = printable(str(run.path))
    return (
        f"to retry them: trunkline resume {shlex.quote(path)} --retry broken"
        f' (in Python: tl.run(..., out={path!r}, resume=True, retry="broken"))'
    )


def report(run: Run, threshold: float | None) -> None:
    """Raise RunFailed where more rollouts broke than ``threshold`` allows; warn where any did."""
    summary = run.summary()
    if not (lines := broken_lines(run, summary)):
        return
    text = "\n".join(lines)
    if threshold is not None and judge(summary, threshold):
        raise RunFailed(text, run)
    warn_user(text, BrokenRolloutsWarning)
