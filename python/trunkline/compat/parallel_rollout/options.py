"""What the functions take beside their named parameters, as an OpenAI user would write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline.bounds import kind, shown, whole
from trunkline.errors import ConfigError
from trunkline.llm.client import ClientLLM, as_llm
from trunkline.llm.request import Sampling
from trunkline.types import accepted

if TYPE_CHECKING:
    from trunkline.llm.protocol import LLM

__all__ = ["Settings", "as_client", "settings"]

SAMPLING: Final = tuple(name for name in Sampling.__struct_fields__ if name != "extra")
"""Fields of a request that the library knows, by their own names."""

BODY: Final = (
    "logit_bias",
    "max_completion_tokens",
    "metadata",
    "modalities",
    "parallel_tool_calls",
    "prediction",
    "prompt_cache_key",
    "reasoning_effort",
    "response_format",
    "safety_identifier",
    "service_tier",
    "store",
    "tool_choice",
    "user",
    "verbosity",
    "web_search_options",
)
"""Further fields of a chat completion, which go into its body as they are."""

AGENT: Final = ("system", "max_tool_calls", "dialect", "malformed")
RUN: Final = ("seed", "strategy", "reward", "out", "budget", "cache")
OWN: Final = ("max_iterations", "tool_functions", "max_concurrency", "reference", "extra_body")

_ELSEWHERE: Final = {
    "n": "num_rollouts says how many tries there are",
    "stream": "replies are read whole",
    "stream_options": "replies are read whole",
    "functions": "give tools",
    "function_call": "give tool_choice",
    "messages": "they grow with the rollout",
    "timeout": "set it on the client: client.with_options(timeout=...)",
    "extra_headers": "set them on the client: client.with_options(default_headers=...)",
    "extra_query": "set it on the client: client.with_options(default_query=...)",
}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for, checked as far as names go.

    Attributes:
        sampling: How the model samples.
        agent: Fields of the agent.
        run: Options of the run.
        reference: The accepted answers, for rewards.
        tool_functions: Implementations by name.
        max_concurrency: Most requests in flight; the LLM's own where None.
        max_iterations: Most model turns; the function's own where None.
    """

    sampling: Sampling
    agent: dict[str, Any]
    run: dict[str, Any]
    reference: tuple[str, ...]
    tool_functions: Mapping[str, Any]
    max_concurrency: int | None
    max_iterations: int | None


def settings(function: str, given: Mapping[str, Any], without: tuple[str, ...] = ()) -> Settings:
    """Sort the keyword arguments of a call.

    Args:
        function: What was called, for messages.
        given: Its keyword arguments.
        without: Names that this function does not take.

    Raises:
        ConfigError: There is no such name, or a value is impossible; the message names it.
    """
    known = [name for name in (*SAMPLING, *BODY, *AGENT, *RUN, *OWN) if name not in without]
    for name in given:
        if name not in known:
            why = _ELSEWHERE.get(name)
            if why is not None:
                raise ConfigError(f"{function} does not take {name}: {why}")
            raise ConfigError(
                f"{function} has no option {shown(name)}; it has {', '.join(sorted(known))}; "
                "further fields of the request go into extra_body"
            )
    functions = given.get("tool_functions")
    if functions is not None and not isinstance(functions, Mapping):
        raise ConfigError(f"tool_functions must be a dict of functions by name, not {kind(functions)}")
    limit, turns = given.get("max_concurrency"), given.get("max_iterations")
    return Settings(
        sampling=_sampling(given),
        agent={name: given[name] for name in AGENT if name in given},
        run={name: given[name] for name in RUN if name in given},
        reference=accepted("reference", given.get("reference")),
        tool_functions=functions or {},
        max_concurrency=None if limit is None else whole("max_concurrency", limit, 1),
        max_iterations=None if turns is None else whole("max_iterations", turns, 1),
    )


def as_client(client: object, max_concurrency: int | None = None) -> LLM:
    """Take what was given as client for an LLM, so that every request goes through it.

    Args:
        client: An ``AsyncOpenAI`` client, or an object with ``async complete(request)``.
        max_concurrency: Most requests in flight at once.

    Raises:
        ConfigError: It is neither, or blocks.
    """
    if callable(getattr(client, "complete", None)):
        if max_concurrency is not None:
            raise ConfigError(f"max_concurrency belongs to a client; {type(client).__name__} has a limit of its own")
        return as_llm(client)
    return ClientLLM(client) if max_concurrency is None else ClientLLM(client, max_concurrency=max_concurrency)


def _sampling(given: Mapping[str, Any]) -> Sampling:
    """Make the sampling of the fields of a request."""
    body = given.get("extra_body")
    if body is not None and not isinstance(body, Mapping):
        raise ConfigError(f"extra_body must be a dict of body fields, not {kind(body)}")
    # As with the SDK, what stands in extra_body is the last word on a field.
    fields = {name: given[name] for name in (*SAMPLING, *BODY) if given.get(name) is not None} | dict(body or {})
    known = {name: fields.pop(name) for name in SAMPLING if name in fields}
    if isinstance(known.get("stop"), str):
        known["stop"] = (known["stop"],)
    if isinstance(known.get("stop"), list):
        known["stop"] = tuple(known["stop"])
    return Sampling(**known, extra=fields)
