"""The progress of a run on stderr: two live lines on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from trunkline.cli.table import duration
from trunkline.runtime.stall import explain

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console
    from rich.live import Live

    from trunkline.runtime.snapshot import Snapshot

__all__ = ["Progress"]

_EVERY = 5.0  # seconds between plain lines
_REFRESH = 0.1  # seconds between drawings of the live line
_WINDOW = 15.0  # seconds over which rates are measured


class _Clock(Protocol):
    def __call__(self) -> float: ...


def _compact(number: float) -> str:
    for limit, scale, unit in ((1e4, 1, ""), (1e7, 1e3, "k"), (1e10, 1e6, "M")):
        if number < limit:
            return f"{number / scale:,.0f}{unit}"
    return f"{number / 1e9:,.0f}G"


def is_terminal(stream: TextIO) -> bool:
    """Whether a live line can be drawn there: on a terminal, unless it is dumb or told to be plain."""
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
    except ValueError:  # closed
        return False


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    class Lasting(Console):
        def on_broken_pipe(self) -> None:
            # Its own answer is to end the process; here the error being handled goes to the one who draws.
            raise  # noqa: PLE0704

    return Lasting(file=stream)


def _done(snapshot: Snapshot) -> tuple[str, str]:
    if snapshot.groups is not None:
        kept = f"{snapshot.kept:,}/{snapshot.groups:,} groups kept of {snapshot.tasks_done:,} tasks"
        return kept, f"{snapshot.rollouts_done:,} rollouts"
    done = f"{snapshot.tasks_done:,}/{snapshot.tasks:,} tasks"
    return done, f"{snapshot.rollouts_done:,}/{snapshot.rollouts:,} rollouts"


class Progress:
    """Shows how far a run is. Losing the stream never stops the run.

    Use it as a context manager and hand :meth:`update` to the run.

    Args:
        stream: Where to write; stderr when not given.
        clock: Seconds that only grow; for tests.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        clock: _Clock = time.monotonic,
    ) -> None:
        self._stream: TextIO | None = sys.stderr if stream is None else stream
        self._clock = clock
        self._began = clock()
        self._shown = -float("inf")
        self._last = ""
        self._recent: deque[tuple[float, int, int]] = deque([(self._began, 0, 0)])
        self._live: Live | None = None
        self._snapshot: Snapshot | None = None

    def __enter__(self) -> Self:
        if self._stream is not None and is_terminal(self._stream):
            from rich.live import Live

            # Only stderr is passed through the live line: with stdout it would take the results along.
            live = Live(
                console=_console(self._stream),
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=self._stream is sys.stderr,
            )
            self._live = live
            self._guard(live.start)
        return self

    def __exit__(self, kind: object, problem: object, trace: object) -> None:
        self.close()

    def update(self, snapshot: Snapshot) -> None:
        """Show a newer state, unless the last one was shown a moment ago.

        Args:
            snapshot: The state of the run.
        """
        self._snapshot = snapshot
        now = self._clock()
        self._recent.append((now, snapshot.rollouts_done, snapshot.prompt + snapshot.generated))
        while len(self._recent) > 2 and self._recent[1][0] <= now - _WINDOW:
            self._recent.popleft()
        wait = _REFRESH if self._live is not None else _EVERY
        if now - self._shown >= wait:
            self._shown = now
            self._show(self.line(snapshot, now), explain(snapshot) or self.workers(snapshot))

    def close(self) -> None:
        """Write the last state as a plain line and leave the stream alone from now on."""
        live, self._live = self._live, None
        if live is not None:
            self._guard(live.stop)
        if self._snapshot is not None:
            line = self.line(self._snapshot, self._clock())
            if live is not None or line != self._last:
                self._show(line)
        self._stream = None

    def line(self, snapshot: Snapshot, now: float) -> str:
        """The state as one line.

        Args:
            snapshot: The state of the run.
            now: The clock's reading.
        """
        began, rollouts, tokens = self._recent[0]
        span = max(now - began, 1e-9)
        rate = (snapshot.rollouts_done - rollouts) / span
        spent = (snapshot.prompt + snapshot.generated - tokens) / span
        left = snapshot.rollouts - snapshot.rollouts_done
        passed = now - self._began
        # How many tasks a refill takes, nobody knows before.
        ahead = left > 0 and snapshot.rollouts_done > 0 and snapshot.groups is None
        # What matters most comes first: a narrow terminal cuts the end off.
        parts = [
            *_done(snapshot),
            f"{duration(passed * left / snapshot.rollouts_done)} left" if ahead else duration(passed),
            f"{snapshot.failed:,} errors, {snapshot.retries:,} retries",
            f"{rate:,.1f} rollouts/s",
            f"{_compact(spent)} tokens/s",
        ]
        slow = snapshot.percentile(0.95)
        if slow is not None:
            parts.append(f"p50 {snapshot.percentile(0.5) or 0:.2f} s, p95 {slow:.2f} s")
        return " | ".join(parts)

    @staticmethod
    def workers(snapshot: Snapshot) -> str:
        """How each worker is, as one line; empty where none has said."""
        return " | ".join(
            f"w{seat} {state.lag * 1000:.0f} ms lag {state.memory >> 20:,} MiB {state.requests:,} out"
            + (f" {state.tools:,} tools" if state.tools else "")
            for seat, state in sorted(snapshot.engines.items())
        )

    def _show(self, line: str, more: str = "") -> None:
        live = self._live
        if live is not None:
            from rich.text import Text

            text = "\n".join(filter(None, (line, more)))
            self._guard(lambda: live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True))
        else:
            self._last = line
            self._guard(lambda: self._write(line))

    def _write(self, line: str) -> None:
        if self._stream is not None:
            self._stream.write(line + "\n")
            self._stream.flush()

    def _guard(self, action: Callable[[], object]) -> None:
        try:
            action()
        except (OSError, ValueError):
            # The terminal or the pipe is gone. The run goes on without it, with sys.stderr as it was.
            live, self._live = self._live, None
            self._stream = None
            if live is not None:
                with contextlib.suppress(OSError, ValueError):
                    live.stop()
