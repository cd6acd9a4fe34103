"""Prompts of a team in one rollout: from a transcript in the core, or from texts where a switch or a limit needs it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from trunkline._internal.text import scrub
from trunkline._internal.validation import short_repr
from trunkline.errors import ArgumentError, ConfigError, ProgramError
from trunkline.llm.messages import CLOSES, OPENS, encode, piece, user
from trunkline.rollout.programs.context import ContextRef
from trunkline.tree.views import message_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trunkline.rollout.programs.context import ProgramContext
    from trunkline.team.role import Member
    from trunkline.types import Message, Task


class _Switches(Protocol):
    """The settings of a ``Team`` that its prompts depend on."""

    @property
    def members(self) -> Mapping[str, Member]: ...
    @property
    def preprocessing_cache(self) -> bool: ...
    @property
    def context_fragments(self) -> bool: ...
    @property
    def late_join(self) -> bool: ...
    @property
    def active_only(self) -> bool: ...
    @property
    def max_context_length(self) -> int | None: ...
    @property
    def context_tail(self) -> Callable[[str, int], tuple[str, int]]: ...


class Context:
    """Outputs of a team's members since the last observation; without ``late_join`` they are joined at once."""

    def __init__(self, team: _Switches) -> None:
        self._team = team
        self._outputs: list[tuple[str, str]] = []
        self._joined: dict[str, str] = {}

    def add(self, member: Member, output: str) -> None:
        """Append a member's output as its colleagues see it."""
        self._outputs.append((member.name, member.relay(output)))
        if not self._team.late_join:
            self._joined = {name: "".join(self._pieces(other)) for name, other in self._team.members.items()}

    def clear(self) -> None:
        """Forget all outputs."""
        self._outputs.clear()
        self._joined.clear()

    def seen_by(self, member: Member) -> list[str]:
        """Return the outputs that a member sees: one piece each, or all as one text without ``late_join``."""
        return self._pieces(member) if self._team.late_join else [self._joined.get(member.name, "")]

    def _pieces(self, member: Member) -> list[str]:
        sees, most = member.role.sees, self._team.max_context_length
        outputs = [text for name, text in self._outputs if sees is None or name in sees]
        return outputs if most is None else _last(outputs, most, self._team.context_tail)


_FIXED = frozenset({"question", "context"})
"""Slots that are filled once for a rollout, or from what was said."""


class Prompts:
    """Builds the prompts of one rollout, as fragments of its tree."""

    def __init__(self, play: ProgramContext, team: _Switches) -> None:
        self._play = play
        self._team = team
        # Outputs as texts, where a limit or a switch needs them; else the transcript has them.
        whole = team.context_fragments and team.preprocessing_cache and team.max_context_length is None
        self._context = None if whole and team.late_join and team.active_only else Context(team)
        self._transcript = play.transcript()
        self._ready: set[str] = set()
        self._system, self._before = before_question(play.task)

    @cached_property
    def question(self) -> str:
        """The text of the task's last message."""
        return question_of(self._play.task)

    def add(self, member: Member, output: str) -> None:
        """Keep a member's output for its colleagues."""
        if self._context is not None:
            self._context.add(member, output)
            return
        before, after = member.relayed or (b"", b"")
        text = output if member.relayed else member.relay(output)
        if not (before or text or after):
            return
        try:
            self._transcript.add(member.number, before, text, after)
        except ArgumentError:
            self._transcript.add(member.number, before, scrub(text), after)

    def clear(self) -> None:
        """Forget all outputs."""
        if self._context is not None:
            self._context.clear()
        self._transcript.clear()

    def of(self, member: Member, step: int, slots: Mapping[str, str]) -> Sequence[Message] | ContextRef | None:
        """Return a member's prompt, None for the rollout's own path; ProgramError for wrong slots."""
        name = member.name
        if slots or name not in self._ready:
            if slots or member.role.slots:
                check_slots(member, slots)
            if member.template is None:
                return None
            values = {"question": self.question, "step": str(step)}
            if slots:
                values |= {slot: str(text) for slot, text in slots.items()}
            if not self._team.context_fragments:
                own = member.role.system
                first: list[Message] = [{"role": "system", "content": own}] if own else self._system
                return [*first, *self._before, {"role": "user", "content": self._filled(member, values)}]
            self._frame(member, values)
            if self._context is None and member.template.slots <= _FIXED:
                self._ready.add(name)
        return ContextRef(self._transcript.prompt(member.number))

    def draft(self, member: Member, step: int) -> None:
        """Build a member's prompt and discard it; slots without a text are empty."""
        if member.template is not None:
            values = dict.fromkeys(member.role.slots, "") | {"question": self.question, "step": str(step)}
            user(self._filled(member, values))

    def _filled(self, member: Member, values: Mapping[str, str]) -> str:
        assert member.template is not None
        assert self._context is not None
        return member.template.fill({**values, "context": "".join(self._context.seen_by(member))})

    def _frame(self, member: Member, values: Mapping[str, str]) -> None:
        """Set the fragments of a member's prompt around the transcript."""
        own, pieces = member.pieces if self._team.preprocessing_cache else member.encoded()
        part = [own] if own else [encode(message) for message in self._system]
        if self._before:
            part += [encode(message) for message in self._before]
        part.append(OPENS)
        parts = [part]
        for fixed, slot in pieces:
            if not slot:
                part.append(fixed)
            elif slot != "context":
                if text := values[slot]:
                    part.append(piece(text))
            elif self._context is None:
                parts.append(part := [])
            else:
                part += [piece(text) for text in self._context.seen_by(member) if text]
        part.append(CLOSES)
        sees = member.role.sees
        numbers = None if sees is None else [self._team.members[name].number for name in sees]
        self._transcript.frame(member.number, parts, numbers)


def question_of(task: Task) -> str:
    """Return the text of a task's last message; ConfigError unless that is a text of the user."""
    last = task.messages[-1]
    content = last.get("content")
    if last.get("role") == "user":
        if isinstance(content, str):
            return content
        if all(part.get("type") == "text" for part in content or ()):
            return message_text(last)
    raise ConfigError(
        f"task {short_repr(task.id)}: its last message must be a text of the user, the {{question}} of prompts; "
        "for other messages, write roles with prompt=None, which are sent the rollout's own path"
    )


def before_question(task: Task) -> tuple[list[Message], list[Message]]:
    """Return the system messages, and the others, before a task's last message."""
    before = task.messages[:-1]
    if not before:
        return [], []
    system = [message for message in before if message.get("role") == "system"]
    return system, [message for message in before if message.get("role") != "system"]


def check_slots(member: Member, slots: Mapping[str, str]) -> None:
    """Raise ProgramError unless the texts are those of the role's own slots."""
    wanted = set(member.role.slots)
    for name, value in slots.items():
        if name not in wanted:
            raise ProgramError(f"role {member.name} has no slot {name!r}; name it in slots=")
        if not isinstance(value, str):
            raise ProgramError(f"slot {name!r} of role {member.name} must be given a text")
    if missing := sorted(wanted.difference(slots)):
        raise ProgramError(f"role {member.name} is asked without a text for its slot {missing[0]!r}")


def by_characters(text: str, most: int) -> tuple[str, int]:
    """Return the last characters of a text, at most so many, and how many they are."""
    return text[max(0, len(text) - most) :], min(len(text), most)


def _last(outputs: list[str], most: int, tail: Callable[[str, int], tuple[str, int]]) -> list[str]:
    """Return the last outputs within a limit; the first of them may be cut at its start."""
    kept: list[str] = []
    for text in reversed(outputs):
        end, count = tail(text, most)
        kept.append(end)
        most -= count
        if most <= 0 or len(end) < len(text):
            break
    return kept[::-1]
