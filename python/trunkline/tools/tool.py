"""Tools: a function with a name, a description, a schema and a policy, made with ``@tool``."""

from __future__ import annotations

import functools
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypedDict, Unpack, overload

import msgspec

from trunkline._internal.registry import Registry, load_named
from trunkline._internal.validation import check_bool, check_float, check_int, check_size, check_text, short_repr
from trunkline.errors import ConfigError
from trunkline.tools.environment import make
from trunkline.tools.schema import Schema, build

MEMORY: Final = 4_000_000_000
"""Bytes that an isolated tool may use unless it says otherwise."""

_LEAST: Final = 1_000_000
"""Bytes below which no call would come to its end."""


class ToolPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How calls are run; see ``trunkline.tools.tool.tool``."""

    timeout: float | None = None
    concurrency: int | None = None
    isolated: bool = False
    memory: int | None = None
    pure: bool = False
    side_effects: bool = False
    replay: bool = True

    def fits(self, tool: str, *, stateful: bool) -> None:
        """Check that the options fit one another, and a tool that takes an environment if it is stateful.

        Raises:
            ConfigError: They do not; the message says which, and why.
        """
        if stateful and self.isolated:
            raise ConfigError(
                f"tool {tool!r}: isolated=True runs it in a process of its own, which cannot reach the environment "
                "of a rollout; drop one of the two"
            )
        if stateful and self.pure:
            raise ConfigError(
                f"tool {tool!r}: pure=True says that equal arguments give equal results, and those of a tool with an "
                "environment depend on its state; drop one of the two"
            )
        if self.pure and self.side_effects:
            raise ConfigError(
                f"tool {tool!r}: pure=True lets calls share one result, and side_effects=True says that each call "
                "counts; drop one of the two"
            )
        if self.memory is not None and not self.isolated:
            raise ConfigError(
                f"tool {tool!r}: memory limits the process of an isolated tool; set isolated=True, or drop it"
            )


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    # With defaults, so that a plain `Tool` is a complete type; at run time they do not matter.
    from typing_extensions import ParamSpec, TypeVar

    P = ParamSpec("P", default=...)
    R = TypeVar("R", default=Any)
else:
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")


NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""What a tool may be called."""


class ToolOptions(TypedDict, total=False):
    """Options of ``tool``, which describes them."""

    name: str | None
    description: str | None
    timeout: float | None
    concurrency: int | None
    isolated: bool
    memory: int | str | None
    pure: bool
    side_effects: bool
    replay: bool


class Tool(Generic[P, R]):
    """A function with a name, a description and a schema. Calling it calls the function.

    Attributes:
        name: What the model calls it.
        description: What the model is told about it.
        schema: Reads and converts the arguments of a call.
        policy: How its calls are run.
        is_async: Whether calling the function gives an awaitable.
        environment: What makes the environment of an agent that has the tool and names none; None for most tools.
        made_by: Settings whose call makes the tool, by which it reaches other processes; None for most tools.
    """

    environment: Callable[[], Any] | None = None
    made_by: msgspec.Struct | None = None

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float | None = None,
        concurrency: int | None = None,
        isolated: bool = False,
        memory: int | str | None = None,
        pure: bool = False,
        side_effects: bool = False,
        replay: bool = True,
    ) -> None:
        """Wrap a function; the options are those of ``tool``.

        Raises:
            ConfigError: The function cannot be described to a model, or an option is wrong.
        """
        if not callable(function):
            raise ConfigError(f"a tool must be a function, not {type(function).__name__}")
        self.name = getattr(function, "__name__", type(function).__name__) if name is None else name
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise ConfigError(
                f"tool name {short_repr(self.name)} must be 1 to 64 of a-z, A-Z, 0-9, _ and -; pass @tool(name=)"
            )
        place = f"tool {self.name!r}"
        if timeout is not None:
            check_float(f"{place}: timeout", timeout, 0, above=True, unit="seconds")
        if concurrency is not None:
            check_int(f"{place}: concurrency", concurrency, 1)
        switches = {"isolated": isolated, "pure": pure, "side_effects": side_effects, "replay": replay}
        for option, value in switches.items():
            check_bool(f"{place}: {option}", value)
        switches["replay"] &= not side_effects  # a call that must not run twice does not run for an environment, either
        size = None if memory is None else check_size(f"{place}: memory", memory, _LEAST)
        self.policy = ToolPolicy(timeout=timeout, concurrency=concurrency, memory=size, **switches)
        self.schema: Schema = build(function, self.name)
        self.policy.fits(self.name, stateful=self.schema.slot is not None)
        summary = self.schema.docstring.summary
        self.description = check_text(f"{place}: description", summary if description is None else description)
        self.is_async = gives_awaitable(function)
        functools.update_wrapper(self, function)
        self.__wrapped__ = function

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON Schema of the arguments."""
        return self.schema.parameters

    @property
    def definition(self) -> dict[str, Any]:
        """The tool in the form that chat completions take."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        }

    @property
    def replayed(self) -> bool:
        """Whether recorded calls run again to bring a fresh environment to its state."""
        return self.schema.slot is not None

    @property
    def module(self) -> str:
        """Module that defines the function; with ``qualname`` it finds the tool in another process."""
        return str(getattr(self.__wrapped__, "__module__", ""))

    @property
    def qualname(self) -> str:
        """Dotted name of the function within its module."""
        return str(getattr(self.__wrapped__, "__qualname__", ""))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself: no conversion, no limit."""
        return self.__wrapped__(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Tool {self.name} {self.module}:{self.qualname}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # A tool that can be imported goes to a worker by name, without pickling.
        options: dict[str, Any] = {"name": self.name, "description": self.description}
        options |= msgspec.structs.asdict(self.policy)
        return functools.partial(Tool, **options), (self.__wrapped__,)


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Unpack[ToolOptions]) -> Any:
    """Make a function callable by a model; use as ``@tool`` or ``@tool(name=..., timeout=...)``.

    The signature becomes the schema, the docstring's summary the description, its ``Args:`` section the text
    of each argument. A call's arguments are checked and converted before the function runs.

    Async functions run on the worker's event loop, sync ones in threads, and isolated ones of both kinds in processes
    of their own, one call at a time in each. A process is killed with everything it started when a call takes too long
    or uses too much memory; the model reads how the call ended, and no other call is harmed.

    Args:
        function: The function, sync or async.
        name: Overrides the function's name.
        description: Overrides the docstring's summary.
        timeout: Seconds a call may take, once it runs; the toolbox's limit, 60, when not given.
        concurrency: Calls that run at once in one worker; others wait, which does not count as time they take. For an
            isolated tool the number of its processes, by default that of the CPUs; for others unlimited when None.
        isolated: Run each call in a process that can be killed. For tools that use much CPU, hang in C code, crash,
            leak or run code that was not reviewed. It is no sandbox: they run as the same user and see the same files.
        memory: What a call of an isolated tool may use beyond what its module takes, as address space: bytes, or a
            text such as ``"512MB"``; 4 GB when not given.
        pure: Equal arguments give equal results and nothing else happens: calls of one worker share one result, kept
            within 64 MB of the latest, and calls under way are joined. Results that say what went wrong are not kept.
        side_effects: A call that may have run is never run again: the run file has the intent before the call begins.
            Where a resumed run finds a call that began without an observation on record, the rollout ends as
            ``unknown_effect``. Such calls do not run again to bring an environment to a fork point, either.
        replay: For a tool that takes an ``Environment``: whether a recorded call may
            run again to bring a fresh environment to a fork point. Say no where it has effects beyond the environment.

    Returns:
        A ``Tool``, or a decorator that makes one.

    Raises:
        ConfigError: A parameter has no annotation, is variadic, or has a type a model cannot send; or options do not
            fit one another.
    """
    wrap = functools.partial(Tool, **options)
    return wrap if function is None else wrap(function)


def gives_awaitable(function: Callable[..., Any]) -> bool:
    """Whether calling a function gives an awaitable, as far as that can be seen."""
    target: Any = function
    while isinstance(target, functools.partial):
        target = target.func
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(type(target).__call__)


def environment_for(environment: Any, tools: Iterable[Any]) -> Any:
    """Return an environment that was given, or else one that tools bring along; None where none do."""
    if environment is not None:
        return environment
    bring = [tool.environment for tool in tools if isinstance(tool, Tool) and tool.environment is not None]
    return bring[0]() if bring else None


def check_environment(environment: Any, tools: Iterable[Tool], owner: str = "agent") -> None:
    """Refuse an environment, a class or function that makes one, which does not fit the tools."""
    wanted = [(tool.name, tool.schema.slot.kind) for tool in tools if tool.schema.slot is not None]
    if environment is None:
        for name, kind in wanted:
            raise ConfigError(
                f"{owner.capitalize()}: tool {name!r} works on the environment {kind.__name__}, and the {owner} has "
                f"none: set environment={getattr(kind, 'given_as', kind.__name__)}"
            )
        return
    made = make(environment)
    for name, kind in wanted:
        if not isinstance(made, kind):
            raise ConfigError(
                f"{owner.capitalize()}: tool {name!r} works on the environment {kind.__name__}, and the {owner} has a "
                f"{type(made).__name__}: a rollout has one environment, which all its tools share"
            )


def check_environment_used(environment: Any, tools: Iterable[Tool]) -> None:
    """Refuse an environment that no tool takes; where a program plays, it may run tools of its own."""
    if environment is not None and all(tool.schema.slot is None for tool in tools):
        raise ConfigError(
            f"Agent: no tool takes the environment {type(make(environment)).__name__}: annotate a parameter of a tool "
            "with it"
        )


_BUILTIN: Final[Registry[Any]] = Registry(
    "tools",
    {
        "python": "trunkline.tools.builtin.sandboxed:python",
        "shell": "trunkline.tools.builtin.sandboxed:shell",
        "files": "trunkline.tools.builtin.sandboxed:files",
        "calculator": "trunkline.tools.builtin.calculator:calculator",
        "http_get": "trunkline.tools.builtin.http_get:http_get",
    },
)
"""Tools of the library by the names that texts give them."""


def load_tools(given: str | Sequence[Any], what: str = "tools") -> list[Any]:
    """Return tools, also those within lists; a text names one of the library, a tool, a list, or a module of tools."""
    tools: list[Any] = []
    for item in [given] if isinstance(given, str) else given:
        if isinstance(item, str):
            for name in item.split(",") if _all_named(item) else [item]:
                tools += _load(name.strip(), what)
        elif isinstance(item, list | tuple):
            tools += load_tools(item, what)
        else:
            tools.append(item)
    return tools


def _all_named(text: str) -> bool:
    """Whether a text with commas is several names, and not the path of a file with commas in it."""
    return not Path(text.rpartition(":")[0] or text).exists()


def _load(name: str, what: str) -> list[Tool[..., Any]]:
    """Return the tools that a name leads to."""
    builtin, equals, hosts = name.partition("=")
    if builtin in _BUILTIN:
        if equals and builtin != "http_get":
            raise ConfigError(f"{what} {name!r}: {builtin} takes no value; write {builtin}")
        made = _BUILTIN[builtin](*(hosts.split("+") if equals else ()))
        return list(made) if isinstance(made, list) else [made]
    try:
        found = load_named(name, what)
    except ConfigError as problem:
        if ":" in name or "." in name:
            raise
        raise ConfigError(f"{problem}; tools of the library are {_BUILTIN}") from None
    if ":" not in name:
        found = [value for value in vars(found).values() if isinstance(value, Tool)]
        if not found:
            raise ConfigError(f"{what} {name!r}: the module defines no tool; decorate its functions with @tool")
    listed = list(found) if isinstance(found, list | tuple) else [found]
    for item in listed:
        if not isinstance(item, Tool):
            raise ConfigError(f"{what} {name!r}: {type(item).__name__} is not a tool; decorate the function with @tool")
    return listed
