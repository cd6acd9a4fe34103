"""The LLMs of a run by their names: what was given, whether it will do, and what of it stands in the run file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trunkline.bounds import shown
from trunkline.errors import ConfigError
from trunkline.llm.batch import BatchLLM
from trunkline.llm.client import as_llm
from trunkline.llm.names import MAIN, check_name, prices_named, there_is
from trunkline.llm.price import EVERYWHERE
from trunkline.llm.protocol import LLM
from trunkline.llm.spec import EndpointSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.llm.price import Price
    from trunkline.rollout.agent import Agent

__all__ = ["AnyLLM", "as_llms", "check_asked", "describe", "live", "prices_of"]

AnyLLM = EndpointSpec | BatchLLM | LLM
"""Endpoints as data, or a batch engine or live LLM, which stays in its process."""


def as_llms(given: Any) -> dict[str, AnyLLM]:
    """Accept what users call an LLM, or several by their names.

    Raises:
        ConfigError: Something of it is no LLM, or no name.
    """
    if not isinstance(given, Mapping):
        return {MAIN: _as_one(given)}
    if not given:
        raise ConfigError("llm names no LLM: give a URL, an LLM, or several by their names")
    found: dict[str, AnyLLM] = {}
    for name, one in given.items():
        check_name("llm: a name", name)
        try:
            found[name] = _as_one(one)
        except ConfigError as problem:
            raise ConfigError(f"llm {shown(name)}: {problem}") from None
    if (taken := live({name: one for name, one in found.items() if name == MAIN})) in found:
        raise ConfigError(f"llm {shown(taken)}: calls of the LLM without a name are on record as that; rename it")
    return found


def _as_one(llm: Any) -> AnyLLM:
    if llm is None:
        return EndpointSpec()
    if isinstance(llm, str):
        return EndpointSpec(llm)
    return llm if isinstance(llm, EndpointSpec | BatchLLM) else as_llm(llm)


def check_asked(llms: Mapping[str, AnyLLM], agents: Sequence[Agent], *, alone: bool) -> None:
    """Refuse agents that ask an LLM that is not there, and LLMs that nobody asks.

    Args:
        llms: The run's LLMs.
        agents: Who is known to ask.
        alone: Whether nobody else can ask.

    Raises:
        ConfigError: Naming who asks, and what there is; or prices that only some of the LLMs have.
    """
    for agent in agents:
        if agent.llm not in llms:
            asked = f"the LLM {shown(agent.llm)}" if agent.llm else "the LLM without a name"
            raise ConfigError(
                f"{shown(agent.name)} asks {asked}, and the run has {there_is(llms)}: "
                'give it, llm={"NAME": LLM(...)}, or name another one, llm="NAME" of a role or an agent'
            )
    idle = set(llms) - {agent.llm for agent in agents}
    if alone and idle:
        raise ConfigError(
            f"nobody asks the LLM {there_is(idle)}: leave it out, or name it as llm of a role or an agent"
        )
    free = [name for name, llm in llms.items() if not prices_of({name: llm})]
    if free and len(free) < len(llms):
        raise ConfigError(
            f"of several LLMs some have a price, and {there_is(free)} has none; give each one, "
            "Price(prompt=0, generated=0) if it is free"
        )


def prices_of(llms: Mapping[str, AnyLLM]) -> dict[str, Price]:
    """Return what LLMs cost, by what their endpoints are called on record; empty without a price."""
    found: dict[str, Price] = {}
    for name, llm in llms.items():
        found |= prices_named(name, _prices(llm))
    return found


def _prices(llm: AnyLLM) -> dict[str, Price]:
    if isinstance(llm, EndpointSpec):
        return llm.price
    price = getattr(llm, "price", None)
    return {} if price is None else {EVERYWHERE: price}


def live(llms: Mapping[str, AnyLLM]) -> str | None:
    """Return what an LLM is called that cannot leave this process; None where all can."""
    return next((type(llm).__name__ for llm in llms.values() if not isinstance(llm, EndpointSpec)), None)


def describe(llm: AnyLLM) -> dict[str, Any]:
    """Describe an LLM for the run file: everything but its secrets."""
    return llm.settings() if isinstance(llm, EndpointSpec) else {"kind": type(llm).__name__, "price": _prices(llm)}
