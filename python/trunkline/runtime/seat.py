"""One Ray actor, as seen from the controller."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from trunkline.errors import WorkerError
from trunkline.printable import printable
from trunkline.runtime import cluster
from trunkline.runtime.actor import portion
from trunkline.runtime.backend import Gone
from trunkline.runtime.wire import Ready, decode_from_worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.runtime.backend import Event

__all__ = ["Seat"]

_GRACE = 2.0
"""Seconds an actor has to leave before it is killed, and then to be gone."""

_LAST_WORDS = 5.0
"""Seconds to collect what an actor had sent once it takes nothing more."""


class Seat:
    """An actor from its start to its end, and the two calls that are out to it: one tells, one collects.

    Args:
        number: The seat's number.
        actor: Ray's handle of the actor.
        deliver: Takes the number with each message of it, and that it is gone, last.
    """

    def __init__(self, number: int, actor: Any, deliver: Callable[[int, Event], None]) -> None:
        self._number = number
        self._name = f"worker {number}"
        self._actor = actor
        self._deliver = deliver
        self._why: str | None = None
        self._failed: Exception | None = None
        self._out: list[bytes] = []
        self._news = asyncio.Event()
        self._telling = asyncio.ensure_future(self._tell())
        self._collecting = asyncio.ensure_future(self._collect())

    def send(self, payload: bytes) -> None:
        """Send one message; what is sent while a call is out shares the next."""
        self._out.append(payload)
        self._news.set()

    def kill(self, why: str) -> None:
        """Kill the actor, for a reason that is given when it is gone."""
        self._why = self._why or why
        self._end()

    async def close(self) -> None:
        """Let the actor leave, and end it."""
        self._telling.cancel()
        if not self._collecting.done():
            with contextlib.suppress(Exception):
                await asyncio.wait_for(_reply(self._actor.leave), _GRACE)
        self._end()
        await asyncio.wait((self._collecting,), timeout=_GRACE)
        self._collecting.cancel()
        await asyncio.gather(self._telling, self._collecting, return_exceptions=True)

    def _end(self) -> None:
        """End the actor's process; one that cannot be reached now is ended once it can."""
        ray = cluster.load()
        # Without a connection Ray would make itself one.
        if ray.is_initialized():
            with contextlib.suppress(Exception):
                ray.kill(self._actor, no_restart=True)

    async def _tell(self) -> None:
        """Pass on what is sent. An actor that takes nothing more is ended; what it has sent is still collected."""
        while True:
            while self._out:
                payloads = portion(self._out)
                del self._out[: len(payloads)]
                try:
                    await _reply(self._actor.tell, payloads)
                except Exception as error:  # noqa: BLE001 - whatever it is, the actor is of no use any more
                    self._failed = error
                    self._end()
                    await asyncio.sleep(_LAST_WORDS)
                    self._collecting.cancel()
                    return
            self._news.clear()
            await self._news.wait()

    async def _collect(self) -> None:
        """Deliver what the actor sends, until it is gone. What it says after that, nobody hears."""
        try:
            while True:
                for payload in await _reply(self._actor.collect):
                    message = decode_from_worker(payload)
                    if isinstance(message, Ready):
                        self._name = f"worker {self._number} (pid {message.pid})"
                    self._deliver(self._number, message)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - told to the controller, whatever it is
            self._end()
            self._telling.cancel()
            self._deliver(self._number, self._gone(error))

    def _gone(self, error: BaseException) -> Gone:
        """How the actor ended."""
        if self._why is not None:
            return Gone(f"{self._name} was killed: {self._why}")
        return Gone(f"{self._name} ended: {_told(self._failed or error)}", _was_killed(str(error)))


async def _reply(method: Any, *given: object) -> Any:
    """Call a method of an actor, and wait for what it returns."""
    # Without a connection Ray would make itself one, and start a cluster for that.
    if not cluster.load().is_initialized():
        raise WorkerError("the connection to Ray is closed")
    return await method.remote(*given)


def _was_killed(said: str) -> bool:
    """Whether an actor's process or node was ended, as far as Ray can tell."""
    return "connection error code" in said or "node has died" in said


def _told(error: BaseException) -> str:
    """Return why, in one line: Ray adds numbers, guesses and advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    because = next((line for line in lines if line.startswith("The actor is dead because")), lines[-1])
    return printable(because.partition(" Some common causes include")[0], 300)
