"""Trees of teams written down by hand: who was asked in each rollout, what is noted of it, and what came of it all."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from trunkline._core import PROMPT
from trunkline.llm.pricing import asking
from trunkline.rollout.programs.replay import Journal, Record
from trunkline.tree.views import Tree
from trunkline.types import Task


class Line(NamedTuple):
    """One call.

    Attributes:
        agent: Who was asked.
        valid: Whether what was said is a valid action.
        active: Whether anything depended on it.
        step: Its step.
        penalty: Of its role.
        model: Its model.
        llm: The name of the LLM that is asked.
        seen: What is observed after it; nothing when empty.
        told: What it was asked with; its path when empty.
    """

    agent: str
    valid: bool = True
    active: bool = True
    step: int = 1
    penalty: float = 0.1
    model: str = "m"
    llm: str = ""
    seen: str = ""
    told: str = ""


class Scene(NamedTuple):
    """One rollout.

    Attributes:
        lines: Its calls.
        reward: Its reward.
        ended: How it ended.
    """

    lines: Sequence[Line]
    reward: float = math.nan
    ended: str = "answer"


def said(role: str, content: str) -> bytes:
    return json.dumps({"role": role, "content": content}, separators=(",", ":")).encode()


def cast(scenes: Sequence[Scene], id: str = "q", *, noted: bool = True) -> Tree:
    """Make a tree in which no two rollouts share a call.

    Args:
        scenes: Its rollouts.
        id: Id of the task.
        noted: Whether the notes of teams are on record.
    """
    tree = Tree(Task.ask("what?", "yes", id=id))
    core = tree.core
    prompt = core.append(0, PROMPT, said("user", "what?"))
    for draw, scene in enumerate(scenes):
        rollout = core.open(prompt, [0, draw], draw)
        for place, line in enumerate(scene.lines):
            play(tree, rollout, line, f"{line.agent} {draw}.{place}", place, noted=noted)
        core.close(rollout, scene.ended, "yes" if scene.ended == "answer" else None)
        if not math.isnan(scene.reward):
            core.score(rollout, scene.reward)
    core.check()
    return tree


def play(tree: Tree, rollout: int, line: Line, text: str, nth: int = 0, *, noted: bool = True, note: Any = ...) -> None:
    """Append a call to a rollout, with its record, and perhaps another note than a team's."""
    core = tree.core
    context = core.context([core.fragment(said("user", line.told))]) if line.told else None
    how = core.name(asking(f'{line.model} {{"temperature":1.0}} tools:none', line.llm))
    facts = core.rollout(rollout)
    agent, stop = core.name(line.agent), core.name("stop")
    node = core.turn(rollout, said("assistant", text), agent, how, stop, 10, 0, 5, 0, 1, None, context)
    own = [line.active, line.valid, line.step, line.penalty] if note is ... else note
    asked = [[nth, facts.leaf, context, how], None, *([own] if noted else [])]
    Journal(core).write(Record(rollout, "ask", line.agent, nth, asked, [node]))
    if line.seen:
        core.observe(rollout, said("user", line.seen), core.name("world"), 1)
