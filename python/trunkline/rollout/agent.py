"""An agent as its user describes it, and as a worker uses it: encoded once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from trunkline.errors import ConfigError
from trunkline.llm import request
from trunkline.llm.request import Sampling
from trunkline.tools.runner import Toolbox
from trunkline.tools.tool import Tool

__all__ = ["Agent", "Kit"]


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """A model with a system prompt, tools, sampling and limits.

    Attributes:
        model: The model's name, as the endpoint knows it.
        tools: What a turn may call.
        system: System prompt; none is sent when empty.
        sampling: Sampling parameters of every turn.
        max_turns: Model turns a rollout may take before it ends as ``max_turns``.
        max_tool_calls: Tool calls a rollout may make before it ends as ``tool_limit``; unlimited when None.
        name: What its turns are called in trees and profiles.

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

    def __post_init__(self) -> None:
        for field in ("model", "system", "name"):
            _text(field, getattr(self, field))
        if not self.model:
            raise ConfigError("Agent: model is empty; name the model as its endpoint does")
        if not isinstance(self.sampling, Sampling):
            raise ConfigError(f"Agent: sampling must be a Sampling, not {self.sampling!r:.60}")
        _at_least("max_turns", self.max_turns, 1)
        if self.max_tool_calls is not None:
            _at_least("max_tool_calls", self.max_tool_calls, 0)
        if not isinstance(self.tools, list | tuple):
            raise ConfigError(f"Agent: tools must be a list of tools, not {self.tools!r:.60}")
        for item in self.tools:
            if not isinstance(item, Tool):
                raise ConfigError(f"Agent: {item!r:.60} in tools is not a tool; decorate the function with @tool")
        Toolbox(self.tools)


def _text(field: str, value: object) -> None:
    """Refuse what no request can carry."""
    if not isinstance(value, str):
        raise ConfigError(f"Agent: {field} must be a string, not {value!r:.60}")
    if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
        raise ConfigError(f"Agent: {field} holds bytes that are no text (a lone surrogate)")


def _at_least(field: str, value: object, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ConfigError(f"Agent: {field} must be a whole number of at least {low}, not {value!r:.60}")


class Kit:
    """What every turn of one agent shares, encoded once: request head, request tail, merge namespace, toolbox.

    Args:
        agent: The agent.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.toolbox = Toolbox(agent.tools)
        self.head = request.head(agent.model)
        self._tools = self.toolbox.definitions()
        self.namespace = request.namespace(agent.model, agent.sampling, self._tools)

    def tail(self, seed: int, n: int = 1) -> bytes:
        """Return the end of a request body: everything after the messages."""
        return request.tail(self.agent.sampling, self._tools, seed, n)
