"""Engines that outlive a run, and the thread that hosts them."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from trunkline._internal.aio import LoopThread
from trunkline._internal.validation import check_choice, check_int, check_text, short_repr
from trunkline.backends import ray_cluster as cluster
from trunkline.backends.inline import InlineBackend
from trunkline.backends.local import LocalBackend
from trunkline.backends.ray import RayBackend
from trunkline.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trunkline.controller.controller import Controller
    from trunkline.controller.weights import WeightCoordinator
    from trunkline.protocol.backend import Backend

__all__ = ["MOST_WORKERS", "WorkerPool"]

MOST_WORKERS = 256


class WorkerPool:
    """A backend that is started once and lent to one run after the other.

    Its engines live in, and its runs are led from, a thread with an event loop of its own: processes stay while the
    loops of those who run come and go, and a run goes on while its caller's loop is blocked. An inline one has no
    thread: its engine needs the loop that its live client is used in.

    Args:
        kind: ``local``, ``inline`` or ``ray``.
        workers: How many engines; two, or as many as there are cores, when None.
        address: Of a Ray cluster; only for ``ray``.
        runtime_env: What Ray provides to its actors; only for ``ray``.

    Attributes:
        kind: The same.
        backend: Where its engines live.
        loop_thread: The thread; None for an inline one.
        loop: The loop that the run at work was begun in; None where there was none.
        weights: The version of the weights that the server has, as far as it was said.
        policy: How they are being changed; None while they are not.

    Raises:
        ConfigError: There is no such kind, it takes no such setting, or its extra is not installed.
    """

    def __init__(
        self, kind: str, workers: int | None, address: str | None = None, runtime_env: Mapping[str, Any] | None = None
    ) -> None:
        check_choice("pool", kind, "local", "inline", "ray")
        self.kind = kind
        self.backend = _backend(kind, workers, address, runtime_env)
        self.loop_thread = None if kind == "inline" else LoopThread("trunkline-pool")
        self.loop: asyncio.AbstractEventLoop | None = None
        self.weights: str | None = None
        self.policy: str | None = None
        self._leader: Controller | None = None
        self._pid = os.getpid()
        self._busy = threading.Lock()
        self._closed = False
        self._end = weakref.finalize(self, _end, self.backend, self.loop_thread, self._pid)
        if kind == "ray":
            # What is registered last is done first: Ray is imported before, and must not end before its actors do.
            cluster.load()
            atexit.register(self._end)

    @contextmanager
    def lend(self) -> Iterator[None]:
        """Have it for one run.

        Raises:
            UsageError: It is closed, at work, or another process's.
        """
        self.check()
        if not self._busy.acquire(blocking=False):
            raise UsageError(
                "this pool is at work on another run; wait for its end (a stream that is left early is closed by "
                "contextlib.aclosing), or make a second trunkline.Pool"
            )
        with suppress(RuntimeError):
            self.loop = asyncio.get_running_loop()
        try:
            yield
        finally:
            self._leader = self.loop = None
            self._busy.release()

    def lead(self, controller: Controller) -> None:
        """Note who leads the run that it was lent to; a change of the weights that is under way includes it."""
        self._leader = controller
        if self.policy is None:
            self.weights = controller.coordinator.version
        elif self.policy != "finish":
            controller.coordinator.begin_held(abort=self.policy == "abort_resume")

    @property
    def coordinator(self) -> WeightCoordinator | None:
        """Changes the weights under the run that is going on; None if none is."""
        return None if self._leader is None else self._leader.coordinator

    def close(self) -> None:
        """End a run that is still going on, and every process; may be called more than once."""
        if self._pid == os.getpid():
            self._closed = True
            atexit.unregister(self._end)
            self._end()

    async def aclose(self) -> None:
        """Like :meth:`close`, without blocking the running loop."""
        await asyncio.to_thread(self.close)

    def check(self) -> None:
        """Check that it can be used.

        Raises:
            UsageError: It is closed, or another process's.
        """
        if self._pid != os.getpid():
            raise UsageError(
                f"this pool belongs to process {self._pid}, from which this one was forked; make a pool of its own here"
            )
        if self._closed:
            raise UsageError("this pool is closed; make another trunkline.Pool")

    def __repr__(self) -> str:
        state = "closed" if self._closed else "at work" if self._busy.locked() else "at rest"
        return f"Pool({self.kind!r}, workers={self.backend.workers}, {state})"


def _backend(kind: str, workers: int | None, address: str | None, runtime_env: Mapping[str, Any] | None) -> Backend:
    """Make what hosts the engines."""
    for name, given in (("address", address), ("runtime_env", runtime_env)):
        if given is not None and kind != "ray":
            raise ConfigError(f"{name}={short_repr(given)}: only a pool of kind 'ray' has one")
    if kind == "inline":
        if workers:
            raise ConfigError(f"workers={workers}: an inline pool has no processes; leave workers out")
        return InlineBackend()
    if workers is None:
        workers = min(2, os.cpu_count() or 1)
    check_int("workers", workers, 1, MOST_WORKERS)
    if kind == "local":
        return LocalBackend(workers)
    if address is not None:
        check_text("address", address)
    if runtime_env is not None and not isinstance(runtime_env, dict):
        raise ConfigError(f"runtime_env must be a dict as Ray takes it, not {short_repr(runtime_env)}")
    return RayBackend(workers, address, runtime_env)


def _end(backend: Backend, loop_thread: LoopThread | None, pid: int) -> None:
    """End everything that a fleet has; never in a process that was forked from its own."""
    if loop_thread is not None and pid == os.getpid():
        loop_thread.close(backend.close())
