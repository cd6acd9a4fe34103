"""Teams: several roles and a coroutine over one rollout."""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from inspect import getattr_static, iscoroutinefunction
from pathlib import Path
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, Final, NoReturn, dataclass_transform

import msgspec

from trunkline._internal.registry import load_named
from trunkline._internal.text import format_error
from trunkline._internal.validation import check_bool, check_int, check_text, short_repr
from trunkline.agent import Agent
from trunkline.errors import ConfigError, ProgramError
from trunkline.team.prompts import Prompts, by_characters, question_of
from trunkline.team.role import Member, Role, described
from trunkline.tools.tool import Tool, environment_for
from trunkline.types import Termination

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from random import Random

    from trunkline.llm.types import ReplyChoice
    from trunkline.rollout.programs.context import ContextMessage, ModelTurn, ProgramContext
    from trunkline.team.projection import Reading
    from trunkline.tools.toolbox import Observation
    from trunkline.types import Message, Task


_OF_CODE: Final = ("name", "slots", "reads")
"""Fields that belong to the team's code: its program knows them."""


def check_changes(team: str, changes: object, roles: Mapping[str, Role]) -> None:
    """Refuse changes of roles that name no role of the team or no fields."""
    if not isinstance(changes, Mapping):
        raise ConfigError(f"roles must be fields by roles, such as {{'{next(iter(roles))}': {{'model': 'large'}}}}")
    for name, fields in changes.items():
        if name not in roles:
            raise ConfigError(f"roles has {short_repr(name)}; the roles of {team} are {', '.join(roles)}")
        if not isinstance(fields, Mapping):
            raise ConfigError(f"roles: {name} must be fields, such as {{'model': 'large'}}, not {short_repr(fields)}")


def change(name: str, role: Role, fields: Mapping[str, Any]) -> Role:
    """Return a role with changed fields; ConfigError for an unknown or fixed field, or a wrong value."""
    known = role.__struct_fields__
    for field in fields:
        if field in _OF_CODE:
            raise ConfigError(f"roles: {name}: {field} belongs to the team's code: give it in a team of your own")
        if field not in known:
            there = ", ".join(one for one in known if one not in _OF_CODE)
            raise ConfigError(f"roles: {name} has {short_repr(field)}, which is none of {there}")
    if not isinstance(fields.get("dialect", ""), str):
        raise ConfigError(f"roles: {name}: dialect must be a name here: give an object in a team of your own")
    given = dict(fields)
    try:
        if isinstance(sampling := given.get("sampling"), Mapping):
            given["sampling"] = msgspec.convert(sampling, type(role.sampling))
        return msgspec.structs.replace(role, **given)
    except (ConfigError, msgspec.ValidationError) as problem:
        raise ConfigError(f"roles: {name}: {problem}") from None


class RoleReply(str):
    """What a role said, as its projection reads it; the empty text for a row that is not active.

    Attributes:
        valid: Whether it is a valid action.
        turn: The model turn; its ``text`` is all that the model said.
        role: The name of the role.
    """

    __slots__ = ("role", "turn", "valid")

    valid: bool
    turn: ModelTurn
    role: str

    @classmethod
    def of(cls, role: str, text: str, turn: ModelTurn, *, valid: bool) -> RoleReply:
        """Make one."""
        made = cls(text)
        made.valid, made.turn, made.role = valid, turn, role
        return made


class TeamPlay:
    """One try of one task, as a team plays it. ``trunkline.programs.ProgramContext`` holds for it too.

    Args:
        play: The rollout.
        team: The team.

    Attributes:
        task: The task.
        question: What its last message says.
        step: Steps that are over: how often something was observed.
    """

    def __init__(self, play: ProgramContext, team: Team) -> None:
        self.task: Task = play.task
        self.step = 0
        self._play = play
        self._team = team
        self._prompts = Prompts(play, team)
        self._one_at_a_time = None if team.parallel_agents else asyncio.Lock()

    @property
    def question(self) -> str:
        """What the task's last message says."""
        return self._prompts.question

    @property
    def random(self) -> Random:
        """Chance that is the same whenever the program is run again."""
        return self._play.random

    @property
    def turn(self) -> int:
        """Model turns so far."""
        return self._play.turn

    async def ask(self, role: Role | str, /, *, active: bool = True, **slots: str) -> RoleReply:
        """Let a role move. Several may be asked at the same time; each sees what was said before.

        Args:
            role: The role to ask.
            active: Whether anything depends on the reply; other replies are recorded and shown to no role.
            **slots: Texts for the slots of the role's prompt.

        Raises:
            LLMError: No usable reply came. That is on record, too; a program may catch it.
            ProgramError: It is no role of the team, or its slots are not filled.
        """
        if active is not True and active is not False:
            raise ProgramError(f"active must be true or false, not {short_repr(active)}")
        member = self._team.member(role)
        others = (
            [] if self._team.active_only else [other for other in self._team.members.values() if other is not member]
        )
        reading = _Reading(member, others, active=active, step=self.step + 1)
        messages = self._prompts.of(member, self.step + 1, slots)
        for other in others:
            self._prompts.draft(other, self.step + 1)
        if self._one_at_a_time is None:
            turn = await self._play.ask(member.agent, messages, note=reading.note)
        else:
            async with self._one_at_a_time:
                turn = await self._play.ask(member.agent, messages, note=reading.note)
        if not active:
            return RoleReply.of(member.name, "", turn, valid=False)
        found = reading.found or member.read(turn.text, turn.reasoning)  # a recorded reply is read again
        text = found.text
        self._prompts.add(member, text)
        return RoleReply.of(member.name, text, turn, valid=turn.note[1])

    async def observe(self, said: str | Message | Tool[..., Any], /, *args: Any, **arguments: Any) -> ContextMessage:
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

    async def use(self, said: RoleReply, /) -> list[ContextMessage]:
        """Run the tool calls of a role's turn, and append their results within the step: ``ProgramContext.use``.

        Args:
            said: What the role said.

        Raises:
            ProgramError: It is not what ``ask`` returned.
        """
        if not isinstance(said, RoleReply):
            raise ProgramError(f"use runs the calls of what ask returned, which {short_repr(said)} is not")
        return await self._play.use(self._team.member(said.role).agent, said.turn)

    async def tool(self, tool: Tool[..., Any], /, **arguments: Any) -> Observation:
        """Run a tool; nothing is appended; see ``ProgramContext.tool``."""
        return await self._play.tool(tool, **arguments)

    async def call(self, function: Callable[..., Any], /, *args: Any) -> Any:
        """Call a function whose result may differ from time to time; see ``ProgramContext.call``."""
        return await self._play.call(function, *args)

    def now(self) -> float:
        """Return the time of day in seconds; a replay gets the same."""
        return self._play.now()

    def finish(self, answer: str | None, termination: Termination = Termination.ANSWER, reason: str = "") -> NoReturn:
        """End the rollout here; see ``ProgramContext.finish``.

        Raises:
            ProgramError: The answer is no text.
        """
        if not isinstance(answer, str | None):
            raise ProgramError(f"finish takes the answer, a text, or None, not {short_repr(answer)}")
        self._play.finish(str(answer) if isinstance(answer, str) else answer, termination, reason)


class _Reading:
    """Reads one reply once; readings of ``others`` are discarded."""

    def __init__(self, member: Member, others: Sequence[Member], *, active: bool, step: int) -> None:
        self._member = member
        self._others = others
        self._active = active
        self._step = step
        self.found: Reading | None = None

    def note(self, choice: ReplyChoice) -> list[Any]:
        """Return what is recorded of a reply: active, valid, step, penalty."""
        self.found = found = self._member.read(choice.content, choice.reasoning)
        for other in self._others:
            with suppress(ProgramError):
                other.read(choice.content, choice.reasoning)
        return [self._active, found.valid, self._step, self._member.role.penalty]


def _bound(tool: Tool[..., Any], args: tuple[Any, ...], arguments: dict[str, Any]) -> dict[str, Any]:
    names = list(tool.parameters["properties"])
    if len(args) > len(names):
        raise ProgramError(f"{tool.name} takes {len(names)} arguments, and is given {len(args)}")
    for name in names[: len(args)]:
        if name in arguments:
            raise ProgramError(f"{tool.name} is given {name} twice")
    return dict(zip(names, args, strict=False)) | arguments


ALIKE: Final = ("parallel_agents", "preprocessing_cache", "context_fragments", "late_join", "active_only", "profiling")
"""Switches that change neither requests nor results: a run may be resumed with others."""

_SWITCHES: Final = ("early_termination", "agent_skip", *ALIKE)

_LENGTH: Final = "max_context_length"

GUIDE_NAMES: Final = {f"enable_{switch}": switch for switch in _SWITCHES} | {"enable_performance_monitor": "profiling"}
"""Settings by their names in the guide to multi-agent rollouts of Dr.MAS."""


def performance(given: object) -> dict[str, bool | int | None]:
    """Return a team's settings from a table ``agent.performance``, its mapping or TOML file; ConfigError if wrong."""
    table = given
    if isinstance(given, str | Path):
        try:
            table = {"agent": None, **tomllib.loads(Path(given).read_text("utf-8"))}
        except (OSError, ValueError, RecursionError) as problem:
            raise ConfigError(f"performance: {short_repr(given)} cannot be read: {format_error(problem)}") from None
    if isinstance(table, Mapping) and "agent" in table:
        for name in ("agent", "performance"):
            table = table.get(name) if isinstance(table, Mapping) else None
    if not isinstance(table, Mapping):
        raise ConfigError(f"performance: {short_repr(given)} has no table agent.performance")
    found: dict[str, bool | int | None] = {}
    for name, value in table.items():
        own = GUIDE_NAMES.get(name, name) if isinstance(name, str) else ""
        if own not in {*_SWITCHES, _LENGTH}:
            raise ConfigError(f"performance has {short_repr(name)}; it can have {', '.join([*GUIDE_NAMES, _LENGTH])}")
        if own in found:
            raise ConfigError(f"performance has {own} twice")
        if own == _LENGTH:
            found[own] = None if value is None else check_int(f"performance: {own}", value, 0)
        else:
            found[own] = check_bool(f"performance: {name}", value)
    return found


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class TeamType(msgspec.StructMeta):
    """Metaclass of teams, which also accepts the setting names of Dr.MAS's guide."""

    def __call__(self, *args: Any, **given: Any) -> Any:
        """Make a team."""
        own = self.__struct_fields__
        named: dict[str, Any] = {}
        for name, value in given.items():
            if name == "performance" and name not in own:
                told: Mapping[str, Any] = performance(value)
            else:
                told = {name if name in own else GUIDE_NAMES.get(name, name): value}
            for setting in told:
                if setting in named:
                    raise ConfigError(f"{self.__name__} is given {setting} twice, the second time by {name}")
            named |= told
        return super().__call__(*args, **named)


def context_limit(most: int | None, tokenizer: str | None) -> str:
    """Describe the limit of the context and its unit; empty without a limit."""
    if most is None:
        return ""
    unit = "characters at most (tokens with tokenizer=PATH)" if tokenizer is None else f"tokens at most, by {tokenizer}"
    return f"{most:,} {unit}"


class Team(msgspec.Struct, frozen=True, kw_only=True, dict=True, metaclass=TeamType):
    """Several agents and a program: a class with roles as attributes and ``async def play(self, rollout)``.

    Settings of a team of one's own are annotated attributes, like those below: given by name when it is made,
    and on the command line. The names of the guide to multi-agent rollouts will do as well,
    ``enable_agent_skip=False``, and so will all of its table: ``performance={"enable_agent_skip": False}``, or the path
    of a TOML file that has it as ``agent.performance``.

    Attributes:
        model: The model of every role that names none.
        roles: Changes of roles by their names: ``{"verifier": {"model": "large"}}``. Name, slots and projection are the
            code's; a dialect is given by its name, sampling, all of it, as a mapping or ``trunkline.Sampling``.
        max_turns: Model turns of all roles together that a rollout may take before it ends as ``max_turns``.
        early_termination: Whether a rollout ends as soon as its outcome is known. Without, the program continues to its
            last round, with rows that are not active.
        agent_skip: Whether a role with nothing to do is left out. Without, it is asked, in rows that are not active.
        parallel_agents: Whether roles that are asked together are asked at the same time.
        preprocessing_cache: Whether what roles have in common is encoded once for all of them.
        context_fragments: Whether what colleagues said is kept in pieces, each stored once.
        late_join: Whether these are joined when a request is built, not with every reply.
        active_only: Whether prompts are built and replies read for the role that is asked alone. Without, that is done
            for every role of the team and thrown away, as a loop over whole batches does.
        profiling: Whether each request is on record with the role that asked. Without, all are the team's.
        max_context_length: The most tokens of ``{context}`` as ``tokenizer`` counts them, each output by itself, or
            without one the most characters; the oldest outputs go first. It changes what models are sent. All of it
            when None.
        tokenizer: Path of a ``tokenizer.json``, or of the folder it is in (extra ``tokens``).
        environment: What makes the environment that tools of a rollout work on, as of an ``Agent``; all
            roles share it.

    Raises:
        ConfigError: If a setting has a value it cannot have.
    """

    model: str = ""
    roles: Mapping[str, Mapping[str, Any]] = {}
    max_turns: int = 100
    early_termination: bool = True
    agent_skip: bool = True
    parallel_agents: bool = True
    preprocessing_cache: bool = True
    context_fragments: bool = True
    late_join: bool = True
    active_only: bool = True
    profiling: bool = True
    max_context_length: int | None = None
    tokenizer: str | None = None
    environment: Any = None

    def __post_init__(self) -> None:
        self._check_attributes()
        check_text("model", self.model)
        check_int("max_turns", self.max_turns, 1)
        if self.max_context_length is not None:
            check_int("max_context_length", self.max_context_length, 0)
        if self.tokenizer is not None and (
            not check_text("tokenizer", self.tokenizer) or self.max_context_length is None
        ):
            raise ConfigError(
                f"tokenizer is {short_repr(self.tokenizer)}: give the path of a tokenizer.json, together with "
                "max_context_length, whose tokens it counts"
            )
        for switch in _SWITCHES:
            check_bool(switch, getattr(self, switch))
        self._check_program()
        if isinstance(self.environment, str):
            msgspec.structs.force_setattr(self, "environment", load_named(self.environment, "environment"))
        own = self.own_roles()
        if not own:
            raise ConfigError(
                f"{type(self).__name__} has no roles: give the class attributes that are Roles, unannotated"
            )
        check_changes(type(self).__name__, self.roles, own)
        for name, role in self._roles.items():
            for other in role.sees or ():
                if other not in own:
                    raise ConfigError(
                        f"role {name} sees {short_repr(other)}; the roles of {type(self).__name__} are {', '.join(own)}"
                    )
        tools = [tool for role in self._roles.values() for tool in role.tools]
        msgspec.structs.force_setattr(self, "environment", environment_for(self.environment, tools))

    def _check_program(self) -> None:
        if type(self).play is Team.play:
            raise ConfigError(f"{type(self).__name__} has no program: give it  async def play(self, rollout)")
        if not iscoroutinefunction(self.play):
            raise ConfigError(f"play of {type(self).__name__} must be a coroutine:  async def play(self, rollout)")

    def _check_attributes(self) -> None:
        kind = type(self)
        for field in self.__struct_fields__:
            if not isinstance(getattr_static(kind, field), MemberDescriptorType):
                raise ConfigError(
                    f"{field} of {kind.__name__} is a setting: annotate it, as in  {field}: ... = ..., so that it can "
                    "be given; a role has another name"
                )
            if isinstance(getattr(self, field), Role):
                raise ConfigError(f"{field} of {kind.__name__} is annotated, and so a setting: roles are unannotated")
        for attribute in self._attributes():
            if hasattr(Team, attribute):
                raise ConfigError(
                    f"{attribute} is something that every team has: call the role of {kind.__name__} otherwise, with "
                    f"name={short_repr(attribute)}"
                )

    @classmethod
    def _attributes(cls) -> dict[str, Role]:
        found: dict[str, Role] = {}
        for kind in reversed(cls.__mro__):
            for attribute, value in vars(kind).items():
                found.pop(attribute, None)
                if isinstance(value, Role):
                    found[attribute] = value
        return found

    @classmethod
    def own_roles(cls) -> dict[str, Role]:
        """Return the roles by their names, as the class has them.

        Raises:
            ConfigError: Two of them have one name, or are one.
        """
        found: dict[str, Role] = {}
        for attribute, role in cls._attributes().items():
            name = role.name or attribute
            if name in found:
                raise ConfigError(f"two roles of {cls.__name__} are called {short_repr(name)}")
            if any(role is other for other in found.values()):
                raise ConfigError(
                    f"{attribute} of {cls.__name__} is a role that it has already: make it one of its own"
                )
            found[name] = role
        return found

    @cached_property
    def _roles(self) -> dict[str, Role]:
        return {name: change(name, role, self.roles.get(name, {})) for name, role in self.own_roles().items()}

    @cached_property
    def members(self) -> dict[str, Member]:
        """The roles by their names, ready to be asked.

        Raises:
            ConfigError: One of them has no model.
        """
        roles = enumerate(self._roles.items())
        return {name: Member(number, name, role, self.model, self.environment) for number, (name, role) in roles}

    @cached_property
    def _by_role(self) -> dict[int, Member]:
        return {id(role): self.members[name] for name, role in self.own_roles().items()}

    def member(self, role: Role | str) -> Member:
        """Return a role, ready to be asked.

        Raises:
            ProgramError: The team has no such role.
        """
        found = self.members.get(role) if isinstance(role, str) else self._by_role.get(id(role))
        if found is None:
            what = "a role of another team" if isinstance(role, Role) else short_repr(role)
            roles = ", ".join(self.members)
            raise ProgramError(f"{type(self).__name__} asks {what}; its own are {roles}")
        return found

    @cached_property
    def context_tail(self) -> Callable[[str, int], tuple[str, int]]:
        """Takes the end of a text of at most so many tokens or characters, and says how many it has.

        Raises:
            ConfigError: The tokenizer cannot be read.
        """
        if self.tokenizer is None:
            return by_characters
        # Here, because most teams have none.
        from trunkline.llm.token_ids.renderers import tail_by_tokens  # noqa: PLC0415

        return tail_by_tokens(self.tokenizer)

    def check(self, tasks: Iterable[Task]) -> None:
        """Refuse a tokenizer that cannot be read, and tasks that the team cannot be asked about.

        Raises:
            ConfigError: The last message of one is no text of the user, and a role is shown the question.
        """
        self.context_tail  # noqa: B018 - it is read here
        if any(role.prompt is not None for role in self._roles.values()):
            for task in tasks:
                question_of(task)

    @cached_property
    def agent(self) -> Agent:
        """The agent of a run of the team: named team, with the model of its first role."""
        first = next(iter(self.members.values())).agent
        return Agent(
            model=self.model or first.model,
            name="team",
            llm=first.llm,
            max_turns=self.max_turns,
            environment=self.environment,
        )

    def settings(self) -> dict[str, Any]:
        """Describe the team for the run file: everything that gives its results meaning."""
        own: dict[str, Any] = msgspec.to_builtins(msgspec.structs.asdict(self), enc_hook=described)
        for name in ("tokenizer", "environment"):
            if own[name] is None:
                del own[name]  # as in earlier run files, which the same command resumes
        return own | {"roles": {name: member.settings() for name, member in self.members.items()}}

    async def play(self, rollout: TeamPlay) -> str | None:
        """Play a rollout to its end, and return its answer; None where it has none.

        Args:
            rollout: The rollout. What is awaited is this alone, or ``asyncio.gather`` and the like over it, and chance,
                time and results that may change come from it too: a program is run again over its record.
        """
        raise NotImplementedError

    async def __call__(self, rollout: ProgramContext) -> str | None:
        """Play a rollout, as the run's program."""
        answer = await self.play(TeamPlay(rollout, self))
        return str(answer) if isinstance(answer, str) else answer
