"""What a strategy needs of the agent and the LLM, as far as that can be said before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline.bounds import shown, whole
from trunkline.errors import ConfigError
from trunkline.llm.regions import REGIONS
from trunkline.llm.spec import EndpointSpec
from trunkline.rollout.strategy import INSIDE

if TYPE_CHECKING:
    from trunkline.rollout.agent import Agent
    from trunkline.rollout.strategy import Strategy

__all__ = ["check_needs", "forks_inside", "likeliest_of", "region_of"]


def region_of(strategy: Strategy) -> str | None:
    """Return the region whose log-probabilities a strategy needs; None for none.

    Raises:
        ConfigError: There is no such region.
    """
    region = getattr(strategy, "uncertain", None)
    if region is not None and not (isinstance(region, str) and region in REGIONS):
        known = ", ".join(REGIONS)
        raise ConfigError(f"{type(strategy).__name__}: uncertain must be one of {known}, not {shown(region)}")
    return region


def likeliest_of(strategy: Strategy) -> int:
    """Return how many of the likeliest tokens a strategy needs at each place, if it needs a region.

    Raises:
        ConfigError: It is no number of tokens that can be asked for.
    """
    return whole(f"{type(strategy).__name__}: likeliest", getattr(strategy, "likeliest", 2), 1, 20)


def forks_inside(strategy: Strategy) -> bool:
    """Return whether a strategy forks inside turns."""
    return bool(getattr(strategy, "inside", False))


def check_needs(strategy: Strategy, agent: Agent, llm: object) -> None:
    """Refuse a strategy that needs what the agent does not ask for, or the LLM cannot do.

    Args:
        strategy: Where rollouts start.
        agent: Who plays.
        llm: Who answers.

    Raises:
        ConfigError: Says what is needed and how it is set.
    """
    name = type(strategy).__name__
    whose = "" if agent.name == "agent" else f" of {shown(agent.name)}"
    region = region_of(strategy)
    likeliest = likeliest_of(strategy)
    if region is not None and (agent.sampling.top_logprobs or 0) < likeliest:
        raise ConfigError(
            f"{name} looks at how sure the model was (region {region!r}): set sampling.logprobs=True and "
            f"sampling.top_logprobs{whose} to {likeliest} or more (--top-logprobs {likeliest}), or take a strategy "
            "that needs none (Chain, TreeGRPO)"
        )
    if forks_inside(strategy):
        mode = llm.tokens if isinstance(llm, EndpointSpec) else None
        if mode is None or mode.api == "chat":
            raise ConfigError(
                f"{name} forks inside turns, which needs {INSIDE}; a strategy that forks between turns (Adaptive, "
                "TreeGRPO) needs none"
            )
