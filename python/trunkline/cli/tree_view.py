"""A tree, drawn with box characters for a terminal."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trunkline._internal.text import cells, printable, quoted
from trunkline.scoring.notes import read, why_unscored
from trunkline.tree.views import Kind, Node

if TYPE_CHECKING:
    from trunkline.tree.views import Trajectory, Tree, Values
    from trunkline.types import Message

_SIGNS = {Kind.PROMPT: "prompt", Kind.TURN: "turn", Kind.OBSERVATION: "tool", Kind.MESSAGE: "message"}
_DONE = {"mask": "masked", "drop": "dropped", "penalty": "penalised", "failed": "not judged"}
_SPOKEN = (Kind.TURN, Kind.MESSAGE)
_NARROW = 40
_BREAK = "\n"
_WHO = 24  # cells of an agent's name that are shown


class _Line(NamedTuple):
    """One line: text that may be cut, and figures at the right edge."""

    indent: str
    text: str
    figures: str = ""


def call_text(message: Message) -> str:
    """The tool calls of a message as they would be written in code; not yet safe to print."""
    calls = message.get("tool_calls")
    shown: list[str] = []
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            continue
        shown.append(f"{function.get('name', '?')}({_arguments(function.get('arguments'))})")
    return " + ".join(shown)


def _arguments(raw: object) -> str:
    try:
        values = msgspec.json.decode(raw) if isinstance(raw, str) else raw
    except (msgspec.MsgspecError, RecursionError):
        return str(raw)
    if not isinstance(values, dict):
        return "" if values is None else str(raw)
    texts = {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}
    if len(texts) == 1:
        return next(iter(texts.values()))
    return ", ".join(f"{name}={text}" for name, text in texts.items())


def _words(node: Node, *, who: bool) -> str:
    """The text of a node, after its agent's name if ``who``."""
    message = node.message
    text = " ".join(node.text.split())
    calls = call_text(message)
    if node.kind is Kind.PROMPT and message.get("role") != "user":
        text = f"({message.get('role')}) {text}"
    words = f"{calls}  {text}" if calls and text else calls or text or "(empty)"
    return f"{printable(node.agent, _WHO)}: {words}" if who and node.agent and node.kind in _SPOKEN else words


def _several(tree: Tree) -> bool:
    """Whether a tree has turns of several agents."""
    nodes = map(tree.node, range(len(tree.core)))
    return len({node.agent for node in nodes if node.kind is Kind.TURN}) > 1


def _ends(rollouts: list[Trajectory], width: int) -> list[str]:
    """The lines below a leaf: one for all rollouts that ended alike."""
    alike: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for rollout in rollouts:
        ended = rollout.termination
        word = "still growing" if ended is None else ended.value
        if rollout.answer is not None:
            said = quoted(" ".join(rollout.answer.split()), 50)
        else:
            failure = rollout.error
            # A failure is the last part of its line, so it may fill it.
            said = "" if failure is None else printable(failure.message, width)
        reward = "" if math.isnan(rollout.reward) else f"reward {rollout.reward:g}"
        why = why_unscored(rollout.note) if math.isnan(rollout.reward) else ""
        reward = f"unscored: {printable(why, width)}" if why else reward
        judged = ", ".join(f"{_DONE[one.action]} by {one.filter}" for one in read(rollout.note))
        alike[word, said, reward, judged].append(f"#{rollout.id}")
    lines: list[str] = []
    for (word, said, reward, judged), names in alike.items():
        who = " ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        answered = f"{word}: {said}" if said else word
        lines.append(f"◆ {who} " + "  ".join(filter(None, (answered, reward, judged))))
    return lines


def _segments(tree: Tree, ends: dict[int, list[Trajectory]]) -> int:
    # Stretches without a branch: each gets its share of the lines.
    inner = (len(tree.core.children(node)) for node in range(len(tree.core)))
    return max(1, sum(children if children > 1 else 0 for children in inner) + len(ends))


def _hidden(nodes: int) -> str:
    return f"┆ {nodes} more node{'' if nodes == 1 else 's'}"


def _draw(tree: Tree, values: Values, lines: int, width: int) -> list[_Line]:
    ends: dict[int, list[Trajectory]] = defaultdict(list)
    for rollout in tree.rollouts:
        ends[rollout.leaf.id].append(rollout)
    keep = max(4, lines // _segments(tree, ends))
    if len(tree) + len(ends) <= lines:
        keep = lines
    drawn: list[_Line] = []
    who = _several(tree)
    # Depth first, with a stack of our own: (first node of a stretch, indent of its first line, indent below
    # it).
    waiting = [(child, "", "") for child in reversed(tree.core.children(0))]
    while waiting:
        first, indent, below = waiting.pop()
        stretch = [first]
        while len(onward := tree.core.children(stretch[-1])) == 1 and stretch[-1] not in ends:
            stretch.append(onward[0])
        cut = range(keep - 2, len(stretch) - 1) if len(stretch) > keep else range(0)
        for position, number in enumerate(stretch):
            if position not in cut:
                mean = values.means[number]
                node = tree.node(number)
                asked = "" if node.weights is None else f"{printable(node.weights, 20)}  "
                figures = f"{asked}n={values.visits[number]}" + ("" if math.isnan(mean) else f"  V={mean:.2f}")
                drawn.append(_Line(indent, f"{_SIGNS.get(node.kind, '?'):7} {_words(node, who=who)}", figures))
            elif position == cut.start:
                drawn.append(_Line(indent, _hidden(len(cut))))
            indent = below
        drawn.extend(_Line(below, line) for line in _ends(ends.get(stretch[-1], []), width))
        if stretch[-1] in ends and (report := tree.core.report_of(stretch[-1])):
            drawn.append(_Line(below, f"≡ {report.partition(_BREAK)[0]}"))
        if len(onward) == 1:
            waiting.append((onward[0], below, below))
        else:
            last = onward[-1] if onward else None
            waiting.extend(
                (child, below + ("└─" if child == last else "├─"), below + ("  " if child == last else "│ "))
                for child in reversed(onward)
            )
    return drawn


def _fit(line: _Line, width: int) -> str:
    # Very deep forks would push everything out of sight: then only the end of the indent is shown.
    indent = line.indent if len(line.indent) <= width // 2 else "…" + line.indent[-(width // 2) :]
    figures = line.figures if width >= _NARROW else ""
    room = max(8, width - len(indent) - (len(figures) + 2 if figures else 0))
    text = printable(line.text, room)
    if not figures:
        return indent + text
    return f"{indent}{text}{' ' * (room - cells(text))}  {figures}"


def picture(tree: Tree, width: int = 100, max_lines: int = 80) -> str:
    """Draw a tree: shared nodes once, then its branches, each rollout's end below its leaf.

    A line has the kind of a node, its agent where several took turns, its text or calls, the version of the weights,
    the number of rollouts through it (``n``) and their mean reward (``V``); below a leaf with a report is the report's
    first line. Text of models and tools is escaped. Long stretches are cut in the middle and large trees at the end,
    and both say how much is hidden.
    """
    width = max(20, width)
    counts = f": {len(tree) - 1} nodes, {tree.core.rollouts} rollouts"
    head = f"task {printable(tree.task.id, max(12, width - 5 - len(counts)))}"
    drawn = _draw(tree, tree.values(), max_lines, width)
    shown = [_fit(line, width) for line in drawn[:max_lines]]
    if len(drawn) > max_lines:
        shown.append(printable(f"┆ {len(drawn) - max_lines} more lines are hidden", width))
    return "\n".join([printable(f"{head}{counts}", width), *shown])
