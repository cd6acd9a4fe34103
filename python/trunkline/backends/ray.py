"""Engines in actors of a Ray cluster."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline._core import __version__
from trunkline.llm.spec import EndpointSpec
from trunkline.runtime import cluster
from trunkline.runtime.actor import Actor
from trunkline.runtime.backend import Gone
from trunkline.runtime.closed import to_the_end
from trunkline.runtime.elsewhere import Elsewhere
from trunkline.runtime.seat import Seat
from trunkline.runtime.wire import PROTOCOL, Bye, Fatal, Hello, encode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trunkline.runtime.backend import Event, Inbox
    from trunkline.runtime.cluster import Joined
    from trunkline.runtime.job import Job

__all__ = ["Ray"]

logger = logging.getLogger(__name__)

_OPTIONS = {"num_cpus": 0, "scheduling_strategy": "SPREAD", "max_restarts": 0, "max_task_retries": 0}
"""Of each actor. It waits for its model, and takes no processor that a trainer has asked for; where a task goes on
after a death is the controller's to decide."""


class Ray(Elsewhere[Seat]):
    """Hosts engines in actors, where Ray places them; see :class:`~trunkline.runtime.backend.Backend`.

    An actor that rests serves the next run, under the same number. One that dies meanwhile is replaced then.

    Args:
        workers: How many actors, at least 1; fewer are started when the run's concurrency is below that.
        address: A cluster, as Ray writes it: ``auto``, ``host:port``, ``ray://host:port``. When None, the one that
            this process is connected to, or that ``RAY_ADDRESS`` names, else a new one on this machine.
        runtime_env: What Ray provides to the actors, such as ``{"working_dir": "."}``: on other machines they must be
            able to import trunkline and the user's code.

    Attributes:
        workers: How many.

    Raises:
        ConfigError: If Ray is not installed.
    """

    def __init__(self, workers: int, address: str | None = None, runtime_env: Mapping[str, Any] | None = None) -> None:
        cluster.check_extra()
        super().__init__(workers)
        self._address = address
        self._env = runtime_env
        self._joining: asyncio.Task[Joined] | None = None
        self._actor: Any = None

    async def start(self, job: Job, inbox: Inbox) -> Sequence[int]:
        """Join the cluster and give the job to as many actors as it needs; those that are not there are started."""
        # Where actors live the environment is another one.
        llms = {name: llm.with_key() for name, llm in job.llms.items() if isinstance(llm, EndpointSpec)}
        number, begin = self._packed(msgspec.structs.replace(job, llm=llms))
        await self._join()
        self._inbox = inbox
        idle = iter(list(self._hosts))
        return [self._begin(next(idle, None), begin) for _ in range(number)]

    async def replace(self, seat: int) -> int | None:
        """Start another actor with the job of one that is gone."""
        await self._join()
        new = self._begin(None, self._begins[seat])
        self._begins.pop(seat, None)
        return new

    async def close(self) -> None:
        """End the actors, and a Ray of our own with them."""
        closing = asyncio.ensure_future(self._close())
        await to_the_end(closing)
        closing.result()

    async def _close(self) -> None:
        seats, self._hosts, self._inbox = self._hosts, {}, None
        await asyncio.gather(*(seat.close() for seat in seats.values()))
        self._begins.clear()
        self._at_work.clear()
        joining, self._joining, self._actor = self._joining, None, None
        if joining is not None:
            await asyncio.wait([joining])
            if not joining.cancelled() and joining.exception() is None and joining.result().ours:
                await cluster.leave()

    async def _join(self) -> None:
        """Join the cluster, once, and again if that failed or somebody has left it for us."""
        if self._joining is None or _is_lost(self._joining):
            self._actor = None
            self._joining = asyncio.ensure_future(cluster.join(self._address, self.workers, self._env))
        # Not cut short when we are: close() could not undo half a connection.
        joined = await asyncio.shield(self._joining)
        if self._actor is None:
            options = _OPTIONS if self._env is None or joined.made else _OPTIONS | {"runtime_env": dict(self._env)}
            self._actor = cluster.load().remote(Actor).options(**options)

    def _begin(self, seat: int | None, begin: bytes) -> int:
        """Give a job to an actor, or to one that is started for it."""
        if seat is None:
            seat = next(self._seats)
            self._hosts[seat] = Seat(seat, self._actor.remote(), self._heard)
            self._hosts[seat].send(encode(Hello(PROTOCOL, __version__)))
        return self._give(seat, begin)

    def _heard(self, seat: int, event: Event) -> None:
        """Pass on what an engine says, and that it is gone, last."""
        if seat not in self._hosts:
            return
        if isinstance(event, Gone):
            del self._hosts[seat]
        if self._inbox is not None and seat in self._begins:
            self._inbox.put_nowait((seat, event))
        elif isinstance(event, Gone):
            logger.warning("%s; another is started for the next run", event.reason)
        if isinstance(event, Bye | Fatal | Gone):
            self._leave(seat)


def _is_lost(joining: asyncio.Task[Joined]) -> bool:
    """Whether a connection did not come about, or is no more."""
    if not joining.done():
        return False
    return joining.cancelled() or joining.exception() is not None or not cluster.load().is_initialized()
