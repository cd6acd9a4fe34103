"""The server as a process of its own: its event loop, its signals and its tie to the parent."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import stat
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import uvloop

from trunkline._internal.processes import die_with_parent
from trunkline.errors import InfrastructureError
from trunkline.sim.server.app import start_server

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.sim.server.options import Settings


def serve(
    settings: Settings | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    exit_with_parent: bool = False,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; one that the caller ignores, as a shell does for a background job, is ignored.

    Args:
        settings: What the server is told; the defaults when not given.
        host: The address to bind; only this machine can reach the default.
        port: The port, or 0 for a free one.
        exit_with_parent: Also stop when the parent dies or, where standard input is a pipe or a socket,
            closes it. On Linux the thread that started this process counts as the parent.
        ready: Called with the base URL when requests are served; prints it when not given. When its reader is
            gone (``BrokenPipeError``), the server stops.

    Raises:
        ConfigError: The preset or a dial does not exist, or there is no such port.
        EndpointError: The address cannot be bound.
        InfrastructureError: The URL cannot be printed.
    """
    _fill_descriptors()
    uvloop.run(_serve(settings, host, port, ready or _announce, exit_with_parent=exit_with_parent))


async def _serve(
    settings: Settings | None, host: str, port: int, ready: Callable[[str], None], *, exit_with_parent: bool
) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, stopped.set)
    if exit_with_parent:
        die_with_parent(os.getppid(), signal.SIGTERM)
        _watch_input(loop, stopped)
    server = await start_server(settings, host=host, port=port)
    try:
        # Without this the collector walks all that is loaded again and again under load.
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        with suppress(BrokenPipeError):
            ready(server.base_url)
            await stopped.wait()
    finally:
        await server.stop()


def _announce(url: str) -> None:
    if sys.stdout is None:  # closed by the parent
        return
    try:
        sys.stdout.write(url + "\n")
        sys.stdout.flush()
    except OSError as error:
        # Buffered text would fail again when the interpreter ends, and be reported there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise InfrastructureError(f"cannot print the server's URL: {error.strerror}") from error


def _fill_descriptors() -> None:
    """Put the null device where a standard stream is closed; the event loop may not get those numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # The lowest number that is free, so this one.


def _watch_input(loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> None:
    """Stop at the end of standard input; a terminal, a file or the null device says nothing."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return

    def wait() -> None:
        with suppress(OSError):
            while os.read(0, 4096):
                pass
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(stopped.set)

    threading.Thread(target=wait, name="parent-watch", daemon=True).start()
