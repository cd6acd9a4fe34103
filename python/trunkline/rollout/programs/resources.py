"""Programs of users: coroutines that play rollouts, and what the rollouts of a run share for them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline._internal.text import format_error
from trunkline._internal.validation import short_repr
from trunkline.agent import Agent, CompiledAgent
from trunkline.errors import ConfigError, ProgramError
from trunkline.llm.pricing import MAIN, there_is
from trunkline.llm.request import Sampling
from trunkline.tools.environment import kind_of
from trunkline.tools.tool import Tool
from trunkline.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping


__all__ = ["Program", "check_program"]

_MOST: Final = 1_000
"""Different agents and tools that a program may use. One that makes a new one for each turn would fill the memory."""


def check_program(program: Any, agent: Agent) -> None:
    """Refuse what cannot play rollouts.

    Args:
        program: What was given.
        agent: The run's agent.

    Raises:
        ConfigError: It is no coroutine function, or the agent has a limit that its own loop keeps.
    """
    if not (inspect.iscoroutinefunction(program) or inspect.iscoroutinefunction(type(program).__call__)):
        raise ConfigError(f"program must be a function, async def program(rollout), not {short_repr(program)}")
    if (field := _of_the_loop(agent)) is not None:
        raise ConfigError(f"program and an agent with {field} do not go together: the program itself sees to that")


class Program:
    """A program, with the agents and tools that it uses.

    Args:
        function: The program.
        compiled: The run's agent.
        llms: The names of the LLMs that agents may ask.
    """

    def __init__(
        self, function: Callable[[Any], Awaitable[str | None]], compiled: CompiledAgent, llms: Collection[str] = (MAIN,)
    ) -> None:
        self.function = function
        self.compiled = compiled
        self._llms = llms
        self._environment = kind_of(compiled.agent.environment)
        self._compiled_agents: dict[tuple[Any, ...], CompiledAgent] = {_same(compiled.agent): compiled}
        self._seen: dict[int, tuple[Agent, CompiledAgent]] = {}
        self._toolboxes: dict[int, tuple[Tool[..., Any], Toolbox]] = {}

    def of(self, agent: Agent, sampling: Mapping[str, Any]) -> CompiledAgent:
        """Return an agent, ready to be asked.

        Raises:
            ProgramError: It is no agent, there are too many, or the sampling cannot be.
        """
        seen = self._seen.get(id(agent))
        compiled = self._compiled(agent) if seen is None else seen[1]
        if not sampling:
            return compiled
        try:
            return compiled.sampled(msgspec.convert(dict(sampling), Sampling))
        except (msgspec.ValidationError, ConfigError) as problem:
            raise ProgramError(f"sampling: {format_error(problem)}") from None

    def _compiled(self, agent: Agent) -> CompiledAgent:
        """Return what an agent shares with those that are equal to it: programs may make theirs anew each time."""
        if not isinstance(agent, Agent):
            raise ProgramError(f"an Agent is asked, not {short_repr(agent)}")
        if agent.environment is not None and agent.environment is not self.compiled.agent.environment:
            self._check_environment(agent)
        if (field := _of_the_loop(agent)) is not None:
            raise ProgramError(
                f"agent {short_repr(agent.name)} of a program has {field}; the program itself sees to that"
            )
        if agent.llm not in self._llms:
            raise ProgramError(
                f"agent {short_repr(agent.name)} asks the LLM {short_repr(agent.llm)}; "
                f"the run has {there_is(self._llms)}"
            )
        compiled = self._compiled_agents.get(key := _same(agent))
        if compiled is None:
            self._room()
            compiled = self._compiled_agents[key] = CompiledAgent(agent)
        if len(self._seen) >= _MOST:
            self._seen.clear()
        self._seen[id(agent)] = agent, compiled
        return compiled

    def toolbox(self, tool: Tool[..., Any]) -> Toolbox:
        """Return a tool, ready to be run.

        Raises:
            ProgramError: It is no tool, or one that works on an environment which the rollouts do not have.
        """
        known = self._toolboxes.get(id(tool))
        if known is None:
            if not isinstance(tool, Tool):
                raise ProgramError(f"{short_repr(tool)} is no tool; decorate the function with @tool")
            slot = tool.schema.slot
            if slot is not None and (self._environment is None or not issubclass(self._environment, slot.kind)):
                raise ProgramError(f"{tool.name} works on the environment {slot.kind.__name__}, and {self._theirs()}")
            self._room()
            known = self._toolboxes[id(tool)] = tool, Toolbox([tool])
        return known[1]

    def _check_environment(self, agent: Agent) -> None:
        """Refuse an agent whose environment is not that of the run's agent."""
        kind = kind_of(agent.environment)
        if kind is not None and kind is not self._environment:
            raise ProgramError(
                f"agent {short_repr(agent.name)} of a program has the environment {kind.__name__}, and {self._theirs()}"
            )

    def _theirs(self) -> str:
        """Say which environment the rollouts have."""
        name = short_repr(self.compiled.agent.name)
        if self._environment is None:
            return f"the run's agent {name} has none: a rollout has that of the run's agent, or of its team"
        return (
            f"the run's agent {name} has {self._environment.__name__}: a rollout has one environment, which all its "
            "agents and tools share"
        )

    def _room(self) -> None:
        if len(self._compiled_agents) + len(self._toolboxes) >= _MOST:
            raise ProgramError(f"the program uses more than {_MOST:,} agents and tools: make them once, outside of it")

    async def close(self) -> None:
        """Let go of the tools; those of the run's agent are not the program's."""
        for compiled in self._compiled_agents.values():
            if compiled is not self.compiled:
                await compiled.toolbox.close()
        for _, toolbox in self._toolboxes.values():
            await toolbox.close()


def _of_the_loop(agent: Agent) -> str | None:
    """The first setting of an agent that its own loop keeps, and no program does."""
    if agent.max_tool_calls is not None:
        return "max_tool_calls"
    return f"on_void_turn={agent.on_void_turn}" if agent.on_void_turn != "tell" else None


def _same(agent: Agent) -> tuple[Any, ...]:
    """What agents have in common that are asked in the same way."""
    dialect = agent.dialect if isinstance(agent.dialect, str) else id(agent.dialect)
    said = agent.model, agent.llm, agent.name, agent.system, agent.malformed, dialect
    return *said, msgspec.json.encode(agent.sampling), id(agent.before_tool), tuple(map(id, agent.tools))
