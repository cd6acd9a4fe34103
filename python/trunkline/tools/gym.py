"""Environments of Gymnasium as environments of rollouts, with tools made from their spaces."""

from __future__ import annotations

import copy
import re
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypedDict
from urllib.parse import unquote

import msgspec

from trunkline._internal.aio import in_thread
from trunkline._internal.registry import load_extra, load_named
from trunkline._internal.serialization import module_of, resolve
from trunkline._internal.text import describe_error, excerpt, printable, redact
from trunkline._internal.validation import check_bool, short_repr
from trunkline.errors import ConfigError, ToolError
from trunkline.tools.environment import Environment
from trunkline.tools.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.types import Task

__all__ = ["GymEnvironment", "from_gym"]

_FACTORY: Final = re.compile(r"[\w.]+(?:\.py)?:[^\W\d]\w*(?:\.\w+)*")
"""``module:attribute``; ids of Gymnasium that name a module, such as ``module:Maze-v0``, have a version."""

_PREFIX: Final = "from_gym"
_SHOWN: Final = 200
_MOST_INFO: Final = 1 << 15  # bytes
_DEEPEST: Final = 16
_COLOUR: Final = re.compile(r"\x1b\[([0-9;]*)m")
_ESCAPE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|.)")


class GymEnvironment(Environment):
    """An environment of Gymnasium; ``from_gym`` derives a class from it for each.

    All rollouts of a task begin in one state: ``reset`` is given ``task.metadata["seed"]``, else the seed that follows
    from the run's seed and the task, and ``task.metadata["options"]`` where there are any. ``final_info()`` says how
    many steps there were, what they earned together, and how the episode ended.

    Attributes:
        gym: The environment of Gymnasium; None before it is reset.
        step: Tool: takes one action, and answers with the observation.
        look: Tool: answers with the observation of now, the first one before any step.
        tools: Both.
    """

    snapshots = 0

    step: ClassVar[Tool[..., Any]]
    look: ClassVar[Tool[..., Any]]
    tools: ClassVar[tuple[Tool[..., Any], ...]] = ()
    _make: ClassVar[staticmethod[[], Any]]

    def __init__(self) -> None:
        self.gym: Any = None
        self._said = ""
        self._steps = 0
        self._sum = 0.0
        self._rewards: list[Any] = []
        self._over = (False, False)
        self._info: Any = {}

    async def fresh(self, task: Task) -> None:
        """Make the environment, and reset it."""
        seed, options = task.metadata.get("seed", self.task_seed), task.metadata.get("options")
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed in the metadata of the task is {short_repr(seed)}: give an integer from 0")
        given = {"seed": seed} if options is None else {"seed": seed, "options": options}
        await in_thread(partial(self._reset, given))

    def _reset(self, given: dict[str, Any]) -> None:
        self.gym = self._make()
        observation, self._info = _of_size("reset", self.gym.reset(**given), 2)
        self._said = self.describe(observation)

    def act(self, action: Any) -> str:
        """Take one action; for tools of one's own, which a thread runs where they are not ``async``.

        Args:
            action: What ``step`` of the environment takes.

        Returns:
            The observation, as ``describe`` says it.

        Raises:
            ToolError: The action is none of the action space, or the episode is over.
        """
        if any(self._over):
            raise ToolError("Error: the episode is over.")
        if not self.gym.action_space.contains(action):
            raise ToolError(f"Error: {short_repr(action)} is no action: {describe_space(self.gym.action_space)}.")
        said = _of_size("step", self.gym.step(action), 5)
        observation, reward, terminated, truncated, self._info = said
        self._rewards.append(reward)
        self._steps += 1
        self._over = bool(terminated), bool(truncated)
        self._said = self.describe(observation) + ("\nThe episode is over." if any(self._over) else "")
        return self._said

    def describe(self, observation: Any) -> str:
        """Say what the model reads of an observation: a text as it is, else JSON; below what ``render`` draws in text.

        Override it for words of one's own.

        Args:
            observation: What ``reset`` or ``step`` returned.
        """
        said = observation if isinstance(observation, str) else msgspec.json.encode(as_data(observation)).decode()
        if getattr(self.gym, "render_mode", None) != "ansi":
            return said
        return f"{_drawn(str(self.gym.render()))}\nobservation: {said}"

    async def stepped(self) -> tuple[float | None, bool, bool] | None:
        """Return the rewards of the steps since the last time, and whether the episode is over."""
        rewards, self._rewards = self._rewards, []
        if not rewards:
            return None
        reward = float(sum(map(float, rewards)))
        self._sum += reward
        return reward, *self._over

    async def final_info(self) -> dict[str, Any]:
        """Return the number of steps, what they earned, how the episode ended, and the last ``info`` if it is small."""
        terminated, truncated = self._over
        ends = {"terminated": terminated, "truncated": truncated}
        info: Any = as_data(self._info)
        try:
            small = len(msgspec.json.encode(info)) <= _MOST_INFO
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError):
            small = False
        return {"steps": self._steps, "return": self._sum, **ends, "info": info if small else None}

    async def snapshot(self) -> Any:
        """Return a deep copy of the state; only asked for where ``from_gym`` was told that it may be taken."""
        return await in_thread(partial(copy.deepcopy, vars(self)))

    async def restore(self, snapshot: Any) -> None:
        """Take a deep copy of a snapshot for the state."""
        vars(self).update(await in_thread(partial(copy.deepcopy, snapshot)))

    async def close(self) -> None:
        """Close the environment."""
        if self.gym is not None:
            await in_thread(self.gym.close)


_made: Final[dict[str, type[GymEnvironment]]] = {}
"""Classes that other processes can make again, by their qualified names."""


def from_gym(env: Any, *, snapshot: bool = False, **options: Any) -> type[GymEnvironment]:
    """Make an environment class, with its tools, of an environment of Gymnasium.

    ``lake = tl.from_gym("FrozenLake-v1", render_mode="ansi")``, and then
    ``tl.Agent(model=..., tools=lake.tools, environment=lake)``. The tools tell a model of the spaces; actions are
    texts, integers, or objects of these (``Text``, ``Discrete``, ``Dict``). For other words, derive a class from what
    this returns, override ``describe``, and write a tool that calls ``act``.

    Args:
        env: An id, which is made with ``gymnasium.make``; a function without arguments that makes an environment, or
            its name, ``"module:function"``; or what ``gymnasium.make`` made, of which each rollout makes another one.
        snapshot: Whether ``copy.deepcopy`` of the environment is a snapshot of its state, which shares no file, process
            or connection with it. Without, forks run the steps on record again.
        **options: What ``gymnasium.make`` is given beside an id.

    Raises:
        ConfigError: There is no such environment, the extra ``gym`` is missing, or a model cannot be told of the
            actions.
    """
    check_bool("from_gym: snapshot", snapshot)
    if callable(getattr(env, "step", None)) and not isinstance(env, type):
        env, options = _spec_of(env, options)
    is_id = isinstance(env, str) and _FACTORY.fullmatch(env) is None
    if options and not is_id:
        raise ConfigError(
            f"from_gym: {next(iter(options))} is for an id, which {short_repr(env)} is not: give a function that makes "
            "the environment as it is to be"
        )
    if redact(as_data(options)) != as_data(options):
        raise ConfigError(
            "from_gym: an option looks like a key, which run files would hold: give a function that reads it"
        )
    make: Callable[[], Any]
    if is_id:
        name, make = env, partial(_from_id, env, options)
    elif isinstance(env, str):
        name, make = env.rpartition(":")[2], load_named(env, "from_gym:")
    elif callable(env):
        name, make = str(getattr(env, "__name__", type(env).__name__)), env
        env = f"{module_of(env)}:{getattr(env, '__qualname__', '')}"
    else:
        raise ConfigError(f"from_gym takes an id, a function or an environment, not {short_repr(env)}")
    qualname = _encoded(env, options, make, snapshot=snapshot)
    if qualname is None:
        return _derived(make, printable(name), f"{name}.<environment>", snapshot=snapshot)
    if qualname not in _made:
        _made[qualname] = _derived(make, printable(name), qualname, snapshot=snapshot)
    return _made[qualname]


def __getattr__(name: str) -> Any:
    """Find a class by its qualified name, in a process that has not made it yet."""
    if not name.startswith(_PREFIX):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    written = unquote(name.removeprefix(_PREFIX))
    env, options, snapshot = msgspec.json.decode(written, type=tuple[str, dict[str, Any], bool])
    return from_gym(env, snapshot=snapshot, **options)


def _encoded(env: str, options: dict[str, Any], make: Callable[[], Any], *, snapshot: bool) -> str | None:
    """Return a name that leads another process to the class; None where there is none."""
    found = sys.modules.get(env.partition(":")[0])
    if not isinstance(make, partial) and (found is None or resolve(found, env.partition(":")[2]) is not make):
        return None  # a closure, or a function of a script
    try:
        written = msgspec.json.encode([env, options, snapshot], order="deterministic").decode()
        if msgspec.json.decode(written) != [env, options, snapshot]:
            return None
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return None
    return _PREFIX + written.replace("%", "%25").replace(".", "%2E").replace("<", "%3C")


def _from_id(id: str, options: dict[str, Any]) -> Any:
    return load_extra("gymnasium", "gym", f"from_gym({short_repr(id)})").make(id, **options)


def _spec_of(env: Any, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return how ``gymnasium.make`` made an environment; ConfigError where it did not."""
    spec: Any = getattr(env, "spec", None)
    if options or not isinstance(getattr(spec, "id", None), str) or getattr(spec, "additional_wrappers", None):
        raise ConfigError(
            f"from_gym: {short_repr(env)} is one environment, and each rollout needs one of its own: give the function "
            "that makes it, or its id with the options of gymnasium.make"
        )
    steps = getattr(spec, "max_episode_steps", None)
    return spec.id, dict(spec.kwargs) | ({} if steps is None else {"max_episode_steps": steps})


def _derived(make: Callable[[], Any], name: str, qualname: str, *, snapshot: bool) -> type[GymEnvironment]:
    """Make the class, and its tools from the spaces of one environment."""
    try:
        env = make()
        actions, observations = env.action_space, env.observation_space
        env.close()
    except ConfigError:
        raise
    except Exception as problem:
        raise ConfigError(f"from_gym: {name} cannot be made: {describe_error(problem)}") from problem
    action = _annotation(actions, f"from_gym: the action space of {name}")
    own = {
        "__module__": __name__,
        "__qualname__": qualname,
        "_make": staticmethod(make),
        "snapshots": Environment.snapshots if snapshot else 0,
    }
    kind: Any = type(name, (GymEnvironment,), own)

    def step(action: Any, environment: Any) -> Any:
        return environment.act(action)

    def look(environment: Any) -> Any:
        return environment._said

    said = f"the observation, {describe_space(observations)}"
    described = {
        "step": f"Take one action in the environment {name}. The result is {said}.",
        "look": f"See the environment {name} as it is now, without an action: {said}.",
    }
    for function, given in ((step, {"action": action}), (look, {})):
        called = function.__name__
        function.__module__, function.__qualname__ = __name__, f"{qualname}.{called}"
        function.__annotations__ = {**given, "environment": kind, "return": str}
        setattr(kind, called, Tool(function, name=called, description=described[called]))
    kind.tools = (kind.look, kind.step)
    derived: type[GymEnvironment] = kind
    return derived


def _kind(space: Any) -> str:
    """Return which of the spaces that a model can be told of a space is."""
    return next((one.__name__ for one in type(space).__mro__ if one.__name__ in {"Discrete", "Text", "Dict"}), "")


def _start(space: Any) -> int:
    """Return the first integer of a Discrete space; earlier libraries have none but 0."""
    return int(getattr(space, "start", 0))


def describe_space(space: Any) -> str:
    """Say in words what a space holds."""
    match _kind(space):
        case "Discrete":
            return f"an integer from {_start(space)} to {_start(space) + int(space.n) - 1}"
        case "Text":
            return f"a text of {int(space.min_length)} to {int(space.max_length)} characters"
        case "Dict":
            return f"an object ({'; '.join(f'{key}: {describe_space(one)}' for key, one in space.spaces.items())})"
        case _:
            return excerpt(short_repr(space), _SHOWN)


def _annotation(space: Any, place: str, depth: int = 0) -> Any:
    """Return the type of a tool's argument that stands for a space; ConfigError where there is none."""
    said = describe_space(space)
    match _kind(space):
        case "Discrete":
            low = _start(space)
            return Annotated[int, msgspec.Meta(ge=low, le=low + int(space.n) - 1, description=said)]
        case "Text":
            length = msgspec.Meta(min_length=int(space.min_length), max_length=int(space.max_length), description=said)
            return Annotated[str, length]
        case "Dict" if depth < _DEEPEST and all(isinstance(key, str) for key in space.spaces):
            inside = {key: _annotation(one, f"{place}, {key},", depth + 1) for key, one in space.spaces.items()}
            return TypedDict("Action", inside)  # type: ignore[operator]
        case _:
            raise ConfigError(
                f"{place} is {short_repr(space)}: a model can be told of Text, Discrete and Dict spaces; wrap the "
                "environment so that its actions are these"
            )


def _of_size(method: str, said: Any, size: int) -> tuple[Any, ...]:
    """Return what a method of an environment returned, as a tuple."""
    if not isinstance(said, tuple) or len(said) != size:
        parts = "(observation, info)" if size == 2 else "(observation, reward, terminated, truncated, info)"
        raise TypeError(f"{method}() returned {short_repr(said)}, which is not {parts}")
    return said


def _drawn(text: str) -> str:
    """Return a drawing for a terminal in plain text: what has a colour stands in brackets."""
    opened = False

    def bracket(found: re.Match[str]) -> str:
        nonlocal opened
        was, opened = opened, found[1].strip("0;") != ""
        return "" if was == opened else "[" if opened else "]"

    plain = _ESCAPE.sub("", _COLOUR.sub(bracket, text))
    return (plain + "]" * opened).strip("\n")


def as_data(value: Any, depth: int = 0) -> Any:
    """Return a value of an environment as JSON holds it: arrays as lists, and what is no data by its ``repr``."""
    if depth > _DEEPEST:
        return "..."
    if callable(plain := getattr(value, "tolist", None)):
        value = plain()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {str(key): as_data(one, depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_data(one, depth + 1) for one in value]
    return short_repr(value)
