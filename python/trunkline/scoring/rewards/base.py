"""Reward, Scored, policy, names, value functions."""

from __future__ import annotations

import hashlib
import inspect
import math
import re
from collections.abc import Awaitable, Callable
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from trunkline._internal.text import HIDDEN, printable, without_secrets
from trunkline._internal.validation import check_bool, check_float, check_int, check_optional, check_text, short_repr
from trunkline.errors import ConfigError
from trunkline.tree.views import Kind, Trajectory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trunkline.tree.views import Tree


LARGEST = 1e100
"""The largest reward, or weight of one, of which sums and squares are still numbers."""

REWARD_TIMEOUT = 300.0
"""Seconds that a reward has to give its result, unless it says otherwise."""


class RewardPart(NamedTuple):
    """The result of one of several rewards for a trajectory.

    Attributes:
        name: The reward's name.
        value: Its value; NaN if there is none.
        weight: What it counts; 0 where it is told beside a value that stands for itself.
        problem: Why there is no value, on one printable line.
    """

    name: str
    value: float
    weight: float = 1.0
    problem: str | None = None


class Scored(NamedTuple):
    """The result of a reward for one trajectory. A reward may also return one, to say why there is no value.

    Attributes:
        value: The reward; NaN if there is none.
        problem: Why there is none, on one printable line; None if there is one, or if the reward said None
            itself.
        parts: What it is made of, where several rewards were asked.
    """

    value: float
    problem: str | None = None
    parts: tuple[RewardPart, ...] = ()


_Said: TypeAlias = "Scored | float | bool | dict[str, Any] | None"

Reward = Callable[..., "Awaitable[_Said] | _Said"]
"""A scorer of trajectories: a function, a coroutine function, or an object that can be called like one.

It takes the trajectory (whose ``task`` has the reference answers) and returns a number, True or False, or
None if it cannot say. Of a dict that is what stands under ``reward``; the rest is kept in the rollout's note, numbers
as parts with a mean of their own. An exception in it, also ``SystemExit``, leaves the trajectory unscored, and so does
an awaited result that takes longer than ``REWARD_TIMEOUT``. How long it may take, whether it runs in a thread and
whether it takes many trajectories at once is said with ``trunkline.reward``, or by attributes of those names.

One that holds something open while a run lasts, such as processes or connections, has ``opened()``, which returns what
is asked instead in one event loop and is closed by its ``async close()``.

One with a parameter named ``environment`` also gets the environment of the rollout, which is closed when it has said
its value. After the run there is none any more: ``trajectory.final_info`` has the facts that it left.
"""


MOST: Final = 4096
"""The most trajectories that one call may be given."""

_HELD: Final = "__trunkline_reward__"

_FUNCTIONS: Final = (FunctionType, BuiltinFunctionType, MethodType)

_Function = TypeVar("_Function", bound="Callable[..., Any]")


class RewardPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How a reward is called."""

    timeout: float | None = None
    batch: int | None = None
    thread: bool = False
    name: str | None = None

    def __post_init__(self) -> None:
        if self.timeout is not None and self.timeout != math.inf:
            check_float("reward: timeout", self.timeout, 0, above=True, unit="seconds")
        check_optional(check_int, "reward: batch", self.batch, 1, MOST)
        check_bool("reward: thread", self.thread)
        if self.name is not None:
            check_text("reward: name", self.name)
            if not self.name.strip():
                raise ConfigError("reward: name is empty")


def reward(
    *, timeout: float | None = None, batch: int | None = None, thread: bool = False, name: str | None = None
) -> Callable[[_Function], _Function]:
    """Say how a function is asked as a reward.

    The value of a trajectory must not depend on which others it was gathered with: when rollouts end is a matter of
    time, and a run that is done again would score otherwise.

    Args:
        timeout: Seconds that one call may take; what is late leaves its trajectories unscored. A plain function
            needs ``thread`` for it, since one that blocks cannot be interrupted. By default 300, for what can be
            interrupted.
        batch: The most trajectories of one call: the function then takes a list of them and returns a list of as many
            results. Rollouts that end within a few milliseconds are gathered.
        thread: Run a plain function that blocks in a thread, so that only its own trajectories wait for it. One
            that outlives its time is left behind.
        name: What it is called in run files and messages; the function's own name by default.

    Returns:
        A decorator; the function itself stays as it is, and crosses to workers as it did.

    Raises:
        ConfigError: A value cannot be used, or they do not fit the function.
    """
    policy = RewardPolicy(timeout=timeout, batch=batch, thread=thread, name=name)

    def decorate(function: _Function) -> _Function:
        if not isinstance(function, FunctionType):
            raise ConfigError(
                f"@reward is for functions, not {short_repr(function)}; "
                "a class of rewards has attributes of these names"
            )
        own = name or function.__name__
        if inspect.iscoroutinefunction(function):
            if thread:
                raise ConfigError(f"reward {own}: thread=True is for a function that blocks, not for a coroutine")
        elif timeout is not None and not thread:
            raise ConfigError(
                f"reward {own}: a function that blocks cannot be interrupted after timeout={timeout:g}; make it "
                "async def, or give thread=True as well"
            )
        setattr(function, _HELD, policy)
        return function

    return decorate


def policy_of(reward: object) -> RewardPolicy:
    """How a reward is called, by its decorator or its attributes."""
    if isinstance(reward, type):
        name = reward.__name__
        raise ConfigError(f"reward must be a function of a trajectory, not the class {name}: give one of it, {name}()")
    held = getattr(reward, _HELD, None)
    if isinstance(held, RewardPolicy):
        return held
    if isinstance(reward, _FUNCTIONS):
        return RewardPolicy()
    try:
        return RewardPolicy(
            timeout=getattr(reward, "timeout", None),
            batch=getattr(reward, "batch", None),
            thread=getattr(reward, "thread", False),
        )
    except ConfigError as problem:
        raise ConfigError(f"{type(reward).__name__}: {problem}") from None


class OpenedPerCall:
    """Base of rewards with ``opened()``: calling one opens it, asks it once and closes it."""

    __slots__ = ()

    def opened(self) -> Any:
        """Return what is asked in one event loop, with an async ``close()``."""
        raise NotImplementedError

    async def __call__(self, trajectory: Trajectory) -> Scored | float | None:
        """Score one ended rollout, with connections or processes of its own."""
        live = self.opened()
        try:
            said: Scored | float | None = await live(trajectory)
            return said
        finally:
            await live.close()


_HOW: Final = frozenset({"timeout", "batch", "thread"})  # options that say how a reward is asked, and not what it says
_SECRET: Final = re.compile(r"(?i)(key|authorization|passw(or)?d|secret|credentials?|token|cookie)$")
"""Options that no file and no message says."""

_LONG: Final = 60  # characters of a text option that are spelt out; of a longer one a digest tells it from others


class _DefaultFactory(msgspec.Struct):
    """Shows how msgspec represents a default factory."""

    new: list[int] = msgspec.field(default_factory=list)


_FACTORY: Final = type(_DefaultFactory.__struct_defaults__[0])


def short_name(reward: Any) -> str:
    """A reward's name without its options."""
    return policy_of(reward).name or str(getattr(reward, "__name__", type(reward).__name__))


def full_name(reward: Any) -> str:
    """The reward's name in run files, with options of a struct that differ from the defaults and change its value."""
    options = ", ".join(_options(reward)) if isinstance(reward, msgspec.Struct) else ""
    return f"{short_name(reward)}({options})" if options else short_name(reward)


def _options(struct: msgspec.Struct) -> Iterator[str]:
    """The options of a struct that are not as by default."""
    # Not by msgspec.structs.fields, which looks annotations up: those of a user's class may lead nowhere here.
    names, defaults = struct.__struct_fields__, struct.__struct_defaults__
    required = (msgspec.NODEFAULT,) * (len(names) - len(defaults))
    for name, default in zip(names, (*required, *defaults), strict=True):
        value = getattr(struct, name)
        usual = default.factory() if isinstance(default, _FACTORY) else default
        if name not in _HOW and (usual is msgspec.NODEFAULT or value != usual):
            yield f"{name}={HIDDEN if _SECRET.search(name) else _spelt(value)}"


def _spelt(value: object) -> str:
    """A value on one line, the same in every process."""
    match value:
        case str():
            return _text(value)
        case None | bool() | int() | float():
            return str(value).removesuffix(".0")  # a whole number may come back from a file as a float
        case dict():
            return "{" + ", ".join(f"{_spelt(key)}: {_spelt(item)}" for key, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_spelt, value)) + "]"
    if isinstance(value, msgspec.Struct) and not callable(value):
        return f"{type(value).__name__}({', '.join(_options(value))})"
    return full_name(value)


def _text(value: str) -> str:
    """A short text as it is; of a longer one the beginning and a digest."""
    if len(value) <= _LONG:
        return printable(without_secrets(value), 4 * _LONG)
    digest = hashlib.blake2b(value.encode(errors="replace"), digest_size=4).hexdigest()
    return f"{printable(without_secrets(value)[:_LONG], 4 * _LONG)}...#{digest}"


class OpenTrajectory(Trajectory):
    """A trajectory whose environment is still open."""

    __slots__ = ("environment",)

    def __init__(self, tree: Tree, id: int, environment: object) -> None:
        super().__init__(tree, id)
        self.environment = environment


def step_sum(trajectory: Trajectory) -> float | None:
    """Reward: the sum of the step rewards that the environment gave; None where it gave none.

    It is the reward of an agent with an environment where the run has no other one.
    """
    given = [reward for reward in trajectory.step_rewards if not math.isnan(reward)]
    return math.fsum(given) if given else None


Value = Callable[[Any], float | None]
"""A scorer of a ``Trajectory`` that has not ended: a plain function of it, never a
coroutine function, that depends on nothing else. Higher is better; None if it cannot say, which ranks last.
"""

_ALL = 2  # the place of the whole turn among the regions think, tool call and all


def check(name: str, value: object) -> None:
    """Check what a user gives as a value function."""
    if value is not None and (not callable(value) or inspect.iscoroutinefunction(value)):
        raise ConfigError(f"{name} must be a plain function of a trajectory, not {short_repr(value)}")


def confidence(trajectory: Trajectory) -> float:
    """Minus the mean entropy of the last turn's tokens, in nats: minus the logarithm of the turn's perplexity.

    NaN before the first turn, and where the server gave no log-probabilities of the likeliest tokens.
    """
    core = trajectory.tree.core
    turns = [node.id for node in trajectory.nodes if node.kind is Kind.TURN]
    return -core.node(turns[-1]).entropy[_ALL] if turns else math.nan


def search_value(trajectory: Trajectory, value: Value | None = None) -> float:
    """The value of a rollout to a search: by ``value``, or the model's own confidence."""
    if value is None:
        found = confidence(trajectory)
        if math.isnan(found):
            raise ConfigError(
                "the server gave no log-probabilities of the likeliest tokens, so the model's confidence is unknown: "
                "set sampling=Sampling(logprobs=True, top_logprobs=5), or give the strategy a value function"
            )
        return found
    said: object = value(trajectory)
    if said is None:
        return math.nan
    # Infinities order well, and 1e400 as a whole number does not fit a float.
    if isinstance(said, str | bytes | bytearray) or not hasattr(said, "__float__"):
        raise ConfigError(f"value must return a number or None at once, not {short_repr(said)}")
    try:
        return float(said)
    except Exception as problem:
        raise ConfigError(f"value must return a number or None, not {short_repr(said)}") from problem


def best(values: Sequence[float], k: int) -> list[int]:
    """Return the places of the ``k`` highest values, highest first; the earlier where two are equal, NaN last."""
    return sorted(range(len(values)), key=lambda place: (math.isnan(values[place]), -values[place]))[: max(k, 0)]
