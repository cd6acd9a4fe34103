"""An agent as its user describes it, and as a worker uses it: encoded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from trunkline._core import Reading
from trunkline.bounds import shown, text, whole
from trunkline.errors import ConfigError
from trunkline.llm import request
from trunkline.llm.names import MAIN, asking, check_name
from trunkline.llm.request import Sampling
from trunkline.rollout.speech import Speech
from trunkline.tools.environment import check_environment
from trunkline.tools.runner import Toolbox
from trunkline.tools.tool import Tool
from trunkline.tree.weights import number_of, versioned

__all__ = ["Agent", "Kit"]


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """A model with a system prompt, tools, sampling and limits.

    Attributes:
        model: The model's name, as the endpoint knows it.
        tools: What a turn may call.
        system: System prompt; none is sent when empty.
        sampling: Sampling parameters of every turn.
        max_turns: Model turns a rollout may take before it ends as ``max_turns``.
        max_tool_calls: Tool calls on the path of a rollout, those before a fork included, before it ends as
            ``tool_limit``; unlimited when None.
        name: What its turns are called in trees and profiles.
        llm: The name of the LLM that it asks, where a run has several; that without a name when empty.
        dialect: How tools are spoken about: ``native`` (tool calls of chat completions), ``hermes`` (``<tool_call>`` in
            the text), ``search-r1`` (``<search>`` in the text), or an object with the members of
            :class:`trunkline.llm.dialects.dialect.Dialect`.
        malformed: What happens to a tool call whose JSON is broken: ``return`` tells the model what is wrong,
            ``repair`` repairs it where possible (needs the repair extra), and the observation says so.
        void: What happens after a turn in which the dialect reads neither a call nor an answer: ``tell`` tells the
            model, which goes on; ``stop`` ends the rollout as ``filtered`` (see ``trunkline.filters.VoidTurns``).
        environment: What makes the environment that tools of a rollout work on: a class derived from
            :class:`~trunkline.tools.environment.Environment`, or a function without arguments that returns one.

    Raises:
        ConfigError: If a field has a value it cannot have.
    """

    model: str
    tools: Sequence[Tool] = ()
    system: str = ""
    sampling: Sampling = Sampling()
    max_turns: int = 30
    max_tool_calls: int | None = None
    name: str = "agent"
    llm: str = MAIN
    dialect: Any = "native"
    malformed: Literal["return", "repair"] = "return"
    void: Literal["tell", "stop"] = "tell"
    environment: Any = None

    def __post_init__(self) -> None:
        request.head(self.model)
        text("Agent: system", self.system)
        text("Agent: name", self.name)
        check_name("Agent: llm", self.llm)
        if not isinstance(self.sampling, Sampling):
            raise ConfigError(f"Agent: sampling must be a Sampling, not {shown(self.sampling)}")
        whole("Agent: max_turns", self.max_turns, 1)
        if self.max_tool_calls is not None:
            whole("Agent: max_tool_calls", self.max_tool_calls, 0)
        if not isinstance(self.tools, list | tuple):
            raise ConfigError(f"Agent: tools must be a list of tools, not {shown(self.tools)}")
        if self.malformed not in {"return", "repair"}:
            raise ConfigError(f"Agent: malformed must be return or repair, not {shown(self.malformed)}")
        if self.void not in {"tell", "stop"}:
            raise ConfigError(f"Agent: void must be tell or stop, not {shown(self.void)}")
        Toolbox(self.tools, repair=self.malformed == "repair")
        Speech(self.dialect, self.tools, self.sampling)
        check_environment(self.environment, self.tools)


class Kit:
    """What every turn of one agent shares, made once.

    Args:
        agent: The agent.
        toolbox: Its tools, where another kit has them ready.
        version: Of the weights that it is asked under; None where nobody says.

    Attributes:
        toolbox: Its tools; whoever made the kit closes them.
        version: Of the weights.
        speech: How tools are told of and calls read.
        head: The body of a request up to the first message.
        constant: The body after the last message, up to what depends on the draws.
        namespace: What makes draws comparable.
        reading: How replies are read.
        greedy: Whether draws of one state are equal.
    """

    def __init__(self, agent: Agent, toolbox: Toolbox | None = None, version: str | None = None) -> None:
        self.agent = agent
        self.version = version
        self.toolbox = Toolbox(agent.tools, repair=agent.malformed == "repair") if toolbox is None else toolbox
        self.speech = Speech(agent.dialect, agent.tools, agent.sampling)
        self.head = request.head(agent.model)
        definitions = self.toolbox.definitions()
        self.constant = request.constant(self.speech.sampling, definitions if self.speech.native else b"")
        said = request.namespace(agent.model, self.speech.sampling, definitions) + self.speech.mark
        self.namespace = versioned(asking(said, agent.llm), version)
        self.reading = Reading(version=number_of(version))
        self.greedy = self.speech.sampling.temperature == 0
        self._sampled: dict[bytes, Kit] = {}
        self._under: dict[str, Kit] = {}

    def under(self, version: str | None) -> Kit:
        """The same agent under a version of the weights."""
        if version is None or version == self.version:
            return self
        known = self._under.get(version)
        if known is None:
            known = self._under[version] = Kit(self.agent, self.toolbox, version)
        return known

    def sampled(self, sampling: Sampling) -> Kit:
        """The same agent with other sampling parameters.

        Args:
            sampling: Fields that are set take the place of the agent's own.
        """
        key = msgspec.json.encode(sampling)
        known = self._sampled.get(key)
        if known is None:
            own = {name: value for name in sampling.__struct_fields__ if (value := getattr(sampling, name)) is not None}
            merged = msgspec.structs.replace(
                self.agent.sampling, **own | {"extra": self.agent.sampling.extra | sampling.extra}
            )
            agent = msgspec.structs.replace(self.agent, sampling=merged)
            known = self._sampled[key] = Kit(agent, self.toolbox, self.version)
        return known
