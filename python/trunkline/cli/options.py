"""Options that commands share, and what their values stand for."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import re
import sys
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import click

from trunkline.errors import ConfigError
from trunkline.llm.price import Price, read_price
from trunkline.rollout.budget import Budget, read_budget
from trunkline.rollout.stopping import ANSWER
from trunkline.tools.tool import Tool

__all__ = ["BudgetOption", "PriceOption", "Settled", "Threshold", "load_named", "load_tools", "run_path", "safe_name"]


class Threshold(click.ParamType[float]):
    """How many rollouts may break: a count, or a share below 1."""

    name = "threshold"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the number."""
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is neither a count nor a share", param, ctx)
        if not 0 <= number < math.inf or (number > 1 and number != int(number)):
            self.fail(f"{value!r} must be a share below 1, or a whole number", param, ctx)
        return number


class BudgetOption(click.ParamType[Budget]):
    """The most that may be spent."""

    name = "budget"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Budget:
        """Read the limits."""
        try:
            return value if isinstance(value, Budget) else read_budget(value)
        except ConfigError as problem:
            self.fail(str(problem), param, ctx)


class Settled(click.ParamType["str | float"]):
    """When a task is settled."""

    name = "settled"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | float:
        """Read ``answer``, or a reward."""
        if value == ANSWER:
            return ANSWER
        try:
            return float(value)
        except ValueError:
            self.fail(f"{value!r} is neither answer nor a reward", param, ctx)


class PriceOption(click.ParamType[Price]):
    """What tokens cost."""

    name = "price"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Price:
        """Read the price."""
        try:
            return value if isinstance(value, Price) else read_price(value)
        except ConfigError as problem:
            self.fail(str(problem), param, ctx)


def load_named(name: str, what: str) -> Any:
    """Import ``module:attribute``, with the current folder on the path as Python itself would have it.

    Raises:
        ConfigError: Naming the option, the module and what went wrong in it.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not re.fullmatch(r"[\w.]+", module_name):
        raise ConfigError(f"{what} {name!r}: write module:attribute, for example mytools:search")
    with contextlib.suppress(OSError):
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)
    try:
        found = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{what} {name!r}: cannot import {module_name!r}: {type(error).__name__}: {error}") from error
    for part in filter(None, attribute.split(".")):
        if not hasattr(found, part):
            raise ConfigError(f"{what} {name!r}: {module_name!r} has no {attribute!r}")
        found = getattr(found, part)
    return found


def load_tools(names: tuple[str, ...], what: str = "--tools") -> list[Tool]:
    """Load tools: each name leads to a tool, a list of tools, or a module whose tools are all taken.

    Args:
        names: The names.
        what: What they were given as, for messages.

    Raises:
        ConfigError: If a name leads to anything else.
    """
    tools: list[Tool] = []
    for name in names:
        found = load_named(name, what)
        if ":" not in name:
            found = [value for value in vars(found).values() if isinstance(value, Tool)]
            if not found:
                raise ConfigError(f"{what} {name!r}: the module defines no tool; decorate its functions with @tool")
        listed = list(found) if isinstance(found, list | tuple) else [found]
        for item in listed:
            if not isinstance(item, Tool):
                raise ConfigError(
                    f"{what} {name!r}: {type(item).__name__} is not a tool; decorate the function with @tool"
                )
        tools += listed
    return tools


def run_path(out: str | None, label: str) -> Path:
    """Return where a run file goes: as told, or ``runs/TIME-LABEL.run``."""
    if out is not None:
        if not out:
            raise ConfigError("--out is empty; name a file")
        return Path(out)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    # Names sort by time, also those of one second.
    names = (f"{stamp}{'' if number == 1 else f'.{number}'}-{safe_name(label)}.run" for number in count(1))
    return next(path for name in names if not os.path.lexists(path := Path("runs") / name))


def safe_name(label: str) -> str:
    """Return a text as it may stand in the name of a file."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.")[:60] or "run"
