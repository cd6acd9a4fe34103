"""A backend that outlives its runs, and the thread that leads them."""

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
from trunkline.backends.local import InlineBackend, LocalBackend
from trunkline.backends.ray import RayBackend
from trunkline.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trunkline.controller.controller import Controller
    from trunkline.controller.weights import WeightCoordinator
    from trunkline.protocol.backend import Backend

MOST_WORKERS = 256


class WorkerPool:
    """A backend that is started once and lent to one run after another; all but inline ones have a loop thread."""

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
        """Lock the pool for one run; UsageError if it is closed, at work, or another process's."""
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
        """Register the controller of the present run, which joins a weight change in progress."""
        self._leader = controller
        if self.policy is None:
            self.weights = controller.coordinator.version
        elif self.policy != "finish":
            controller.coordinator.begin_held(abort=self.policy == "abort_resume")

    @property
    def coordinator(self) -> WeightCoordinator | None:
        """Changes weights under the present run; None without one."""
        return None if self._leader is None else self._leader.coordinator

    def close(self) -> None:
        """End the present run and every process; may be called more than once."""
        if self._pid == os.getpid():
            self._closed = True
            atexit.unregister(self._end)
            self._end()

    async def aclose(self) -> None:
        """Like ``close``, without blocking the running loop."""
        await asyncio.to_thread(self.close)

    def check(self) -> None:
        """Raise UsageError for a pool that is closed or another process's."""
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
    """Close a backend and its thread, never in a forked process."""
    if loop_thread is not None and pid == os.getpid():
        loop_thread.close(backend.close())
