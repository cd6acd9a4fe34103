"""How a reward is asked: for how long, in which thread, and about how many trajectories at once."""

from __future__ import annotations

import inspect
import math
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from trunkline.bounds import number, shown, text, whole
from trunkline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MOST", "Policy", "policy_of", "reward"]

MOST: Final = 4096
"""The most trajectories that one call may be given."""

_HELD: Final = "__trunkline_reward__"

_FUNCTIONS: Final = (FunctionType, BuiltinFunctionType, MethodType)

_Function = TypeVar("_Function", bound="Callable[..., Any]")


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How a reward is asked.

    Attributes:
        timeout: Seconds that one call may take; infinite for a reward that keeps its own time; None for the default.
        batch: The most trajectories of one call, which takes a list and returns one; None for one by one.
        thread: Whether it blocks, and runs in a thread.
        name: What it is called; None for its own name.

    Raises:
        ConfigError: A field has a value it cannot have.
    """

    timeout: float | None = None
    batch: int | None = None
    thread: bool = False
    name: str | None = None

    def __post_init__(self) -> None:
        if self.timeout is not None and self.timeout != math.inf:
            number("reward: timeout", self.timeout, 0, above=True, unit="seconds")
        if self.batch is not None:
            whole("reward: batch", self.batch, 1, MOST)
        if not isinstance(self.thread, bool):
            raise ConfigError(f"reward: thread must be true or false, not {shown(self.thread)}")
        if self.name is not None:
            text("reward: name", self.name)
            if not self.name.strip():
                raise ConfigError("reward: name is empty")


def reward(
    *, timeout: float | None = None, batch: int | None = None, thread: bool = False, name: str | None = None
) -> Callable[[_Function], _Function]:
    """Say how a function is asked as a reward.

    The value of a trajectory must not depend on which others it was gathered with: who ends when is a matter of time,
    and a run that is done again would score otherwise.

    Args:
        timeout: Seconds that one call may take; what is late leaves its trajectories unscored. A plain function
            needs ``thread`` for it, since nobody can interrupt one that blocks. By default 300, for what can be
            interrupted.
        batch: The most trajectories of one call: the function then takes a list of them and returns a list of as many
            results. Rollouts that end within a few milliseconds are gathered.
        thread: Run a plain function that blocks in a thread, so that nobody waits for it but its own trajectories. One
            that outlives its time is left behind.
        name: What it is called in run files and messages; the function's own name by default.

    Returns:
        A decorator; the function itself stays as it is, and crosses to workers as it did.

    Raises:
        ConfigError: A value cannot be used, or they do not fit the function.
    """
    policy = Policy(timeout=timeout, batch=batch, thread=thread, name=name)

    def decorate(function: _Function) -> _Function:
        if not isinstance(function, FunctionType):
            raise ConfigError(
                f"@reward is for functions, not {shown(function)}; a class of rewards has attributes of these names"
            )
        own = name or function.__name__
        if inspect.iscoroutinefunction(function):
            if thread:
                raise ConfigError(f"reward {own}: thread=True is for a function that blocks, not for a coroutine")
        elif timeout is not None and not thread:
            raise ConfigError(
                f"reward {own}: nobody can interrupt a function that blocks after timeout={timeout:g}; make it "
                "async def, or give thread=True as well"
            )
        setattr(function, _HELD, policy)
        return function

    return decorate


def policy_of(reward: object) -> Policy:
    """Return how a reward is asked: as it was decorated, or as attributes of those names say.

    Args:
        reward: A function, or any other object that can be called.

    Raises:
        ConfigError: It is a class, or an attribute has a value it cannot have.
    """
    if isinstance(reward, type):
        name = reward.__name__
        raise ConfigError(f"reward must be a function of a trajectory, not the class {name}: give one of it, {name}()")
    held = getattr(reward, _HELD, None)
    if isinstance(held, Policy):
        return held
    if isinstance(reward, _FUNCTIONS):
        return Policy()
    try:
        return Policy(
            timeout=getattr(reward, "timeout", None),
            batch=getattr(reward, "batch", None),
            thread=getattr(reward, "thread", False),
        )
    except ConfigError as problem:
        raise ConfigError(f"{type(reward).__name__}: {problem}") from None
