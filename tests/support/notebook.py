"""Environments for tests, importable by workers: a notebook with snapshots, one without, a clock without a replay.

Each keeps account of who was opened and closed, and of what was done to it.
"""

from __future__ import annotations

import json
from itertools import count
from typing import ClassVar

from trunkline.tools.calls import current_call
from trunkline.tools.environment import Environment
from trunkline.tools.tool import tool
from trunkline.types import Task


class Paper(Environment):
    """A notebook without snapshots: a fork gets one in which the same was written again."""

    done: ClassVar[list[str]] = []
    """What was done to all of them, in order: ``fresh``, ``restore``, ``write a`` and so on, ``close``."""

    def __init__(self) -> None:
        self.words: list[str] = []

    async def fresh(self, task: Task) -> None:
        self.done.append("fresh")
        self.words = [task.id]

    async def close(self) -> None:
        self.done.append("close")

    def write(self, word: str) -> str:
        """Write a word down, and read all."""
        self.done.append(f"write {word}")
        self.words.append(word)
        return " ".join(self.words)


class Notebook(Paper):
    """The same with snapshots."""

    async def snapshot(self) -> bytes:
        self.done.append("snapshot")
        return json.dumps(self.words).encode()

    async def restore(self, snapshot: bytes) -> None:
        self.done.append("restore")
        self.words = json.loads(snapshot)


class Clock(Paper):
    """A notebook that dates what is written, so that it never comes out the same, and says so."""

    replay = False
    ticks: ClassVar[count[int]] = count()

    def write(self, word: str) -> str:
        return f"{super().write(word)} at {next(self.ticks)}"


class Liar(Clock):
    """The same, but it does not say so."""

    replay = True


def forget() -> None:
    """Begin a new account: whoever used these classes before need not have closed them."""
    Paper.done.clear()


def account() -> list[str]:
    """What was done since the last time somebody asked; every environment that began must have been closed."""
    done = Paper.done.copy()
    forget()
    began = sum(what in {"fresh", "restore"} for what in done)
    assert done.count("close") == began, done
    return done


@tool
async def look(what: str, notes: Paper) -> str:
    """Write a word down, and read all of them.

    Args:
        what: The word.
    """
    return notes.write(what)


@tool(name="look")
def look_in_a_thread(notes: Paper, what: str) -> str:
    """The same, sync, with the environment as its first parameter."""
    return notes.write(what)


@tool(name="look")
async def look_and_sign(what: str, notes: Paper) -> str:
    """The same, with the call's id beside it."""
    call = current_call()
    return f"{notes.write(what)} {call.rollout} {call.turn} {call.id}"


@tool(name="look", replay=False)
async def look_and_tell(what: str, notes: Paper) -> str:
    """The same, with effects elsewhere that nobody wants twice."""
    return notes.write(what)
