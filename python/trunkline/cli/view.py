"""The commands ``view``, ``events`` and ``ctl``."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trunkline._internal.text import printable
from trunkline._internal.validation import short_repr
from trunkline.cli.output import put, tell, write_json
from trunkline.errors import UsageError
from trunkline.observability.event_stream import POLL, TEXT, EventStream

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(), metavar="RUN...")
@click.option("--html", type=click.Path(dir_okay=False), metavar="FILE", help="Write one self-contained file instead.")
@click.option(
    "--tasks", type=click.IntRange(min=1), default=100, show_default=True, help="How many tasks --html holds at most."
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of 127.0.0.1.  [default: a free one]")
@click.option("--open/--no-open", "browse", default=False, help="Open the page in a browser.")
def view(runs: tuple[str, ...], html: str | None, tasks: int, port: int, browse: bool) -> None:
    """Show RUN as a web page, also while it runs; of two runs, what changed from the first to the second.

    The page is served to this machine alone, to whoever has the address that is printed. Ctrl-C ends it.
    """
    if len(runs) > 2:
        raise UsageError(f"view takes one run, or two to compare, not {len(runs)}")
    paths = [Path(run) for run in runs]
    if html is not None:
        from trunkline.view.page import write_page

        written = write_page(paths, Path(html), tasks)
        put(f"wrote {printable(html)}: {written.tasks:,} of {written.all:,} tasks, {written.size / 1e6:.1f} MB")
        return
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(paths, port, browse=browse))


async def _serve(paths: Sequence[Path], port: int, *, browse: bool) -> None:
    from trunkline.view.server import ViewServer

    server = ViewServer(paths)
    ended = asyncio.Event()
    try:
        await server.start(port)
        for signum in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(signum, ended.set)
        put(server.url)
        tell("serving to this machine alone; Ctrl-C ends it")
        if browse:
            await asyncio.to_thread(webbrowser.open, server.url)
        await ended.wait()
    finally:
        await server.close()


@click.command()
@click.argument("run", type=click.Path())
@click.option("--follow", "-f", is_flag=True, help="Wait for further events until no process writes RUN any more.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="KIND,...",
    help="Print events of these kinds alone, such as turn,score; repeatable.",
)
@click.option(
    "--text",
    default=str(TEXT),
    show_default=True,
    metavar="N|all",
    help="The most characters of each text; 'all' for whole texts.",
)
def events(run: str, follow: bool, kinds: tuple[str, ...], text: str) -> None:
    """Print what happened in RUN, also while it runs: a line of JSON for each event.

    Kinds: run_started, message, rollout_started, fork, turn, tool_call, observation, error, rollout_ended, score,
    task_ended, run_ended. What looks like a key is taken out of texts; control characters are escaped.
    """
    if text != "all" and not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UsageError(f"--text must be a number of characters, or all, not {short_repr(text)}")
    stream = EventStream(
        run, follow=follow, kinds=",".join(kinds) if kinds else None, text=None if text == "all" else int(text)
    )
    for batch in stream.batches():
        if batch and not put("\n".join(event.as_json() for event in batch)):
            return  # the reader has left
        if not batch:
            time.sleep(POLL)


@click.command()
@click.argument("run", type=click.Path())
@click.argument("action", type=click.Choice(["drain", "stop", "progress"]))
def ctl(run: str, action: str) -> None:
    """Tell the process that drives RUN to drain it or to stop it, or ask for its progress.

    drain is one Ctrl-C: nothing new begins, requests in flight may return. stop is two: they are not waited for.
    """
    from trunkline.controller.control_socket import ask

    found = ask(run, action)
    if action == "progress":
        write_json(found)
    else:
        put(f"{printable(run)}: asked to {action}; {found['tasks_done']:,} of {found['tasks']:,} tasks are done")
