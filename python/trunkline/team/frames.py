"""Prompts of one rollout as frames: pieces of its tree, around a talk that the core keeps.

Where nothing but the talk changes between two asks, a prompt is one call of the core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline.errors import ArgumentError
from trunkline.llm.messages import CLOSES, OPENS, piece, system
from trunkline.llm.text import scrub
from trunkline.rollout.said import Sent
from trunkline.team.prompts import before_question, check_slots, encoded, question_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trunkline.rollout.play import Play
    from trunkline.team.role import Member
    from trunkline.team.team import Team

__all__ = ["Frames"]

_FIXED = frozenset({"question", "context"})
"""Slots that a frame has filled for good, or that are no part of it."""


class Frames:
    """Makes the messages that members of a team are sent in one rollout: those of :class:`Prompts`, for less.

    Args:
        play: The rollout.
        team: Its team, which :meth:`serve` allows.
    """

    def __init__(self, play: Play, team: Team) -> None:
        self._play = play
        self._numbers = {name: number for number, name in enumerate(team.members)}
        self._talk = play.talk()
        self._ready: set[str] = set()
        self._known: dict[bytes, int] = {}
        for member in team.members.values():
            self._talk.frame(self._numbers[member.name], [], None)
        self._system, self._before = before_question(play.task)

    @staticmethod
    def serve(team: Team) -> bool:
        """Whether a team's settings leave its prompts to the core."""
        whole = team.context_fragments and team.preprocessing_cache and team.max_context_length is None
        return whole and team.late_join and team.active_only

    @property
    def question(self) -> str:
        """What the task's last message says."""
        return question_of(self._play.task)

    def add(self, member: Member, output: str) -> None:
        """Keep what a member said for its colleagues."""
        before, after = member.relayed or (b"", b"")
        text = output if member.relayed else member.relay(output)
        if not (before or text or after):
            return
        number = self._numbers[member.name]
        try:
            self._talk.add(number, before, text, after)
        except ArgumentError:
            self._talk.add(number, before, scrub(text), after)

    def clear(self) -> None:
        """Forget what was said."""
        self._talk.clear()

    def of(self, member: Member, step: int, slots: Mapping[str, str]) -> Sent | None:
        """Return what a member is sent; see :meth:`.prompts.Prompts.of`."""
        name = member.name
        if slots or name not in self._ready:
            check_slots(member, slots)
            if member.template is None:
                return None
            texts = {slot: str(text) for slot, text in slots.items()}
            self._frame(member, texts | {"question": self.question, "step": str(step)})
            if member.template.slots <= _FIXED:
                self._ready.add(name)
        return Sent(self._talk.prompt(self._numbers[name]))

    def draft(self, member: Member, step: int) -> None:
        """Nothing: a team that is to build prompts that nobody is sent, :meth:`serve` does not allow."""

    def _frame(self, member: Member, values: Mapping[str, str]) -> None:
        """Fill in what a prompt has besides the talk."""
        assert member.template is not None
        parts = [[*self._first(member), *self._play.fragments(self._before), self._piece(OPENS)]]
        for part in member.template.parts:
            if isinstance(part, str):
                parts[-1].append(self._piece(encoded(part)))
            elif part.name == "context":
                parts.append([])
            elif text := values[part.name]:
                parts[-1].append(self._piece(piece(text)))
        parts[-1].append(self._piece(CLOSES))
        sees = member.role.sees
        numbers = None if sees is None else [self._numbers[name] for name in sees]
        self._talk.frame(self._numbers[member.name], parts, numbers)

    def _first(self, member: Member) -> Sequence[int]:
        """The system message of a member; those of the task where it has none."""
        own = member.role.system
        return [self._piece(system(own))] if own else self._play.fragments(self._system)

    def _piece(self, data: bytes) -> int:
        """The number of a piece in the tree, which is looked for there once."""
        known = self._known.get(data)
        if known is None:
            (known,) = self._play.cut([data]).pieces
            self._known[data] = known
        return known
