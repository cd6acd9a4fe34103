"""Turn gate: in flight, drain, weight change; trace spans."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, Self

import msgspec

from trunkline._internal.text import printable, scrub, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from trunkline._core import CoreTree, TurnEngine
    from trunkline.agent import CompiledAgent
    from trunkline.tools.toolbox import Observation


__all__ = ["UNKNOWN", "SpanRecord", "TraceRecorder", "TurnGate", "TurnInFlight", "WeightGate"]


_LOOK = 0.01
"""Seconds between two looks at whether anything is left."""

_MAX_CALL_NAME = 60
"""Cells of a tool's name that are told."""

_QUIET = 3
"""Looks in a row that must find nothing."""


class Named(Protocol):
    """A tool, or a call of one."""

    @property
    def name(self) -> str: ...


class Sender(Protocol):
    """Sends requests of a turn engine."""

    in_flight: int


class Dispatcher(Protocol):
    """The dispatcher of one LLM: a turn engine sends its requests, none where ``sender`` is None."""

    @property
    def engine(self) -> TurnEngine[Any]: ...

    @property
    def sender(self) -> Sender | None: ...

    def hold(self, *, abort: bool) -> None:
        """Send nothing under these weights any more."""


class TurnGate:
    """Knows what all rollouts of an engine wait for, and can keep them from beginning more.

    Args:
        clock: Monotonic seconds.

    Attributes:
        calls: By whatever began them, the tool calls that run, or their tools, and when they began.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # In the order in which they began: the first is the oldest.
        self._requests: dict[_Out, float] = {}
        self.calls: dict[object, tuple[Sequence[Named], float]] = {}
        self.shut = False
        self.dispatchers: list[Dispatcher] = []

    @property
    def idle(self) -> bool:
        """Whether nothing is underway."""
        return not self._requests and not self.calls and not self._sent()

    def _sent(self) -> int:
        """How many requests of turn engines are on their way."""
        senders = (dispatcher.sender for dispatcher in self.dispatchers)
        return sum(sender.in_flight for sender in senders if sender is not None)

    @property
    def requests(self) -> tuple[int, float]:
        """How many requests are out, and for how many seconds the oldest is."""
        now = self._clock()
        oldest = next(iter(self._requests.values()), now)
        if self.dispatchers:
            _, first = self.dispatchers[0].engine.in_flight()
            oldest = min(oldest, now if first is None else first)
        return len(self._requests) + self._sent(), now - oldest

    @property
    def tools(self) -> tuple[int, str, float]:
        """How many tool calls run, and which runs longest, for how many seconds."""
        now = self._clock()
        oldest, since = next(iter(self.calls.values()), ((), now))
        count = sum(len(calls) for calls, _ in self.calls.values())
        # The model has named it, and may have made it up.
        return count, printable(oldest[0].name if oldest else "", _MAX_CALL_NAME), now - since

    async def drained(self, within: float, waiting: Callable[[], int] = int) -> None:
        """Let nothing begin any more, and wait until what is underway has come back and is on the tree.

        Args:
            within: Seconds to wait at most.
            waiting: Says how many requests the LLM has not sent yet and will not send: these never come back.
        """
        self.shut = True
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                quiet = 0
                # A reply takes some steps of the event loop to become a turn, and a retry to be sent.
                while quiet < _QUIET:
                    await asyncio.sleep(_LOOK)
                    out = len(self._requests) + self._sent() - waiting()
                    quiet = 0 if out > 0 or self.calls else quiet + 1

    async def enter(self) -> None:
        """Return at once while something may begin; else never: whoever waits is to be cancelled."""
        if self.shut:
            await asyncio.get_running_loop().create_future()

    def request(self) -> _Out:
        """A request is out, for a ``with`` block."""
        return _Out(self._requests, self._clock())


class _Out:
    """A request that is on a list while a block runs.

    Args:
        listed: The list, in the order of beginnings.
        since: When it began.
    """

    __slots__ = ("_listed", "_what")

    def __init__(self, listed: dict[_Out, float], since: float) -> None:
        self._listed = listed
        self._what = since

    def __enter__(self) -> None:
        self._listed[self] = self._what

    def __exit__(self, *_: object) -> None:
        del self._listed[self]


class WeightGate:
    """A gate that every turn passes: open as a rule, held while weights change.

    Args:
        version: The version at first; None where nobody says.

    Attributes:
        version: The version in force: what a turn is asked under.
        aborting: Whether turns in flight were given up, and are to be asked again.
        held: Whether no turn may begin.
    """

    def __init__(self, version: str | None = None) -> None:
        self.version = version
        self.aborting = False
        self.dispatchers: list[Dispatcher] = []
        self.held = False
        self._turns: set[TurnInFlight] = set()
        self._free = asyncio.Event()
        self._quiet: Callable[[], None] | None = None

    async def begin(self, *, sent: bool = False) -> TurnInFlight:
        """Wait until a turn may be asked; returns the ``with`` block to ask it in.

        One that was ``sent`` already goes on where those in flight are left to end.
        """
        while self.held and (self.aborting or not sent):
            await self._free.wait()
        return TurnInFlight(self)

    def enter(self, turn: TurnInFlight) -> None:
        """Note that a turn is in flight."""
        self._turns.add(turn)

    def leave(self, turn: TurnInFlight) -> None:
        """Note that a turn is not in flight any more."""
        self._turns.discard(turn)
        self.settle()

    def settle(self) -> None:
        """Say so where nothing is in flight any more."""
        if self._quiet is not None and not self._flying():
            quiet, self._quiet = self._quiet, None
            quiet()

    def _flying(self) -> bool:
        senders = (dispatcher.sender for dispatcher in self.dispatchers)
        return bool(self._turns) or any(sender is not None and sender.in_flight for sender in senders)

    def hold(self, *, abort: bool, quiet: Callable[[], None]) -> None:
        """Let no turn begin.

        Args:
            abort: Give those up that are in flight; else they are left to end.
            quiet: Called as soon as none is in flight.
        """
        self.held = True
        self._free.clear()
        self._quiet = quiet
        self.aborting = abort
        if abort:
            for turn in self._turns:
                turn.give_up()
        for dispatcher in self.dispatchers:
            dispatcher.hold(abort=abort)
        self.settle()

    def change(self, version: str | None) -> None:
        """Put a version in force, and let turns begin."""
        self.version = version
        self.aborting = False
        self._quiet = None
        self.held = False
        self._free.set()


class TurnInFlight:
    """A block in which a turn is asked; it ends early, without an error, if the turn is given up.

    Args:
        weights: Where it is noted.

    Attributes:
        given_up: Whether the turn was given up.
    """

    __slots__ = ("_cancelling", "_task", "_weights", "given_up")

    def __init__(self, weights: WeightGate) -> None:
        self._weights = weights
        self.given_up = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        self._weights.enter(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        self._weights.leave(self)
        if not self.given_up:
            return False
        # Whoever else cancels the task meanwhile is not deprived of that.
        ours = self._task.uncancel() <= self._cancelling
        return ours and kind is not None and issubclass(kind, asyncio.CancelledError)

    def give_up(self) -> None:
        """End the block, once."""
        if not self.given_up:
            self.given_up = True
            self._task.cancel()


UNKNOWN = "(unknown)"
"""What a call of a tool that does not exist is counted under: models make names up without end."""

_MAX_SPAN_NAME = 100
"""Characters of a name that are kept."""


class SpanRecord(msgspec.Struct, array_like=True, frozen=True):
    """One thing that a rollout did, for whoever traces it.

    Attributes:
        rollout: The rollout.
        kind: ``chat``, ``tool`` or ``rollout``.
        name: The tool; for the others the agent.
        started: When it began, in microseconds since 1970.
        micros: How long it took, in microseconds.
        model: The model that was asked.
        prompt: Prompt tokens of a turn; -1 where not known, as below.
        generated: Its generated tokens.
        finish: Why the model stopped, or how the rollout ended.
        error: The kind of error that it ended with; empty without one.
        output: What was generated, where content is wanted.
    """

    rollout: int
    kind: str
    name: str
    started: int
    micros: int
    model: str = ""
    prompt: int = -1
    generated: int = -1
    finish: str = ""
    error: str = ""
    output: str = ""


class TraceRecorder:
    """Keeps what a traced task's rollouts did until it is taken along with the tree's next delta.

    Args:
        core: The task's tree.
        content: Whether what was said is kept as well.
    """

    __slots__ = ("_content", "_core", "_epoch", "_records")

    def __init__(self, core: CoreTree, *, content: bool) -> None:
        self._core = core
        self._content = content
        self._records: list[SpanRecord] = []
        self._epoch = time.time_ns() // 1000 - self.now()

    @staticmethod
    def now() -> int:
        """Microseconds of a clock that all processes of a machine share."""
        return time.monotonic_ns() // 1000

    def used(
        self, rollout: int, tools: Collection[str], calls: Iterable[Named], seen: Sequence[Observation], started: int
    ) -> None:
        """Note tool calls that began together.

        Args:
            rollout: Who made them.
            tools: The tools there are: a model may have made a name up.
            calls: The calls, or the tools.
            seen: What came of them.
            started: When they began; see ``now``.
        """
        for call, (text, ok, micros) in zip(calls, seen, strict=True):
            name = call.name if call.name in tools else UNKNOWN
            said = _safe(text) if self._content else ""
            error = "" if ok else "tool_error"
            start = self._epoch + started
            self._records.append(SpanRecord(rollout, "tool", name, start, micros, error=error, output=said))

    def turned(
        self, rollout: int, compiled: CompiledAgent, started: int, node: int | None, error: BaseException | None
    ) -> None:
        """Note a turn, for whoever traces it, or why there is none."""
        finish, said, prompt, generated = "", "", -1, -1
        if node is not None:
            facts = self._core.node(node)
            finish, prompt, generated = facts.finish, _known(facts.prompt), _known(facts.generated)
            said = _safe(self._core.message(node).decode()) if self._content else ""
        kind = "" if error is None else type(error).__name__
        record = SpanRecord(
            rollout,
            "chat",
            compiled.agent.name,
            self._epoch + started,
            self.now() - started,
            compiled.agent.model,
            prompt,
            generated,
            _safe(finish)[:_MAX_SPAN_NAME],
            kind,
            said,
        )
        self._records.append(record)

    def ended(self, rollout: int, name: str, began: float, termination: str, error: str | None) -> None:
        """Note a rollout that is over, for whoever traces it."""
        started = int(began * 1e6)
        finish, failure = termination, "" if error is None else termination
        self._records.append(
            SpanRecord(
                rollout, "rollout", name, self._epoch + started, self.now() - started, finish=finish, error=failure
            )
        )

    def take(self) -> list[SpanRecord]:
        """Take the spans that were noted since the last time."""
        taken, self._records = self._records, []
        return taken


def _known(figure: int | None) -> int:
    return -1 if figure is None else figure


def _safe(text: str) -> str:
    return without_secrets(scrub(text))
