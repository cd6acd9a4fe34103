"""The common part of backends whose engines live outside this process."""

from __future__ import annotations

import asyncio
import logging
from itertools import count
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import msgspec

from trunkline._internal.serialization import packed_argv
from trunkline.llm.config import LLM
from trunkline.protocol.backend import WorkerExited
from trunkline.protocol.job import pack_job, parties
from trunkline.protocol.messages import Begin, Bye, Fatal, StopRun, encode

if TYPE_CHECKING:
    from trunkline.protocol.backend import Event, Inbox
    from trunkline.protocol.job import Job
    from trunkline.protocol.messages import ToWorker

logger = logging.getLogger(__name__)

REST_WITHIN = 5.0
"""Seconds that an engine has to end its run; one that does not is killed."""


class _Host(Protocol):
    def send(self, payload: bytes) -> None: ...

    def kill(self, why: str) -> None: ...


H = TypeVar("H", bound=_Host)


class RemoteBackend(Generic[H]):
    """Keeps the hosts of engines by worker id, and which of them work on a run."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._worker_ids = count()
        self._hosts: dict[int, H] = {}
        self._begins: dict[int, bytes] = {}
        self._at_work: set[int] = set()
        self._moved = asyncio.Event()
        self._inbox: Inbox | None = None
        self._closing = False

    def send(self, worker_id: int, message: ToWorker) -> None:
        if host := self._hosts.get(worker_id):
            host.send(encode(message))

    def kill(self, worker_id: int, why: str) -> None:
        if host := self._hosts.get(worker_id):
            host.kill(why)

    async def rest(self) -> None:
        """End the run in every engine; one that does not say bye in time is killed."""
        for worker_id in self._at_work:
            self.send(worker_id, StopRun())
        try:
            async with asyncio.timeout(REST_WITHIN):
                while self._at_work:
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            pass
        finally:
            self._inbox = None
            self._begins.clear()
            for worker_id in self._at_work:
                self.kill(worker_id, f"it did not end its run within {REST_WITHIN:.0f} s")
            self._at_work.clear()

    def _packed(self, job: Job) -> tuple[int, bytes]:
        """Return how many engines a job needs, and the message that begins it."""
        number = max(parties(llm, self.workers) for llm in job.llms.values() if isinstance(llm, LLM))
        level = logging.getLogger("trunkline").getEffectiveLevel()
        return number, encode(Begin(pack_job(msgspec.structs.replace(job, parties=number)), level, packed_argv()))

    def _give(self, worker_id: int, begin: bytes) -> int:
        self._begins[worker_id] = begin
        self._at_work.add(worker_id)
        self._hosts[worker_id].send(begin)
        return worker_id

    def _received(self, worker_id: int, event: Event) -> None:
        """Pass on a message of an engine, and its end, last."""
        if worker_id not in self._hosts:
            return
        gone = isinstance(event, WorkerExited)
        if self._inbox is not None and (worker_id in self._begins or not gone):
            self._inbox.put_nowait((worker_id, event))
        elif isinstance(event, WorkerExited) and not self._closing:
            logger.warning("%s; another is started for the next run", event.reason)
        if gone or isinstance(event, Bye | Fatal):
            self._at_work.discard(worker_id)
            self._moved.set()
