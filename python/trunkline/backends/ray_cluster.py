"""This process's connection to a Ray cluster."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import logging
import os
import socket
import warnings
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from trunkline._internal.text import format_error, printable
from trunkline.errors import ConfigError, InfrastructureError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType

logger = logging.getLogger(__name__)

_OBJECT_STORE = 128 * 1024 * 1024
"""Bytes of shared memory of a Ray of our own; what passes through it is a few calls' worth of messages."""

_KNOCK_WITHIN = 10.0
"""Seconds that a cluster has to take a connection."""


class Joined(NamedTuple):
    """How a connection came about: made just now, so with the ``runtime_env`` given; ours to ``leave``."""

    made: bool
    ours: bool


class _Attendant:
    """The thread that starts and ends Ray; it lives as long as this process."""

    # Ray's processes die with the thread that has started them. A daemon, as threads of an executor end before
    # functions registered for exit run. In the main thread Ray would replace our handler for SIGTERM.

    def __init__(self) -> None:
        self._work: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = SimpleQueue()
        self._thread: Thread | None = None

    async def do(self, what: Callable[..., Any], *given: object) -> Any:
        if self._thread is None:
            self._thread = Thread(target=self._run, name="trunkline-ray", daemon=True)
            self._thread.start()
        future: Future[Any] = Future()
        self._work.put((future, what, given))
        return await asyncio.wrap_future(future)

    def _run(self) -> None:
        while True:
            future, what, given = self._work.get()
            # From here on it cannot be cancelled, even if its waiter is.
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(what(*given))
                except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
                    future.set_exception(error)


class _Connection:
    """A connection made for its first user and undone after the last; an earlier one is left alone."""

    def __init__(self) -> None:
        self._users = 0
        self._undo = contextlib.ExitStack()

    def join(self, address: str | None, workers: int, runtime_env: Mapping[str, Any] | None) -> Joined:
        ray = load()
        made = not ray.is_initialized()
        if made:
            # The rest of a connection that other code has shut down.
            self._users = 0
            self._undo.close()
            self._connect(ray, address or os.environ.get("RAY_ADDRESS") or "local", workers, runtime_env)
        elif address not in {None, "auto"}:
            raise ConfigError(f"this process is connected to a Ray cluster; leave out the address {address!r}")
        elif not self._users:
            return Joined(made, ours=False)
        self._users += 1
        return Joined(made, ours=True)

    def leave(self) -> None:
        self._users -= 1
        if self._users == 0:
            self._undo.close()

    def _connect(self, ray: ModuleType, address: str, workers: int, env: Mapping[str, Any] | None) -> None:
        _knock(address)
        options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
        if env is not None:
            options["runtime_env"] = dict(env)
        if address == "local":
            options |= {
                "num_cpus": workers,
                "num_gpus": 0,
                "include_dashboard": False,
                "object_store_memory": _OBJECT_STORE,
                "_node_ip_address": "127.0.0.1",
                # The children of a tool end with the actor that has started them.
                "_system_config": {"process_group_cleanup_enabled": True},
            }
        with contextlib.ExitStack() as undo:
            undo.enter_context(_environment())
            # It would print reports of its processes among our results.
            undo.enter_context(_replaced("ray._private.worker", "print_to_stdstream", _log_lines))
            undo.callback(ray.shutdown)
            try:
                # A Ray that starts here listens on the loopback interface alone.
                loopback = _replaced("ray._private.ray_constants", "ENABLE_RAY_CLUSTER", False)
                with warnings.catch_warnings(), loopback:
                    warnings.simplefilter("ignore")
                    ray.init(**options)
            except Exception as error:
                raise InfrastructureError(f"Ray at {address!r} cannot be reached: {_last(error)}") from error
            self._undo = undo.pop_all()


_attendant = _Attendant()
_connection = _Connection()


def check_extra() -> None:
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("the ray pool needs the ray extra: pip install 'trunkline[ray]'")


def load() -> ModuleType:
    check_extra()
    return importlib.import_module("ray")


async def join(address: str | None, workers: int, runtime_env: Mapping[str, Any] | None = None) -> Joined:
    """Connect this process to a Ray cluster, if it is not connected; ``leave`` undoes it."""
    joined: Joined = await _attendant.do(_connection.join, address, workers, runtime_env)
    return joined


async def leave() -> None:
    """Give up a use of the connection; the last one disconnects, and ends a Ray of our own."""
    await _attendant.do(_connection.leave)


def _knock(address: str) -> None:
    """Check that a server listens at an address: Ray may wait there for ever, and heed no signal meanwhile."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), _KNOCK_WITHIN).close()
        except (OSError, OverflowError) as error:
            raise InfrastructureError(f"Ray at {address!r} cannot be reached: {format_error(error)}") from error


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Switch Ray's usage reports off, and undo what it sets for the processes that it starts."""
    names = ("RAY_USAGE_STATS_ENABLED", "RAY_AUTH_MODE")
    before = {name: os.environ.get(name) for name in names}
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _replaced(module: str, name: str, value: object) -> Iterator[None]:
    """Set an attribute of a module of Ray, for which Ray has no setting."""
    owner = importlib.import_module(module)
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _log_lines(data: Mapping[str, Any], *_: object, **__: object) -> None:
    for line in data["lines"]:
        logger.info("ray: %s", printable(str(line)))


def _last(error: BaseException) -> str:
    """Return the last line of an error of Ray: the ones before are tracebacks."""
    return format_error(Exception((str(error).strip().splitlines() or [type(error).__name__])[-1]))
