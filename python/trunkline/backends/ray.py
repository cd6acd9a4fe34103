"""Engines in actors of a Ray cluster."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline._core import __version__
from trunkline._internal.aio import wait_uninterrupted
from trunkline._internal.text import printable
from trunkline.backends import ray_cluster as cluster
from trunkline.backends.base import RemoteBackend
from trunkline.errors import WorkerError
from trunkline.llm.config import LLM
from trunkline.protocol.backend import WorkerExited
from trunkline.protocol.messages import PROTOCOL, Hello, WorkerReady, decode_from_worker, encode
from trunkline.worker.main import Host

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trunkline.backends.ray_cluster import Joined
    from trunkline.protocol.backend import Event, Inbox
    from trunkline.protocol.job import Job

_PORTION = 8 * 1024 * 1024
"""About how many bytes of messages one call carries."""


class Actor:
    """A host in a Ray actor: calls of ``tell`` and ``collect``, one of each at a time, keep messages in order."""

    def __init__(self) -> None:
        self._host = Host(self._keep)
        self._kept: list[bytes] = []
        self._changed = asyncio.Event()

    async def tell(self, payloads: list[bytes]) -> None:
        for payload in payloads:
            self._host.receive(payload)

    async def collect(self) -> list[bytes]:
        """Wait for messages to the controller, and return them."""
        while not self._kept:
            self._changed.clear()
            await self._changed.wait()
        payloads = portion(self._kept)
        del self._kept[: len(payloads)]
        return payloads

    async def leave(self) -> None:
        await self._host.close()

    def _keep(self, payload: bytes) -> None:
        self._kept.append(payload)
        self._changed.set()


def portion(payloads: list[bytes]) -> list[bytes]:
    """Return the first payloads, as many as one call carries; one at least."""
    size = 0
    for number, payload in enumerate(payloads):
        size += len(payload)
        if number and size > _PORTION:
            return payloads[:number]
    return payloads[:]


_GRACE = 2.0
"""Seconds an actor has to leave before it is killed, and then to be gone."""

_LAST_WORDS = 5.0
"""Seconds to collect what an actor had sent once it takes nothing more."""


class ActorHandle:
    """An actor, a call that brings it messages, and one that collects its own; its end is delivered last."""

    def __init__(self, number: int, actor: Any, deliver: Callable[[int, Event], None]) -> None:
        self._number = number
        self._name = f"worker {number}"
        self._actor = actor
        self._deliver = deliver
        self._why: str | None = None
        self._failed: Exception | None = None
        self._out: list[bytes] = []
        self._changed = asyncio.Event()
        self._telling = asyncio.ensure_future(self._tell())
        self._collecting = asyncio.ensure_future(self._collect())

    def send(self, payload: bytes) -> None:
        """Send one message; those sent while a call runs share the next."""
        self._out.append(payload)
        self._changed.set()

    def kill(self, why: str) -> None:
        """Kill the actor, for a reason that is given when it is gone."""
        self._why = self._why or why
        self._end()

    async def close(self) -> None:
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
        """Pass on messages. An actor that takes none any more is ended; what it has sent is still collected."""
        while True:
            while self._out:
                payloads = portion(self._out)
                del self._out[: len(payloads)]
                try:
                    await _reply(self._actor.tell, payloads)
                except Exception as error:  # noqa: BLE001 - the actor is of no use any more
                    self._failed = error
                    self._end()
                    await asyncio.sleep(_LAST_WORDS)
                    self._collecting.cancel()
                    return
            self._changed.clear()
            await self._changed.wait()

    async def _collect(self) -> None:
        """Deliver the actor's messages, until it is gone."""
        try:
            while True:
                for payload in await _reply(self._actor.collect):
                    message = decode_from_worker(payload)
                    if isinstance(message, WorkerReady):
                        self._name = f"worker {self._number} (pid {message.pid})"
                    self._deliver(self._number, message)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - reported to the controller
            self._end()
            self._telling.cancel()
            self._deliver(self._number, self._gone(error))

    def _gone(self, error: BaseException) -> WorkerExited:
        if self._why is not None:
            return WorkerExited(f"{self._name} was killed: {self._why}")
        return WorkerExited(f"{self._name} ended: {_told(self._failed or error)}", _was_killed(str(error)))


async def _reply(method: Any, *given: object) -> Any:
    """Call a method of an actor, and wait for what it returns."""
    # Without a connection Ray would make itself one, and start a cluster for that.
    if not cluster.load().is_initialized():
        raise WorkerError("the connection to Ray is closed")
    return await method.remote(*given)


def _was_killed(said: str) -> bool:
    """Whether an actor's process or node was ended, by Ray's message."""
    return "connection error code" in said or "node has died" in said


def _told(error: BaseException) -> str:
    """Return the reason in one line: Ray adds numbers, guesses and advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    because = next((line for line in lines if line.startswith("The actor is dead because")), lines[-1])
    return printable(because.partition(" Some common causes include")[0], 300)


_OPTIONS = {"num_cpus": 0, "scheduling_strategy": "SPREAD", "max_restarts": 0, "max_task_retries": 0}
"""Of each actor. It waits for its model, and takes no processor that a trainer has asked for; the controller decides
where a task continues after a death."""


class RayBackend(RemoteBackend[ActorHandle]):
    """Hosts engines in Ray actors; one that rests serves the next run, and one that has died is replaced then."""

    def __init__(self, workers: int, address: str | None = None, runtime_env: Mapping[str, Any] | None = None) -> None:
        cluster.check_extra()
        super().__init__(workers)
        self._address = address
        self._env = runtime_env
        self._joining: asyncio.Task[Joined] | None = None
        self._actor: Any = None

    async def start(self, job: Job, inbox: Inbox) -> Sequence[int]:
        """Join the cluster, give the job to as many actors as it needs, and start missing ones."""
        # Actors have an environment of their own, without the key.
        llms = {name: llm.with_key() for name, llm in job.llms.items() if isinstance(llm, LLM)}
        number, begin = self._packed(msgspec.structs.replace(job, llm=llms))
        await self._join()
        self._inbox = inbox
        idle = iter(list(self._hosts))
        return [self._begin(next(idle, None), begin) for _ in range(number)]

    async def replace(self, worker_id: int) -> int | None:
        await self._join()
        new = self._begin(None, self._begins[worker_id])
        self._begins.pop(worker_id, None)
        return new

    async def close(self) -> None:
        """End the actors, and a Ray of our own with them."""
        closing = asyncio.ensure_future(self._close())
        await wait_uninterrupted(closing)
        closing.result()

    async def _close(self) -> None:
        worker_ids, self._hosts, self._inbox = self._hosts, {}, None
        await asyncio.gather(*(worker_id.close() for worker_id in worker_ids.values()))
        self._begins.clear()
        self._at_work.clear()
        joining, self._joining, self._actor = self._joining, None, None
        if joining is not None:
            await asyncio.wait([joining])
            if not joining.cancelled() and joining.exception() is None and joining.result().ours:
                await cluster.leave()

    async def _join(self) -> None:
        """Join the cluster, once, and again if that failed or other code has left it."""
        if self._joining is None or _is_lost(self._joining):
            self._actor = None
            self._joining = asyncio.ensure_future(cluster.join(self._address, self.workers, self._env))
        # Not cancelled with this: close() could not undo half a connection.
        joined = await asyncio.shield(self._joining)
        if self._actor is None:
            options = _OPTIONS if self._env is None or joined.made else _OPTIONS | {"runtime_env": dict(self._env)}
            self._actor = cluster.load().remote(Actor).options(**options)

    def _begin(self, worker_id: int | None, begin: bytes) -> int:
        """Give a job to an actor, or to a new one."""
        if worker_id is None:
            worker_id = next(self._worker_ids)
            self._hosts[worker_id] = ActorHandle(worker_id, self._actor.remote(), self._received)
            self._hosts[worker_id].send(encode(Hello(PROTOCOL, __version__)))
        return self._give(worker_id, begin)

    def _received(self, worker_id: int, event: Event) -> None:
        gone = isinstance(event, WorkerExited)
        if gone or worker_id in self._begins:  # else it is a late message of an earlier run
            super()._received(worker_id, event)
        if gone:
            self._hosts.pop(worker_id, None)


def _is_lost(joining: asyncio.Task[Joined]) -> bool:
    """Whether a connection failed, or has ended."""
    if not joining.done():
        return False
    return joining.cancelled() or joining.exception() is not None or not cluster.load().is_initialized()
