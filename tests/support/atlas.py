"""Tools, rewards and an agent for tests; importable by workers."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

from trunkline.agent import Agent
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


@tool(name="lookup")
async def blocking(country: str) -> str:
    """Look a country up and let nobody else move meanwhile.

    Args:
        country: Its name.
    """
    time.sleep(2.5)
    return f"capital: {CAPITALS[country]}"


@tool(name="lookup")
def holding(country: str) -> str:
    """Look a country up in C code that keeps the interpreter to itself meanwhile.

    Args:
        country: Its name.
    """
    for _ in range(3):
        ctypes.PyDLL(None).usleep(1_300_000)
        time.sleep(0.3)  # within this function still, when the other threads run again
    return f"capital: {CAPITALS[country]}"


@tool(name="lookup")
def starter(country: str) -> str:
    """Start a program and wait for it.

    Args:
        country: Its name.
    """
    subprocess.run(["sleep", "60"], check=True)
    return country


@tool(name="lookup")
def loud(country: str) -> str:
    """Look a country up, and print a lot.

    Args:
        country: Its name.
    """
    sys.stderr.write(f"\x1b]0;{country}\x07\n")
    sys.stdout.write(f"\x1b[2J{country}\n" * 200_000)
    return f"capital: {CAPITALS[country]}"


def size_of_the_last_argument(trajectory: object) -> float:
    """The bytes of the last argument that the controller was started with, as this process has it."""
    return float(len(os.fsencode(sys.argv[-1])))


_HOARD: list[bytes] = []


@tool(name="lookup")
async def hoard(country: str) -> str:
    """Look a country up and keep 16 MB for ever.

    Args:
        country: Its name.
    """
    _HOARD.append(os.urandom(1 << 20) * 16)
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
