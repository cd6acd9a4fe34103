"""Tools, rewards and an agent for tests; importable by workers."""

from __future__ import annotations

import os
import signal
import time

from trunkline.rollout.agent import Agent
from trunkline.tools.tool import tool
from trunkline.types import Task

CAPITALS = {"France": "Paris", "Brazil": "Brasilia", "Japan": "Tokyo", "Benin": "Porto-Novo", "Chile": "Santiago"}


@tool
async def lookup(country: str) -> str:
    """Look a country up.

    Args:
        country: Its name.
    """
    return f"capital: {CAPITALS[country]}"


@tool
def suicide(country: str) -> str:
    """End the process it runs in, as a crash does.

    Args:
        country: Dies for Brazil only.
    """
    if country == "Brazil":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"capital: {CAPITALS[country]}"


@tool
def stall(country: str) -> str:
    """Take long.

    Args:
        country: Its name.
    """
    time.sleep(30)
    return country


def agent(**changes: object) -> Agent:
    """The agent that ``foreign.capital_cities`` plays."""
    return Agent(**({"model": "m", "tools": [lookup], "max_turns": 6} | changes))


def tasks() -> list[Task]:
    """One question a country."""
    return [Task.ask(f"Capital of {c}?", a, id=c) for c, a in CAPITALS.items()]
