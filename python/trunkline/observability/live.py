"""The display of a run under way: a line in a terminal, an output of a notebook."""

from __future__ import annotations

import contextlib
import html
import io
import os
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Self, TextIO

from trunkline._internal.text import by_frequency, counted, duration, printable
from trunkline._internal.validation import short_repr
from trunkline.errors import ConfigError
from trunkline.observability.observers import explain, pause_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console
    from rich.live import Live

    from trunkline.observability.observers import Progress


_EVERY = 5.0  # seconds between plain lines
_REFRESH = 0.1  # seconds between drawings of the live line
_REDRAW = 0.5  # seconds between two states of a notebook's output
_WINDOW = 15.0  # seconds over which rates are measured
_BETWEEN = " | "
_STYLES = {r"^\S+ tasks": "bold", r"\b[1-9][\d,]* errors?": "red", r"\b[1-9][\d,]* retr\w+": "yellow"}
"""What of the live line is coloured, and how."""


def _compact(number: float) -> str:
    for limit, scale, unit in ((1e4, 1, ""), (1e7, 1e3, "k"), (1e10, 1e6, "M")):
        if number < limit:
            return f"{number / scale:,.0f}{unit}"
    return f"{number / 1e9:,.0f}G"


def is_terminal(stream: TextIO) -> bool:
    """Whether a live line can be drawn there: a terminal that is not dumb."""
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False


def _folded(line: str, width: int) -> str:
    """The parts of a line on as many lines of at most ``width`` cells as they need."""
    lines: list[str] = []
    for part in line.split(_BETWEEN):
        if lines and len(lines[-1]) + len(_BETWEEN) + len(part) <= width:
            lines[-1] += _BETWEEN + part
        else:
            lines.append(part)
    return "\n".join(lines)


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    class Lasting(Console):
        def on_broken_pipe(self) -> None:
            # rich ends the process here; the error goes to the caller instead.
            raise  # noqa: PLE0704

    return Lasting(file=stream)


def _done(snapshot: Progress) -> tuple[str, str]:
    if snapshot.groups is not None:
        kept = f"{snapshot.kept:,}/{snapshot.groups:,} groups kept of {snapshot.tasks_done:,} tasks"
        return kept, f"{snapshot.rollouts_done:,} rollouts"
    done = f"{snapshot.tasks_done:,}/{snapshot.tasks:,} tasks"
    return done, f"{snapshot.rollouts_done:,}/{snapshot.rollouts:,} rollouts"


class ProgressLine:
    """Shows how far a run is, on stderr unless told otherwise; losing the stream never stops the run.

    Use it as a context manager and hand ``update`` to the run.
    """

    def __init__(
        self, stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic, verbose: bool = False
    ) -> None:
        self._verbose = verbose
        self._stream: TextIO | None = sys.stderr if stream is None else stream
        self._clock = clock
        self._began = clock()
        self._shown = -float("inf")
        self._last = ""
        self._recent: deque[tuple[float, int, int]] = deque([(self._began, 0, 0)])
        self._live: Live | None = None
        self._snapshot: Progress | None = None

    def __enter__(self) -> Self:
        if self._stream is not None and is_terminal(self._stream):
            from rich.live import Live

            # stdout has the results, so only stderr is passed through the live line.
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

    def update(self, snapshot: Progress) -> None:
        """Show a newer state, unless the last one was shown a moment ago."""
        self._snapshot = snapshot
        now = self._clock()
        self._recent.append((now, snapshot.rollouts_done, snapshot.prompt + snapshot.generated))
        while len(self._recent) > 2 and self._recent[1][0] <= now - _WINDOW:
            self._recent.popleft()
        if now - self._shown >= self._interval():
            self._shown = now
            self._show(self.line(snapshot, now), explain(snapshot) or self.beside(snapshot))

    def _interval(self) -> float:
        return _REFRESH if self._live is not None else _EVERY

    def close(self) -> None:
        """Write the last state as a plain line; the stream is not used again."""
        live, self._live = self._live, None
        if live is not None:
            self._guard(live.stop)
        if self._snapshot is not None:
            line = self.line(self._snapshot, self._clock())
            if live is not None or line != self._last:
                self._show(line)
        self._stream = None

    def line(self, snapshot: Progress, now: float) -> str:
        """The state as one line."""
        began, rollouts, tokens = self._recent[0]
        span = max(now - began, 1e-9)
        rate = (snapshot.rollouts_done - rollouts) / span
        spent = (snapshot.prompt + snapshot.generated - tokens) / span
        left = snapshot.rollouts - snapshot.rollouts_done
        passed = now - self._began
        # How many tasks a refill takes is not known before.
        ahead = left > 0 and snapshot.rollouts_done > 0 and snapshot.groups is None
        pause, causes = pause_of(snapshot), by_frequency(snapshot.retry_causes)
        # What matters most comes first.
        parts = [
            *_done(snapshot),
            *([f"next request in {duration(pause)}"] if pause >= 1 else []),
            f"{duration(passed * left / snapshot.rollouts_done)} left" if ahead else duration(passed),
            f"{counted(snapshot.failed, 'error')}, {counted(snapshot.retries, 'retry', 'retries')}"
            + (f" ({causes})" if causes else ""),
            f"{rate:,.1f} rollouts/s",
            f"{_compact(spent)} tokens/s",
        ]
        slow = snapshot.percentile(0.95)
        if slow is not None:
            parts.append(f"p50 {duration(snapshot.percentile(0.5) or 0, 2)}, p95 {duration(slow, 2)}")
        return _BETWEEN.join(parts)

    def beside(self, snapshot: Progress) -> str:
        """The state of the model servers and, where all is shown, of the workers, as one line."""
        told = [
            f"{printable(url, 60)}: {use.now.running:,} running, {use.now.waiting:,} waiting"
            + ("" if use.now.cache is None else f", cache {use.now.cache:.0%} full")
            for url, use in snapshot.servers.items()
            if use.now is not None
        ]
        workers = [self.workers(snapshot)] if self._verbose and snapshot.engines else []
        return _BETWEEN.join([*told, *workers])

    @staticmethod
    def workers(snapshot: Progress) -> str:
        """The state of each worker, as one line; empty before the first report."""
        return _BETWEEN.join(
            f"w{worker_id} {state.lag * 1000:.0f} ms lag {state.memory >> 20:,} MiB {state.requests:,} requests"
            + (f" {state.tools:,} tools" if state.tools else "")
            + ("" if state.environments is None else f" {state.environments.live:,} environments")
            for worker_id, state in sorted(snapshot.engines.items())
        )

    def _show(self, line: str, more: str = "") -> None:
        live = self._live
        if live is not None:
            from rich.text import Text

            width = live.console.width
            text = Text("\n".join(_folded(part, width) for part in (line, more) if part), overflow="fold")
            for words, style in _STYLES.items():
                text.highlight_regex(words, style)
            self._guard(lambda: live.update(text, refresh=True))
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
            # The terminal or the pipe is gone. The run continues without it, with sys.stderr as it was.
            live, self._live = self._live, None
            self._stream = None
            if live is not None:
                with contextlib.suppress(OSError, ValueError):
                    live.stop()


class NotebookLine(ProgressLine):
    """The same as an output of a notebook's cell, which is replaced by newer states; text alone, no widget."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(io.StringIO(), clock=clock)
        self._handle: Any = None

    def _interval(self) -> float:
        return _REDRAW

    def _show(self, line: str, more: str = "") -> None:
        from IPython.display import display

        self._last = line
        text = "\n".join(filter(None, (line, more)))
        shown = {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>"}
        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)  # type: ignore[no-untyped-call,unused-ignore]
        else:
            self._handle.update(shown, raw=True)


def check_progress(given: object) -> None:
    """Refuse a value of the option ``progress`` with a ConfigError."""
    if given is not None and given is not False and given != "auto" and not callable(given):
        raise ConfigError(f'progress is {short_repr(given)}; give "auto", None, or a function that takes a Progress')


def _display() -> ProgressLine | None:
    """Return a display for where this process runs; None where there is neither a notebook nor a terminal."""
    # A notebook's kernel has imported IPython; its shell alone has a kernel.
    ipython = sys.modules.get("IPython")
    if ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None:
        return NotebookLine()
    return ProgressLine() if sys.stderr is not None and is_terminal(sys.stderr) else None


@contextlib.contextmanager
def showing(progress: object, watch: Callable[[Progress], None] | None) -> Iterator[Callable[[Progress], None] | None]:
    """Yield what the run calls with its state: ``watch``, the option ``progress``, both, or None for neither."""
    check_progress(progress)
    with contextlib.ExitStack() as stack:
        shown: Any = progress or None
        if progress == "auto":
            display = _display()
            shown = None if display is None else stack.enter_context(display).update
        if shown is None or watch is None:
            yield shown or watch
            return

        def both(snapshot: Progress) -> None:
            watch(snapshot)
            shown(snapshot)

        yield both
