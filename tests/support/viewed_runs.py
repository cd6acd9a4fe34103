"""Run files for the page, written through the store, and its server in a thread."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from trunkline import _core
from trunkline._internal.aio import LoopThread
from trunkline.scoring import notes
from trunkline.store.derive import rows
from trunkline.store.writer import RunWriter
from trunkline.tree.records import Failure
from trunkline.types import Task
from trunkline.view.server import ViewServer

HOSTILE = (
    "<script>window.broken = 1</script><img src=x onerror='window.broken = 2'>\"'`&lt;</pre></script><!-- <b>\u202e"
    "\u0000\u2028]]>javascript:window.broken=3 ${window.broken} {{7*7}} \ufffd <svg onload=window.broken=4>"
)
"""What a model may say to reach a page."""


URL = "http://127.0.0.1:1/v1"


class Try(NamedTuple):
    """A rollout of one turn; with a later fork, of two."""

    ended: str = "answer"
    answer: str | None = "Ada"
    reward: float | None = 1.0
    said: str = "Ada, I think"
    tool_failed: bool = False


def message(role: str, content: str, **more: object) -> bytes:
    return msgspec.json.encode({"role": role, "content": content} | more)


def grown(task: Task, tries: Sequence[Try]) -> _core.CoreTree:
    """A tree whose rollouts call a tool each; the last one also forks behind the first one's tool."""
    core = _core.CoreTree()
    point = core.append(0, 1, message("user", task.question))
    model, stop, tool = core.name("m"), core.name("stop"), core.name("agent")
    forked = None
    for draw, one in enumerate(tries):
        if forked is not None and draw == len(tries) - 1:
            rollout = core.open(forked, [0, 0, 1, 1], 0)
        else:
            rollout = core.open(point, [0, draw], draw)
            function = {"name": "look" + one.said[:40], "arguments": json.dumps({"q": one.said})}
            asked = message("assistant", one.said, tool_calls=[{"id": "c", "type": "function", "function": function}])
            tokens = _core.TokenBuffer([5, 6, 7 + draw], [-0.1, -2.0, -6.0])
            aside = f"thought: {one.said}".encode()
            core.turn(rollout, asked, tool, model, stop, 10, 4, 3, 1, 250, aside, None, tokens)
            told = message("tool", f"found {one.said}", tool_call_id="c")
            node = core.observe(rollout, told, tool, 5, one.tool_failed)
            forked = node if forked is None else forked
        core.turn(rollout, message("assistant", f"{one.answer}: {one.said}"), tool, model, stop, 20, 8, 2, 1, 250)
        error = Failure("LLMError", f"refused {one.said}", 2).encode() if one.ended.endswith("_error") else None
        core.close(rollout, "llm_error" if one.ended == "retried" else one.ended, one.answer, error)
        if one.reward is not None and one.ended != "retried":
            core.score(rollout, one.reward)
        notes.note(core, rollout, notes.Graded("exact" + one.said[:30], one.reward, 1.0, one.said[:30]))
        if one.tool_failed:
            notes.note(
                core, rollout, notes.Verdict(f"filter {one.said[:9]}", "penalty", amount=-0.5, reason=one.said[:9])
            )
        if one.ended == "retried":
            core.close(rollout, "retried")
            notes.note(core, rollout, notes.Retried("llm_error", draw + 1, one.answer is None, 0.25))
    return core


def write_run(
    path: Path, tasks: Sequence[tuple[Task, Sequence[Try] | None]], *, finish: str | None = "done"
) -> RunWriter:
    """A run of tasks with their tries; None for a task that is not begun. It stays open without ``finish``."""
    llm = {"price": {URL: {"prompt": 1, "cached": 0.5, "generated": 2}}}
    settings = {"agent": {"model": "m"}, "seed": 7, "reward": "exact_match", "llm": llm}
    writer = RunWriter.create(path, settings, [task for task, _ in tasks], command=["trunkline", "run"])
    for number, (task, tries) in enumerate(tasks):
        if tries is not None:
            add(writer, number, task, tries)
    if finish is not None:
        writer.finish(finish)
    return writer


def add(writer: RunWriter, number: int, task: Task, tries: Sequence[Try]) -> None:
    """Finish one task of a run; each of its tries made a call of 140 millionths, and all but a fork a tool call."""
    core = grown(task, tries)
    calls = [(URL, 1, 100, 0, 20, 1, 0, 5, 9, nth, "") for nth in range(len(tries))]
    tools = [
        (nth, "look", one.tool_failed, 5, nth) for nth, one in enumerate(tries) if nth == 0 or nth < len(tries) - 1
    ]
    ((data, _),) = _core.deltas([(core, calls, tools)])
    writer.commit([(number, 0, data)], [(number, *rows(core))])


@contextmanager
def served(*paths: Path) -> Iterator[ViewServer]:
    """The page of runs, served in a thread."""
    loop = LoopThread("view-tests")
    server = ViewServer(paths, look=0.05)
    try:
        loop.send(server.start()).wait()
        yield server
    finally:
        loop.send(server.close()).wait()
        loop.close()
