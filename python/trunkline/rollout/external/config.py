"""What a run says of an agent of another framework."""

from __future__ import annotations

import inspect
import shlex
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from trunkline._internal.validation import check_choice, check_text, check_that, short_repr
from trunkline.errors import ConfigError
from trunkline.gateway.canonical import RequestMasks
from trunkline.rollout.external.process import AgentCommand

if TYPE_CHECKING:
    from trunkline.agent import Agent
    from trunkline.strategies.base import Strategy

__all__ = ["External", "check_external"]

_FUNCTION: Final = "python:"


class External(msgspec.Struct, frozen=True, kw_only=True):
    """An agent of another framework, whose model calls become turns of its rollout: ``run(agent, tasks, program=...)``.

    It asks an endpoint on loopback, which speaks chat completions, responses, completions and Anthropic's messages, by
    a base URL of its rollout. The run's ``trunkline.Agent`` says which model is asked, what of its sampling
    replaces the agent's own, and the limits.

    A fork or a resumed rollout is the agent started again: what it asked before is answered from the record, and its
    tools run again. So forks, and rollouts that go on after a kill, need effects that may be repeated.

    Attributes:
        agent: The agent: a command such as ``"python agent.py"``, which is started for each rollout and gets the
            question on standard input, or where ``{question}`` stands in it; ``"python:MODULE:FUNCTION"`` or
            ``"python:FILE.py:FUNCTION"``, a function that is called with the question in a process of its own, forked
            from one that has imported the module, and returns the answer; or ``async def agent(client, task)``, which
            is called in the worker, is given an ``openai.AsyncOpenAI`` and returns its answer, a text, or None; or
            ``(answer, facts)``, a dict of at most 64 KiB of JSON that stays with the rollout as ``final_info``.
        effects: What its tools change: ``"none"``; ``"folder"``: its working folder, of which each start has a fresh
            copy; ``"external"``: something else, so that it is not started twice for one rollout.
        masks: Regular expressions of what may differ in its requests when it is started again, such as times. Its
            folder and its endpoint's address are covered in any case.
        on_divergence: What becomes of a fork, or a resumed rollout, whose agent asks something that is not on record.
            ``"fail"``: it ends as ``lost``. ``"branch"``: it ends as ``filtered``, and once the strategy has no more
            forks a rollout of its own goes on from the last turn before the difference; that one is in a subgroup of
            its own, and ends as ``filtered`` too, without a reward, so that it is in no metric and no group that is
            trained. ``"count"``: the same, but it is scored and counts as any rollout of its task.
        roles: Names of agents in it, where there are several: a request for a model of such a name is a turn of that
            role. All of them ask the run's model.
        process: How the process is started, and its limits: fields of
            ``AgentCommand`` but for ``command`` and ``function``.

    Raises:
        ConfigError: A field has a value it cannot have.
    """

    agent: Any
    effects: Literal["none", "folder", "external"] = "external"
    masks: tuple[str, ...] = ()
    on_divergence: Literal["fail", "branch", "count"] = "fail"
    roles: tuple[str, ...] = ()
    process: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if not isinstance(self.agent, str) and not inspect.iscoroutinefunction(self.agent):
            raise ConfigError(
                "External: agent must be a command, or a function, async def agent(client, task), not "
                f"{short_repr(self.agent)}"
            )
        check_choice("External: effects", self.effects, "none", "folder", "external")
        check_choice("External: on_divergence", self.on_divergence, "fail", "branch", "count")
        if self.on_divergence != "fail" and not self.repeatable:
            raise ConfigError(
                f"External: on_divergence={self.on_divergence!r} is about agents that are started again, and effects "
                "is 'external': say effects='none' or 'folder' (--effects), or leave it out"
            )
        masks: Any = self.masks
        check_that(isinstance(masks, list | tuple), "External: masks must be a list of regular expressions", masks)
        msgspec.structs.force_setattr(self, "masks", tuple(masks))
        RequestMasks(self.masks)
        roles: Any = self.roles
        named = isinstance(roles, list | tuple) and all(check_text("External: a role", one) for one in roles)
        check_that(named, "External: roles must be a list of names", roles)
        msgspec.structs.force_setattr(self, "roles", tuple(roles))
        check_that(isinstance(self.process, dict), "External: process must be options by their names", self.process)
        if self.command is None and self.process:
            raise ConfigError(
                "External: process is of a command or of python:MODULE:FUNCTION, and "
                f"{short_repr(self.agent)} is a function of this process"
            )

    @property
    def command(self) -> AgentCommand | None:
        """How its process is started; None for a function.

        Raises:
            ConfigError: The command or an option has a value it cannot have.
        """
        if not isinstance(self.agent, str):
            return None
        started: dict[str, Any] = {"function": self.agent.removeprefix(_FUNCTION)}
        if not self.agent.startswith(_FUNCTION):
            try:
                started = {"command": shlex.split(self.agent)}
            except ValueError as problem:
                raise ConfigError(f"External: agent {short_repr(self.agent)} is no command: {problem}") from None
        known = [name for name in AgentCommand.__struct_fields__ if name not in {"command", "function"}]
        for name in self.process:
            if name not in known:
                raise ConfigError(f"External: process has no option {short_repr(name)}; it has {', '.join(known)}")
        try:
            return msgspec.convert({**self.process, **started}, AgentCommand)
        except msgspec.ValidationError as problem:
            raise ConfigError(f"External: process: {problem}") from None

    def settings(self) -> dict[str, Any]:
        """Describe the agent for the run file."""
        command = self.command
        process: dict[str, Any] = {}
        if command is not None:
            process = msgspec.structs.asdict(command)
            process["env"] = [one.partition("=")[0] for one in command.env]  # values may be secret
        said: dict[str, Any] = {"effects": self.effects, "masks": list(self.masks), "process": process or None}
        # Run files of earlier versions do not have these.
        if self.on_divergence != "fail":
            said["on_divergence"] = self.on_divergence
        return said | ({"roles": list(self.roles)} if self.roles else {})

    @property
    def repeatable(self) -> bool:
        """Whether it may be started again for one rollout."""
        return self.effects != "external"


def check_external(program: External, agent: Agent, strategy: Strategy) -> None:
    """Refuse what an agent of another framework cannot be run with.

    Raises:
        ConfigError: The run's agent has what the other one brings, or the strategy forks what cannot be replayed.
    """
    own = {
        "tools": bool(agent.tools),
        "a system prompt": bool(agent.system),
        "an environment": agent.environment is not None,
        "before_tool": agent.before_tool is not None,
        "max_tool_calls": agent.max_tool_calls is not None,
        f"dialect={short_repr(agent.dialect)}": agent.dialect != "native",
        f"on_void_turn={agent.on_void_turn}": agent.on_void_turn != "tell",
    }
    for what, given in own.items():
        if given:
            raise ConfigError(f"an external agent and {what} do not go together: it brings its own; leave that out")
    hooks = any(getattr(strategy, hook, None) is not None for hook in ("ended", "stepped"))
    if getattr(strategy, "branches", hooks) and not program.repeatable:
        raise ConfigError(
            f"{type(strategy).__name__} forks rollouts, for which the agent is started again and its tools run again: "
            "say that they may, effects='none' or 'folder' (--effects), or take chains"
        )
