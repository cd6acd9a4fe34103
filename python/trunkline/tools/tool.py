"""The ``@tool`` decorator: a Python function that a model may call."""

from __future__ import annotations

import functools
import inspect
import re
from typing import TYPE_CHECKING, Any, Final, Generic, overload

from trunkline.bounds import number, shown, text
from trunkline.errors import ConfigError
from trunkline.tools.schema import Schema, build

if TYPE_CHECKING:
    from collections.abc import Callable

    # With defaults, so that a plain `Tool` is a complete type; at run time they do not matter.
    from typing_extensions import ParamSpec, TypeVar

    P = ParamSpec("P", default=...)
    R = TypeVar("R", default=Any)
else:
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")

__all__ = ["Tool", "tool"]

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class Tool(Generic[P, R]):
    """A function with a name, a description and a schema. Calling it calls the function.

    Attributes:
        name: What the model calls it.
        description: What the model is told about it.
        schema: Reads and converts the arguments of a call.
        timeout: Seconds a call may take, or None for the toolbox's own limit.
        is_async: Whether calling the function gives an awaitable.
        replay: Whether its calls may run again to bring an environment to a fork point.
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float | None = None,
        replay: bool = True,
    ) -> None:
        """Wrap a function.

        Args:
            function: Sync or async; every parameter annotated.
            name: Overrides the function's own name.
            description: Overrides the docstring's summary.
            timeout: Seconds a call may take.
            replay: See :func:`tool`.

        Raises:
            ConfigError: The function cannot be described to a model, or an option is wrong.
        """
        if not callable(function):
            raise ConfigError(f"a tool must be a function, not {type(function).__name__}")
        self.name = getattr(function, "__name__", type(function).__name__) if name is None else name
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"tool name {shown(self.name)} must be 1 to 64 of a-z, A-Z, 0-9, _ and -; pass @tool(name=)"
            )
        if timeout is not None:
            number(f"tool {self.name!r}: timeout", timeout, 0, above=True, unit="seconds")
        self.schema: Schema = build(function, self.name)
        self.description = text(
            f"tool {self.name!r}: description", self.schema.docstring.summary if description is None else description
        )
        if not isinstance(replay, bool):
            raise ConfigError(f"tool {self.name!r}: replay must be true or false, not {shown(replay)}")
        self.timeout = timeout
        self.replay = replay
        self.is_async = _is_async(function)
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
    def module(self) -> str:
        """Module that defines the function; with :attr:`qualname` it finds the tool in another process."""
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
        # By value: a tool that a name leads to is not pickled at all when it goes to a worker.
        return _rebuild, (self.__wrapped__, self.name, self.description, self.timeout, self.replay)


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(
    *, name: str | None = None, description: str | None = None, timeout: float | None = None, replay: bool = True
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    replay: bool = True,
) -> Any:
    """Make a function callable by a model; use as ``@tool`` or ``@tool(name=..., timeout=...)``.

    The signature becomes the schema, the docstring's summary the description, its ``Args:`` section the text
    of each argument. A call's arguments are checked and converted before the function runs.

    Args:
        function: The function, sync or async.
        name: Overrides the function's name.
        description: Overrides the docstring's summary.
        timeout: Seconds a call may take; the toolbox's limit when not given.
        replay: For a tool that takes an :class:`~trunkline.tools.environment.Environment`: whether a recorded call may
            run again to bring a fresh environment to a fork point. Say no where it has effects beyond the environment.

    Returns:
        A :class:`Tool`, or a decorator that makes one.

    Raises:
        ConfigError: A parameter has no annotation, is variadic, or has a type a model cannot send.
    """

    def wrap(wrapped: Callable[..., Any]) -> Tool[..., Any]:
        return Tool(wrapped, name=name, description=description, timeout=timeout, replay=replay)

    return wrap if function is None else wrap(function)


def _rebuild(
    function: Callable[..., Any], name: str, description: str, timeout: float | None, replay: bool
) -> Tool[..., Any]:
    return Tool(function, name=name, description=description, timeout=timeout, replay=replay)


def _is_async(function: Callable[..., Any]) -> bool:
    target: Any = function
    while isinstance(target, functools.partial):
        target = target.func
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(type(target).__call__)
