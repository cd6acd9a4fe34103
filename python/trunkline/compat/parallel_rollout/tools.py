"""Tool definitions and the functions behind them, joined to tools."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final

from trunkline.bounds import kind, shown
from trunkline.errors import ConfigError, ToolError
from trunkline.tools.defined import Defined, definition_of
from trunkline.tools.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trunkline.types import JSON

__all__ = ["join"]

_MOST_LISTED: Final = 20


def join(tools: Sequence[JSON | Tool] | None, functions: Mapping[str, Any]) -> list[Tool]:
    """Make tools of definitions and functions.

    Args:
        tools: Definitions in the OpenAI form, and objects made with ``@tool``; None for no tools.
        functions: What implements the definitions, by name. A definition without one is told to the model all the same:
            a call of it is answered with a sentence that says so, and the first one is a warning. Functions beyond the
            definitions, as a whole registry has them, are offered to nobody.

    Returns:
        The tools, in the order they were given.

    Raises:
        ConfigError: A definition or a function cannot be used, or one is left over where a definition lacks its own.
    """
    if tools is None:
        tools = []
    if not isinstance(tools, list | tuple):
        raise ConfigError(f"tools must be a list of tool definitions, not {kind(tools)}")
    made: list[Tool] = []
    for position, one in enumerate(tools):
        place = f"tools[{position}]"
        if isinstance(one, Tool):
            if one.name in functions:
                raise ConfigError(
                    f"{place} is a tool, and tool_functions has {shown(one.name)} as well: leave one of the two out"
                )
            made.append(one)
            continue
        name = definition_of(one, place)["function"]["name"]
        if name in functions:
            made.append(Defined(one, functions[name], place))
        else:
            made.append(Defined(one, _missing(name), place, reads=False))
    names = [tool.name for tool in made]
    left = [name for name in functions if name not in names]
    # All have theirs: a registry of more. Else somebody misspelt a name.
    if left and not all(isinstance(one, Tool) or tool.name in functions for one, tool in zip(tools, made, strict=True)):
        listed = ", ".join(names[:_MOST_LISTED])
        raise ConfigError(f"tool_functions has {shown(left[0])}, and tools defines no tool of that name: {listed}")
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two of tools are named {shown(name)}: rename one")
    return made


def _missing(name: str) -> Callable[..., Any]:
    """What stands behind a definition that nobody implements."""
    told = False

    async def missing() -> str:
        nonlocal told
        if not told:
            told = True
            warnings.warn(
                f"the model called the tool {name!r}, and no implementation was given for it: pass "
                f"tool_functions={{{name!r}: function}}, or put an object made with @tool into tools (said once)",
                UserWarning,
                stacklevel=2,
            )
        raise ToolError(f"Error: no implementation was given for {name}; it cannot be used.")

    return missing
