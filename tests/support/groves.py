"""Trees written down by hand: each rollout as the turns on its path, its reward and how it ended."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from trunkline._core import PROMPT, CoreTree, TokenBuffer
from trunkline.llm.dialects.builtin import find
from trunkline.scoring.filters.base import Group
from trunkline.tree.views import Tree
from trunkline.types import Task


class Try(NamedTuple):
    """One rollout.

    Attributes:
        turns: What the model says in each turn; equal beginnings are shared.
        reward: Its reward.
        ended: How it ended.
        subgroup: Its initial chain.
        finish: Why the model stopped in the last turn.
        generated: Tokens of each turn, or of each its own; -1 where not reported.
        sampling: Which sampling parameters its turns are drawn with; turns of different ones are different nodes.
    """

    turns: Sequence[str]
    reward: float = math.nan
    ended: str = "answer"
    subgroup: int = 0
    finish: str = "stop"
    generated: int | Sequence[int] = 5
    sampling: int = 0


def said(role: str, content: str) -> bytes:
    return json.dumps({"role": role, "content": content}, separators=(",", ":")).encode()


def grove(tries: Sequence[Try], id: str = "q", accepted: str = "yes", *, before: int = 0, seen: int = 1) -> Tree:
    """Make a tree.

    Args:
        tries: Its rollouts.
        id: Id of the task.
        accepted: The answer.
        before: Messages of the prompt before the question.
        seen: Observations between two turns of a rollout.
    """
    tree = Tree(Task.ask("what?", accepted, id=id))
    core = tree.core
    prompt = 0
    for number in range(before):
        prompt = core.append(prompt, PROMPT, said("system", f"rule {number}"))
    prompt = core.append(prompt, PROMPT, said("user", "what?"))
    agent = core.name("agent")
    for draw, one in enumerate(tries):
        model = core.name(f"m {one.sampling}")
        rollout = core.open(prompt, [0, draw], one.subgroup)
        for place, text in enumerate(one.turns):
            last = place == len(one.turns) - 1
            finish = core.name(one.finish if last else "stop")
            generated = one.generated if isinstance(one.generated, int) else one.generated[place]
            core.turn(rollout, said("assistant", text), agent, model, finish, 10, 0, generated, 0, 1)
            for number in range(0 if last else seen):
                core.observe(rollout, said("user", f"seen {text}" + f" {number}" * (number > 0)), agent, 1)
        if one.ended == "retried":
            core.close(rollout, "llm_error")
        core.close(rollout, one.ended, one.turns[-1] if one.ended == "answer" and one.turns else None)
        if not math.isnan(one.reward):
            core.score(rollout, one.reward)
    core.check()
    return tree


def group(tree: Tree, dialect: str = "native") -> Group:
    """The tree as filters see it, read in a dialect."""
    bound = find(dialect)
    return Group(tree, lambda choice: bound.parse(choice, []))


D6 = (
    Try(["A", "A1"], 1.0),
    Try(["A", "A2"], 0.0),
    Try(["A", "A3"], 0.0),
    Try(["B", "B1", "B1a"], 1.0),
    Try(["B", "B1", "B1b"], 1.0),
    Try(["B", "B2"], 0.0),
)
"""The uneven tree: q -> A{A1=1, A2=0, A3=0}, B{ B1{B1a=1, B1b=1}, B2=0 }."""

E6 = (
    *(Try([f"T1{name}"], reward, subgroup=0) for name, reward in zip("abc", (1.0, 0.0, 0.0), strict=True)),
    *(Try([f"T2{name}"], reward, subgroup=1) for name, reward in zip("def", (1.0, 1.0, 0.0), strict=True)),
)
"""The flat group: two initial chains of three rollouts each."""


def take(core: CoreTree, rollout: int, message: bytes, agent: int, model: int, tokens: TokenBuffer | None) -> int:
    return core.turn(rollout, message, agent, model, core.name("stop"), 10, 0, 5, 0, 1, None, None, tokens)


def with_ids(**changes: Any) -> Tree:
    """A tree of three rollouts of one turn with token ids."""
    tree = Tree(Task.ask("what?", id="small"))
    core = tree.core
    prompt = core.append(0, PROMPT, said("user", "what?"), 0, TokenBuffer([1, 2]))
    for draw, reward in enumerate((1.0, 0.0, 1.0)):
        rollout = core.open(prompt, [0, draw])
        tokens = changes.get("tokens", TokenBuffer([3, 4 + draw], [-0.5, -1.0], [7, 7]))
        take(core, rollout, said("assistant", f"a{draw}"), core.name("agent"), core.name("m"), tokens)
        core.close(rollout, "answer", f"a{draw}")
        core.score(rollout, reward)
    return tree
