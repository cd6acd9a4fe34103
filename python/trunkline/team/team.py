"""Teams: several roles and a coroutine over one rollout."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from inspect import getattr_static, iscoroutinefunction
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline.bounds import shown, text, whole
from trunkline.errors import ConfigError, ProgramError
from trunkline.rollout.agent import Agent
from trunkline.team.change import change, check_changes
from trunkline.team.play import TeamPlay
from trunkline.team.prompts import question_of
from trunkline.team.role import Member, Role, described

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trunkline.rollout.play import Play
    from trunkline.types import Task

__all__ = ["ALIKE", "Team"]

ALIKE: Final = (
    "parallel_agents",
    "preprocessing_cache",
    "context_fragments",
    "late_join",
    "active_only",
    "profiling",
)
"""Switches that change neither what is sent nor what comes of it: a run may go on with others."""

_SWITCHES: Final = ("early_termination", "agent_skip", *ALIKE)


class Team(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Several agents and a program: a class with roles as attributes and ``async def play(self, rollout)``.

    Settings of a team of one's own are annotated attributes, like those below: given by name when it is made,
    and on the command line.

    Attributes:
        model: The model of every role that names none.
        roles: Changes of roles by their names: ``{"verifier": {"model": "large"}}``. Name, slots and projection are the
            code's; a dialect is given by its name, sampling, all of it, as a mapping or :class:`trunkline.Sampling`.
        max_turns: Model turns of all roles together that a rollout may take before it ends as ``max_turns``.
        early_termination: Whether a rollout ends as soon as its outcome is known. Without, the program goes on to its
            last round, with rows that are not active.
        agent_skip: Whether a role with nothing to do is left out. Without, it is asked, in rows that are not active.
        parallel_agents: Whether roles that are asked together are asked at the same time.
        preprocessing_cache: Whether what roles have in common is encoded once for all of them.
        context_fragments: Whether what colleagues said is kept in pieces, each stored once.
        late_join: Whether these are joined when a request is built, not whenever somebody says something.
        active_only: Whether prompts are built and replies read for the role that is asked alone. Without, that is done
            for every role of the team and thrown away, as a loop over whole batches does.
        profiling: Whether each request is on record with the role that asked. Without, all are the team's.
        max_context_length: The most characters of ``{context}``; the oldest outputs go first. It changes what models
            are sent. All of it when None.

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

    def __post_init__(self) -> None:
        self._check_attributes()
        text("model", self.model)
        whole("max_turns", self.max_turns, 1)
        if self.max_context_length is not None:
            whole("max_context_length", self.max_context_length, 0)
        for switch in _SWITCHES:
            if not isinstance(value := getattr(self, switch), bool):
                raise ConfigError(f"{switch} must be true or false, not {shown(value)}")
        self._check_program()
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
                        f"role {name} sees {shown(other)}; the roles of {type(self).__name__} are {', '.join(own)}"
                    )

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
                    f"name={shown(attribute)}"
                )

    @classmethod
    def _attributes(cls) -> dict[str, Role]:
        """The attributes of the class that are roles."""
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
                raise ConfigError(f"two roles of {cls.__name__} are called {shown(name)}")
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
        return {name: Member(name, role, self.model) for name, role in self._roles.items()}

    @cached_property
    def _by_role(self) -> dict[int, Member]:
        return {id(role): self.members[name] for name, role in self.own_roles().items()}

    def member(self, role: Role | str) -> Member:
        """Return a role, ready to be asked.

        Raises:
            ProgramError: It is none of this team.
        """
        found = self.members.get(role) if isinstance(role, str) else self._by_role.get(id(role))
        if found is None:
            what = "a role of another team" if isinstance(role, Role) else shown(role)
            roles = ", ".join(self.members)
            raise ProgramError(f"{type(self).__name__} asks {what}; its own are {roles}")
        return found

    def check(self, tasks: Iterable[Task]) -> None:
        """Refuse tasks that the team cannot be asked about.

        Raises:
            ConfigError: The last message of one is no text of the user, and a role is shown the question.
        """
        if any(role.prompt is not None for role in self._roles.values()):
            for task in tasks:
                question_of(task)

    @cached_property
    def agent(self) -> Agent:
        """Who a run of the team has for its agent: the team, with the model of its first role."""
        first = next(iter(self.members.values())).agent
        return Agent(model=self.model or first.model, name="team", llm=first.llm, max_turns=self.max_turns)

    def settings(self) -> dict[str, Any]:
        """Describe the team for the run file: everything that gives its results meaning."""
        own: dict[str, Any] = msgspec.to_builtins(msgspec.structs.asdict(self), enc_hook=described)
        return own | {"roles": {name: member.settings() for name, member in self.members.items()}}

    async def play(self, rollout: TeamPlay) -> str | None:
        """Play a rollout to its end, and return its answer; None where it has none.

        Args:
            rollout: The rollout. What is awaited is this alone, or ``asyncio.gather`` and the like over it, and chance,
                time and results that may change come from it too: a program is run again over its record.
        """
        raise NotImplementedError

    async def __call__(self, rollout: Play) -> str | None:
        """Play a rollout, as the run's program."""
        answer = await self.play(TeamPlay(rollout, self))
        return str(answer) if isinstance(answer, str) else answer
