"""``sim-reporter``: keeps the record of a try, from its question, the record so far and the steps since."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from trunkline.sim.model.draft import Draft
from trunkline.sim.model.verdict import proposed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.sim.model.chat import Conversation
    from trunkline.sim.model.mind import Mind

__all__ = ["reporter"]

_HEADING: Final = re.compile(r"^(#{1,2}) ([^\n]+)$", re.MULTILINE)
_FIELD: Final = re.compile(r"^(Plan|Methods|Reasoning|Answer):[ ]*", re.MULTILINE)
_WORDS: Final = re.compile(r"at most (\d{1,4}) words", re.IGNORECASE)
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+")
_ANSWERED: Final = re.compile(r"</?answer>")
_USUAL: Final = 150
_LINE: Final = 24
"""Words about one call."""

_MOST_CALLS: Final = 8


class _Block(NamedTuple):
    level: int
    title: str
    body: str


def reporter(conversation: Conversation, mind: Mind) -> Draft:
    """Write a record: the plan, the calls that were made and what they brought, the last reasoning and the answer.

    A record so far is carried over and gone on with. Where the messages show no steps, there is nothing to report. The
    record keeps to the words that the instructions allow.
    """
    draft = Draft(conversation.opened)
    if not draft.left and mind.accident(mind.dials.empty):
        return draft
    draft.say("<think>\n")
    mind.fill(draft)
    draft.say("\n</think>\n")
    text = "\n".join(message.text for message in conversation.messages if message.role == "user")
    blocks = _blocks(text)
    before = _fields(next((block.body for block in blocks if block.title == "Record so far"), ""))
    steps = [block for block in blocks if block.level > 1]
    if not steps and not before:
        draft.say("There is nothing in the messages that I could report.")
        return draft
    rules = "\n".join(message.text for message in conversation.messages if message.role == "system")
    found = _WORDS.search(rules)
    words = int(found[1]) if found else _USUAL
    thoughts = [block.body for block in steps if block.title == "Thought"]
    plan = before.get("Plan") or (_sentences(thoughts[0], 0, 2) if thoughts else "not stated")
    reasoning = _sentences(thoughts[-1], -3, None) if thoughts else before.get("Reasoning", "not stated")
    given = next((block.body for block in blocks if block.title == "Answer given"), None)
    answers = proposed("\n".join(thoughts))
    answer = given or (answers[-1] if answers else before.get("Answer", "none yet"))
    answer = _first(answer, words // 5)
    plan, reasoning = _first(plan, words // 5), _first(reasoning, words // 4)
    room = words - sum(len(part.split()) for part in (plan, reasoning, answer)) - 4
    methods = _methods([line for line in before.get("Methods", "").splitlines() if line.strip()], _calls(steps), room)
    draft.say(f"Plan: {plan}\nMethods:{''.join(methods) or ' none.'}\nReasoning: {reasoning}\nAnswer: {answer}")
    return draft


def _blocks(text: str) -> list[_Block]:
    """What stands under each heading; headings begin a line, and the lines under them are indented."""
    matches = list(_HEADING.finditer(text))
    ends = [*(match.start() for match in matches), len(text)][1:]
    found = []
    for match, end in zip(matches, ends, strict=True):
        lines = (line.removeprefix("  ") for line in text[match.end() : end].split("\n"))
        found.append(_Block(len(match[1]), match[2].strip(), "\n".join(lines).strip()))
    return found


def _fields(record: str) -> dict[str, str]:
    """The parts of a record that was written here, or by somebody who keeps to the same headings."""
    matches = list(_FIELD.finditer(record))
    ends = [*(match.start() for match in matches), len(record)][1:]
    return {match[1]: record[match.end() : end].strip() for match, end in zip(matches, ends, strict=True)}


def _calls(steps: Sequence[_Block]) -> list[str]:
    """A line for each call with the first line of what it brought."""
    lines: list[str] = []
    for place, block in enumerate(steps):
        if not block.title.startswith("Call of "):
            continue
        after = (later.body for later in steps[place + 1 :] if later.title == "Result")
        brought = next(iter(next(after, "").splitlines()), "nothing")
        lines.append(_first(f"- {block.title.removeprefix('Call of ')} {block.body}: {brought}", _LINE))
    return lines


def _methods(before: Sequence[str], calls: Sequence[str], room: int) -> list[str]:
    """The latest lines that there is room for, in their order."""
    kept: list[str] = []
    for line in reversed([*before, *calls][-_MOST_CALLS:]):
        room -= len(line.split())
        if room < 0:
            break
        kept.append(f"\n{line}")
    return kept[::-1]


def _sentences(text: str, start: int, end: int | None) -> str:
    plain = " ".join(_ANSWERED.sub(" ", text).split())
    return " ".join(_SENTENCE.split(plain)[start:end])


def _first(text: str, words: int) -> str:
    """A text on one line, cut to a number of words."""
    kept = text.split()
    return " ".join(kept[: max(words, 1)]) + ("…" if len(kept) > max(words, 1) else "")
