"""Who plays in tests of the study."""

from __future__ import annotations

from studies.growth import agent
from trunkline.agent import CompiledAgent
from trunkline.llm.request import Sampling


def compiled_agent(preset: str = "default", **sampling: object) -> CompiledAgent:
    """The study's agent on a preset."""
    return CompiledAgent(agent(f"sim-agent:{preset}", Sampling(temperature=1.0, **sampling)))
