"""Reports without a model."""

from __future__ import annotations

import re
from operator import add
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec

from trunkline._internal.text import printable
from trunkline._internal.validation import check_int
from trunkline.scoring.answers import extract_answer
from trunkline.scoring.reports.segments import reported_leaves, steps, without_prompt
from trunkline.tree.views import Kind, message_text
from trunkline.types import Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trunkline.scoring.reports.segments import ReportStep
    from trunkline.tree.views import Tree
    from trunkline.types import Message


class Problem(NamedTuple):
    """A report that was not written, and why.

    Attributes:
        node: Where it is missing.
        reason: Why; safe to print.
    """

    node: int
    reason: str


class Reported(msgspec.Struct, frozen=True):
    """The outcome of writing reports on a tree.

    Attributes:
        usage: What all calls that gave a reply cost.
        written: How many reports were written.
        skipped: How many were there already and were left as they are.
        problems: Reports that were not written, by their nodes.
    """

    usage: Usage = msgspec.field(default_factory=Usage)
    written: int = 0
    skipped: int = 0
    problems: tuple[Problem, ...] = ()

    @property
    def failed(self) -> int:
        return len(self.problems)

    def __add__(self, other: Reported) -> Reported:
        return Reported(*map(add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))


LIMIT: Final = 1200
"""Characters of an extracted report."""

LEAST: Final = 200
"""The least that a report can be limited to."""

_READ: Final = 20_000  # characters of one text that are looked at
_LINE: Final = 140
_TAGS: Final = re.compile(r"</?answer>")


def extract(messages: Sequence[Message], *, limit: int = LIMIT, answer: str | None = None) -> str:
    """Compress a conversation by what it says itself: no model is asked, and equal messages give equal reports.

    It names the plan (the first thought), the tool calls with short arguments and the first line of what each brought,
    the last reasoning, and the answer. What does not fit is cut; of the calls, those in the middle are left out and
    counted.

    Args:
        messages: The conversation in the chat form, or in any form that comes close: a part of it that cannot be read
            is left out. What stands before the model's first message is the prompt, and no part of the report.
        limit: Most characters of the report.
        answer: The final answer, where it is known; else it is looked for in the last message of the model.

    Returns:
        Up to four parts, each on lines of its own; safe to print but for its line breaks. Empty if the model said
        nothing.

    Raises:
        ConfigError: The limit is less than 200.
    """
    check_int("limit", limit, LEAST)
    said = without_prompt(messages)
    done = steps(said)
    if not done:
        return ""
    thoughts = [step.text for step in done if step.kind == "thought"]
    found = _found(said) if answer is None else answer
    parts = []
    if thoughts:
        parts.append(f"Plan: {_head(thoughts[0], limit // 5 - 8)}")
    calls = _calls(done)
    ending = []
    if len(thoughts) > 1:
        ending.append(f"Reasoning: {_end(thoughts[-1], limit // 4 - 14)}")
    if found:
        ending.append(f"Answer: {_head(found, limit // 6 - 10)}")
    room = limit - sum(len(part) + 1 for part in (*parts, *ending)) - len("Methods:\n")
    if calls:
        parts.append("Methods:\n" + "\n".join(_fitting(calls, room)))
    return "\n".join((*parts, *ending))[:limit]


def extract_tree(tree: Tree, *, limit: int = LIMIT, again: bool = False) -> Reported:
    """Write an extracted report on the leaf of every rollout that neither broke nor was cut."""
    check_int("limit", limit, LEAST)
    written = skipped = 0
    problems: list[Problem] = []
    for leaf, answer in reported_leaves(tree).items():
        if not again and tree.core.report_of(leaf) is not None:
            skipped += 1
            continue
        text = extract(messages_of(tree, tree.core.path(leaf)), limit=limit, answer=answer)
        if text:
            tree.core.report(leaf, text)
            written += 1
        else:
            problems.append(Problem(leaf, "nothing was said that could be extracted"))
    return Reported(written=written, skipped=skipped, problems=tuple(problems))


def messages_of(tree: Tree, nodes: Iterable[int]) -> list[Message]:
    """The messages of nodes, prompts left out; a turn's reasoning stands in ``reasoning_content``."""
    core = tree.core
    found: list[Message] = []
    for node in nodes:
        kind = core.node(node).kind
        if kind in {Kind.ROOT, Kind.PROMPT}:
            continue
        message = cast("dict[str, Any]", msgspec.json.decode(core.message(node)))
        aside = core.aside(node)
        found.append({**message, "reasoning_content": aside} if aside else message)
    return found


def _found(messages: Sequence[Message]) -> str:
    """The answer in the last message of the model, if that calls no tool."""
    last = next((message for message in reversed(messages) if message.get("role") == "assistant"), None)
    if last is None or any(step.kind == "call" for step in steps([last])):
        return ""
    return extract_answer(message_text(last))


def _line(text: str) -> str:
    return " ".join(_TAGS.sub(" ", text).split())


def _head(text: str, width: int) -> str:
    return printable(_line(text[:_READ]), max(width, 1))


def _end(text: str, width: int) -> str:
    line = _line(text[-_READ:])
    return printable(line, width) if len(line) <= width else f"…{printable(line[len(line) - width + 1 :], width - 1)}"


def _calls(done: Sequence[ReportStep]) -> list[str]:
    """One line per call: results answer calls in their order, and calls of one turn stand together."""
    lines: list[str] = []
    waiting: list[int] = []
    for step in done:
        if step.kind == "call":
            waiting.append(len(lines))
            lines.append(f"- {step.name}({_head(_short(step.text), _LINE // 2 - 20)})")
        elif step.kind == "result" and waiting:
            place = waiting.pop(0)
            first = next((line for line in step.text[:_READ].splitlines() if line.strip()), "nothing")
            lines[place] = printable(f"{lines[place]} -> {_head(first, _LINE // 2)}", _LINE)
        elif step.kind == "thought":
            waiting.clear()
    return lines


def _short(arguments: str) -> str:
    """The values of arguments without names and JSON syntax; other text as it is."""
    try:
        given = msgspec.json.decode(arguments[:_READ], type=dict[str, str | int | float | list[str]])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return arguments
    return ", ".join(", ".join(value) if isinstance(value, list) else str(value) for value in given.values())


def _fitting(lines: Sequence[str], room: int) -> list[str]:
    """As many lines as there is room for: from both ends, with a line that counts the omitted ones."""
    if sum(len(line) + 1 for line in lines) <= room:
        return list(lines)
    head: list[str] = []
    tail: list[str] = []
    left = room - len(f"- ({len(lines)} more calls)\n")
    for turn in range(len(lines)):
        line = lines[len(head)] if turn % 2 == 0 else lines[-1 - len(tail)]
        left -= len(line) + 1
        if left < 0:
            break
        (head if turn % 2 == 0 else tail).append(line)
    more = len(lines) - len(head) - len(tail)
    return [*head, f"- ({more} more calls)", *reversed(tail)]
