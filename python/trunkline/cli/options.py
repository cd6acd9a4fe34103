"""Shared options, NAME:OPTION=VALUE."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import click
import msgspec

from trunkline._internal.old_names import current_name
from trunkline._internal.text import format_error
from trunkline._internal.validation import short_repr
from trunkline.errors import ConfigError, UsageError
from trunkline.llm.pricing import Price, read_price
from trunkline.rollout.budget import Budget, read_budget
from trunkline.scoring.confidence import CONFIDENCES
from trunkline.scoring.rewards import REWARDS, find
from trunkline.scoring.rewards.base import short_name
from trunkline.scoring.rewards.grading import WeightedRewards
from trunkline.strategies.stopping import ANSWER
from trunkline.tools.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from trunkline.scoring.rewards import Reward
    from trunkline.tree.views import Trajectory


__all__ = [
    "BudgetOption",
    "PriceOption",
    "Settled",
    "Threshold",
    "load_named",
    "load_tools",
    "make_named",
    "read_confidence",
    "read_rewards",
    "read_value",
    "reward_option",
    "run_path",
    "safe_name",
]


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
        module_name, attribute = current_name(module_name, attribute)
        found = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{what} {name!r}: cannot import {module_name!r}: {type(error).__name__}: {format_error(error)}"
        ) from error
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


_WORDS: Final[dict[Any, str]] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    NoneType: "none",
}


def make_named(
    given: str,
    option: str,
    names: Collection[str],
    find: Callable[[str], Any],
    beside: Callable[[type], Mapping[str, Any]] = lambda _kind: {},
    also: Callable[[type], Mapping[str, Any]] = lambda _kind: {},
) -> Any:
    """Make what a value of an option names.

    Args:
        given: ``NAME`` or ``NAME:OPTION=VALUE,...``, where NAME is one of ours or ``MODULE:CLASS``. The values of an
            option that takes several stand between slashes, ``temperatures=0.6/0.8/1.0``; a function is written
            ``module:function``.
        option: The option, for messages.
        names: Ours.
        find: From one of them to its class.
        beside: From a class to options that it is given by other means, which the value cannot give.
        also: From a class to further names that its constructor takes, and their types.

    Returns:
        What the class made of the options; or what ``MODULE:OBJECT`` leads to, if that is no class.

    Raises:
        ConfigError: Of what is unknown, with a list of what there is; or of a value that cannot be.
    """
    name, _, options = given.partition(":")
    if name in names:
        kind = find(name)
    else:
        attribute, _, options = options.partition(":")
        if not attribute or "=" in attribute:
            raise ConfigError(
                f"{option} {given!r}: {name!r} is none of {', '.join(names)}; your own is written module:Class"
            )
        name = f"{name}:{attribute}"
        kind = load_named(name, option)
    if not isinstance(kind, type):
        if options:
            raise ConfigError(f"{option} {given!r}: {name} is no class, so it takes no options")
        return kind
    known, others = _parameters(kind), beside(kind)
    open_ = {name: hint for name, hint in known.items() if name not in others}
    further = {key: hint for key, hint in also(kind).items() if key not in open_}
    values = _read(options, f"{option} {name}", open_ | further)
    needed = [key for key in _required(kind) if key not in values and key not in others]
    if needed:
        says = ",".join(f"{key}=..." for key in needed)
        raise ConfigError(f"{option} {name} needs {', '.join(needed)}: {option} {name}:{says}")
    try:
        return kind(**values, **{name: value for name, value in others.items() if name in known})
    except UsageError as problem:
        raise ConfigError(f"{option} {name}: {problem}") from None
    except Exception as problem:
        raise ConfigError(f"{option} {name}: {type(problem).__name__}: {format_error(problem)}") from problem


def _parameters(kind: type) -> Mapping[str, Any]:
    """The options of a class and their types: what its constructor can be given by name."""
    try:
        taken = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):
        return {}
    try:
        # Of a struct or dataclass the hints are those of its fields, of another class those of its constructor.
        hints = get_type_hints(kind) | get_type_hints(kind.__init__)  # type: ignore[misc]
    except Exception:  # noqa: BLE001 - a name in somebody's annotation that leads nowhere; values are text then
        hints = {}
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {parameter.name: hints.get(parameter.name, str) for parameter in taken if parameter.kind in named}


def _required(kind: type) -> list[str]:
    """The options of a class that it cannot be made without."""
    known = _parameters(kind)
    if not known:
        return []
    taken = inspect.signature(kind).parameters.values()
    return [one.name for one in taken if one.name in known and one.default is one.empty]


def _read(text: str, what: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """Read ``OPTION=VALUE,...`` into the types of the options."""
    values: dict[str, Any] = {}
    for part in text.split(",") if text else ():
        key, equals, value = part.partition("=")
        key = key.strip()
        if not equals or key not in known:
            there = f"its options are {', '.join(known)}" if known else "it has no options"
            raise ConfigError(f"{what}: {part.strip()!r} is no option=value that it knows; {there}")
        if key in values:
            raise ConfigError(f"{what}: option {key} is given twice")
        values[key] = read_value(value.strip(), f"{what}: {key}", known[key])
    return values


def read_value(text: str, what: str, kind: Any) -> Any:
    """Read one value into a type; several between slashes where the type holds several.

    Args:
        text: The value as it was written.
        what: What to call it, for messages.
        kind: The type.

    Raises:
        ConfigError: It is no value of that type.
    """

    def load(_kind: type, name: object) -> Any:
        if not isinstance(name, str):
            raise TypeError
        return load_named(name, what)

    for form in (*([None] if text == "none" else []), text, text.split("/")):
        try:
            return msgspec.convert(form, kind, strict=False, dec_hook=load)
        except msgspec.ValidationError as problem:
            if isinstance(problem.__cause__, UsageError):
                raise problem.__cause__ from None
        except TypeError:
            return text  # a type that msgspec does not know
    raise ConfigError(f"{what} must be {_type_name(kind)}, not {short_repr(text)}")


def _type_name(kind: Any) -> str:
    """A type in words that do not need Python."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind in _WORDS:
        return _WORDS[kind]
    if origin in (Union, UnionType):
        return " or ".join(map(_type_name, parts))
    if origin is Literal:
        return " or ".join(map(str, parts))
    if origin in (tuple, list) and parts:
        return f"{_type_name(parts[0])}, or several between slashes"
    if origin is Callable:
        return "a function, written module:name"
    return f"a {getattr(kind, '__name__', kind)}"


_NONE: Final = "none"
_OPTION: Final = "--reward"


def reward_option(*, default: str, required: bool = False) -> Callable[[Any], Any]:
    """Return the option, whose values :func:`read_rewards` reads.

    Args:
        default: What is taken where none is given, for the help.
        required: Whether one must be given.
    """
    return click.option(
        _OPTION,
        "rewards",
        multiple=True,
        required=required,
        metavar="NAME[:OPTION=VALUE,...][@WEIGHT]",
        help=f"{', '.join(REWARDS)}, {_NONE}, or your own as MODULE:ATTR; repeatable, for a weighted sum: "
        f"--reward f1@0.5 --reward exact_match@0.5{default and f'.  [default: {default}]'}",
    )


def read_rewards(names: Sequence[str], default: str = _NONE) -> Reward | None:
    """Return the reward that values of the option stand for.

    Args:
        names: Each ``NAME``, ``NAME:OPTION=VALUE,...`` or ``MODULE:ATTR``, with ``@WEIGHT`` at its end or without.
        default: What is taken where there are none.

    Returns:
        The one reward; or the sum of several, each times its weight, of 1 where none is given; None for ``none``.

    Raises:
        ConfigError: One is unknown, has an option it cannot have, or cannot be called; or ``none`` is not alone.
    """
    read = [_weight(one) for one in names or [default]]
    if any(text == _NONE for text, _ in read):
        if read != [(_NONE, None)]:
            raise ConfigError(f"{_OPTION} {_NONE} leaves everything unscored: give it alone, and without a weight")
        return None
    if len(read) == 1 and read[0][1] is None:
        return _reward(read[0][0])
    seen: Counter[str] = Counter()
    rewards: dict[str, Reward] = {}
    weights: dict[str, float] = {}
    for text, weight in read:
        made = _reward(text)
        name = _called(text, made)
        seen[name] += 1
        name += f" {seen[name]}" if seen[name] > 1 else ""
        rewards[name] = made
        weights[name] = 1.0 if weight is None else weight
    return WeightedRewards(rewards, weights)


def _weight(given: str) -> tuple[str, float | None]:
    """Take the weight off the end of a value; what follows an ``@`` and is no number is part of an option."""
    text, at, number = given.rpartition("@")
    try:
        return (text, float(number)) if at else (given, None)
    except ValueError:
        return given, None


def _called(text: str, reward: Reward) -> str:
    """Return what a part is called: as it was asked for, or by its own name."""
    name = text.partition(":")[0]
    return name if name in REWARDS else short_name(reward)


def _reward(given: str) -> Reward:
    """Return one reward."""
    name, _, options = given.partition(":")
    if not name or (name not in REWARDS and not options):
        known = ", ".join((*REWARDS, _NONE))
        raise ConfigError(f"{_OPTION} {given!r} is none of {known}; your own is written module:attribute")
    made: Any = make_named(given, _OPTION, REWARDS, lambda known: find(known, options=bool(options)))
    if not callable(made) or isinstance(made, type):
        raise ConfigError(f"{_OPTION} {given!r}: {type(made).__name__} is not callable")
    return made  # type: ignore[no-any-return]


def read_confidence(given: str) -> Callable[[Trajectory], float]:
    """Return what says how sure a rollout is.

    Args:
        given: One of :data:`~trunkline.scoring.confidence.CONFIDENCES`, or ``MODULE:FUNCTION``.

    Raises:
        ConfigError: There is none such, or it cannot be called; later, where it fails or returns no number.
    """
    found: Any = make_named(given, "--confidence", CONFIDENCES, CONFIDENCES.__getitem__)
    if not callable(found):
        raise ConfigError(f"--confidence {given!r}: it is no function of a rollout")

    def sure(rollout: Trajectory) -> float:
        try:
            return float(found(rollout))
        except Exception as problem:
            raise ConfigError(f"--confidence {given}: {type(problem).__name__}: {format_error(problem)}") from problem

    return sure
