"""A rollout as a team plays it: roles are asked, and see what the others said."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from trunkline.bounds import shown
from trunkline.errors import ProgramError
from trunkline.team.frames import Frames
from trunkline.team.prompts import Prompts
from trunkline.tools.tool import Tool
from trunkline.types import Termination

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from trunkline.llm.protocol import Choice
    from trunkline.rollout.play import Play
    from trunkline.rollout.said import Answered, Noted
    from trunkline.team.projection import Projected
    from trunkline.team.role import Member, Role
    from trunkline.team.team import Team
    from trunkline.tools.runner import Observation
    from trunkline.types import Message, Task

__all__ = ["Said", "TeamPlay"]


class Said(str):
    """What a role said, as its projection reads it; the empty text for a row that is not active.

    Attributes:
        valid: Whether it is a valid action.
        turn: The model turn; its ``text`` is all that the model said.
        role: Who said it.
    """

    __slots__ = ("role", "turn", "valid")

    valid: bool
    turn: Answered
    role: str

    @classmethod
    def of(cls, role: str, text: str, turn: Answered, *, valid: bool) -> Said:
        """Make one."""
        made = cls(text)
        made.valid, made.turn, made.role = valid, turn, role
        return made


class TeamPlay:
    """One try of one task, as a team plays it. What :class:`~trunkline.rollout.play.Play` says of programs holds here.

    Args:
        play: The rollout.
        team: The team.

    Attributes:
        task: The task.
        question: What its last message says.
        random: Chance that is the same whenever the program is run again.
        step: Steps that are over: how often something was observed.
    """

    def __init__(self, play: Play, team: Team) -> None:
        self.task: Task = play.task
        self.random: Random = play.random
        self.step = 0
        self._play = play
        self._team = team
        self._prompts = Frames(play, team) if Frames.serve(team) else Prompts(play, team)
        self._one_at_a_time = asyncio.Lock()

    @property
    def question(self) -> str:
        """What the task's last message says."""
        return self._prompts.question

    @property
    def turn(self) -> int:
        """Model turns so far."""
        return self._play.turn

    async def ask(self, role: Role | str, /, *, active: bool = True, **slots: str) -> Said:
        """Let a role move. Several may be asked at the same time; each sees what was said before.

        Args:
            role: Who is asked.
            active: Whether anything depends on the reply. What is said otherwise is on record and nobody is told.
            **slots: Texts for the slots of the role's prompt.

        Raises:
            LLMError: No usable reply came. That is on record, too; a program may catch it.
            ProgramError: It is no role of the team, or its slots are not filled.
        """
        if not isinstance(active, bool):
            raise ProgramError(f"active must be true or false, not {shown(active)}")
        member = self._team.member(role)
        others = (
            [] if self._team.active_only else [other for other in self._team.members.values() if other is not member]
        )
        reading = _Reading(member, others, active=active, step=self.step + 1)
        messages = self._prompts.of(member, self.step + 1, slots)
        for other in others:
            self._prompts.draft(other, self.step + 1)
        if self._team.parallel_agents:
            turn = await self._play.ask(member.agent, messages, note=reading.note)
        else:
            async with self._one_at_a_time:
                turn = await self._play.ask(member.agent, messages, note=reading.note)
        if not active:
            return Said.of(member.name, "", turn, valid=False)
        text = reading.text(turn)
        self._prompts.add(member, text)
        return Said.of(member.name, text, turn, valid=turn.note[1])

    async def observe(self, said: str | Message | Tool[..., Any], /, *args: Any, **arguments: Any) -> Noted:
        """Append what the world says, which ends the step: what colleagues said before is context no more.

        Args:
            said: A text, a chat message, or a tool that is run and says it.
            *args: Arguments of the tool, in the order of its parameters.
            **arguments: Arguments of the tool by name.

        Raises:
            ProgramError: It is no message, or one with arguments, which a tool alone takes.
        """
        if isinstance(said, Tool):
            seen = await self._play.tool(said, **_bound(said, args, arguments))
            noted = (await self._play.observe(seen.text, by=said.name, seen=seen))._replace(ok=seen.ok)
        elif args or arguments:
            raise ProgramError("observe takes arguments for a tool alone; another role than user is that of a message")
        else:
            noted = await self._play.observe(str(said) if isinstance(said, str) else said)
        self.step += 1
        self._prompts.clear()
        return noted

    async def use(self, said: Said, /) -> list[Noted]:
        """Run the tool calls of a role's turn, and append what they say; the step goes on. See :meth:`Play.use`.

        Args:
            said: What the role said.

        Raises:
            ProgramError: It is not what ``ask`` returned.
        """
        if not isinstance(said, Said):
            raise ProgramError(f"use runs the calls of what ask returned, which {shown(said)} is not")
        return await self._play.use(self._team.member(said.role).agent, said.turn)

    async def tool(self, tool: Tool[..., Any], /, **arguments: Any) -> Observation:
        """Run a tool; nothing is appended; see :meth:`Play.tool`."""
        return await self._play.tool(tool, **arguments)

    async def call(self, function: Callable[..., Any], /, *args: Any) -> Any:
        """Call a function whose result may differ from time to time; see :meth:`Play.call`."""
        return await self._play.call(function, *args)

    def now(self) -> float:
        """Return the time of day in seconds; a replay gets the same."""
        return self._play.now()

    def finish(self, answer: str | None, termination: Termination = Termination.ANSWER, reason: str = "") -> NoReturn:
        """End the rollout here; see :meth:`Play.finish`.

        Raises:
            ProgramError: The answer is no text.
        """
        if not isinstance(answer, str | None):
            raise ProgramError(f"finish takes the answer, a text, or None, not {shown(answer)}")
        self._play.finish(str(answer) if isinstance(answer, str) else answer, termination, reason)


class _Reading:
    """Reads one reply, once.

    Args:
        member: Who says it.
        others: Members whose readings of it are thrown away.
        active: Whether anything depends on it.
        step: Which step it belongs to, from 1.
    """

    def __init__(self, member: Member, others: Sequence[Member], *, active: bool, step: int) -> None:
        self._member = member
        self._others = others
        self._active = active
        self._step = step
        self._found: Projected | None = None

    def note(self, choice: Choice) -> list[Any]:
        """Return what is on record of it: active, valid, step, penalty of an action that is not valid."""
        self._found = self._member.read(choice.content, choice.reasoning)
        for other in self._others:
            with suppress(ProgramError):
                other.read(choice.content, choice.reasoning)
        return [self._active, self._found.valid, self._step, self._member.role.penalty]

    def text(self, turn: Answered) -> str:
        """Return what of it counts; one that is on record is read again."""
        found = self._found or self._member.read(turn.text, turn.reasoning)
        return found.text


def _bound(tool: Tool[..., Any], args: tuple[Any, ...], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a tool's arguments by name."""
    names = list(tool.parameters["properties"])
    if len(args) > len(names):
        raise ProgramError(f"{tool.name} takes {len(names)} arguments, and is given {len(args)}")
    for name in names[: len(args)]:
        if name in arguments:
            raise ProgramError(f"{tool.name} is given {name} twice")
    return dict(zip(names, args, strict=False)) | arguments
