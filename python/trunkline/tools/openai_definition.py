"""Tools from a definition in the OpenAI form and a function that implements it."""

from __future__ import annotations

import copy
import functools
import inspect
import warnings
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline._internal.text import loads, scrub
from trunkline._internal.validation import check_text, short_repr, type_phrase
from trunkline.errors import ConfigError, ToolError
from trunkline.tools.calls import fault
from trunkline.tools.schema import BadArguments, Docstring, Schema
from trunkline.tools.tool import NAME, Tool, ToolPolicy, gives_awaitable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trunkline._internal.text import JSON

_FORM: Final = '{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}'
_MOST_LISTED: Final = 20
_NOTHING: Final[dict[str, Any]] = {"type": "object", "properties": {}}


class DefinitionSchema(Schema):
    """Arguments as a definition describes them; only a function that is a ``Tool`` checks more than their presence."""

    __slots__ = ("_own", "_reads", "_required", "_signature")

    def __init__(
        self, parameters: dict[str, Any], function: Callable[..., Any], own: Schema | None, *, reads: bool
    ) -> None:
        self.parameters = parameters
        self.docstring = Docstring("", {})
        self.slot = None
        self._own = own
        self._reads = reads
        required = parameters.get("required")
        self._required = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        try:
            self._signature: inspect.Signature | None = inspect.signature(function)
        except (TypeError, ValueError):  # some functions written in C show none
            self._signature = None

    def decode(self, arguments: str) -> tuple[list[Any], dict[str, Any]]:
        if not self._reads:
            return [], {}
        if self._own is not None:
            return self._own.decode(arguments)
        named = _object(scrub(arguments) if arguments.strip() else "{}")
        for name in self._required:
            if name not in named:
                raise BadArguments(f"missing argument {name!r}")
        if self._signature is not None:
            try:
                self._signature.bind(**named)
            except TypeError as error:
                raise BadArguments(f"the arguments do not fit the function: {error}") from None
        return [], named

    def as_json(self, arguments: str) -> dict[str, Any]:
        return DefinitionSchema.decode(self, arguments)[1] if self._own is None else self._own.as_json(arguments)


class DefinedTool(Tool[..., Any]):
    """A tool whose definition reaches the model as its owner wrote it."""

    def __init__(
        self, definition: JSON, function: Callable[..., Any], place: str = "definition", *, reads: bool = True
    ) -> None:
        self._definition = definition_of(definition, place)
        told = self._definition["function"]
        self.name = told["name"]
        if not callable(function):
            raise ConfigError(f"tool {self.name!r}: its implementation must be a function, not {short_repr(function)}")
        own = function if isinstance(function, Tool) else None
        if own is not None and (own.policy.isolated or own.schema.slot is not None):
            what = "runs in processes of its own" if own.policy.isolated else "works on an environment"
            raise ConfigError(
                f"tool {self.name!r}: its implementation is a tool that {what}; put it among the tools themselves, "
                "in place of the definition"
            )
        # The same function, however it came here.
        inner = function if own is None else own.__wrapped__
        functools.update_wrapper(self, inner, updated=())
        self.policy = ToolPolicy() if own is None else own.policy
        self.schema = DefinitionSchema(
            told.get("parameters") or _NOTHING, inner, None if own is None else own.schema, reads=reads
        )
        self.description = told.get("description") or ""
        self.is_async = gives_awaitable(inner)
        self.__wrapped__ = inner
        self._given = function, reads

    @property
    def definition(self) -> dict[str, Any]:
        return copy.deepcopy(self._definition)

    def __reduce__(self) -> tuple[Any, ...]:
        function, reads = self._given
        return functools.partial(DefinedTool, reads=reads), (self._definition, function)


def definition_of(given: JSON, place: str) -> dict[str, Any]:
    """Return a copy of a checked tool definition, which error messages call ``place``."""
    if not isinstance(given, dict):
        raise ConfigError(
            f"{place} is {type_phrase(given)}, expected a tool definition {_FORM}, or an object made with @tool"
        )
    if given.get("type", "function") != "function":
        raise ConfigError(f"{place}: type must be 'function', not {short_repr(given['type'])}")
    told = given.get("function")
    if not isinstance(told, dict):
        flat = "its fields stand beside type; " if "name" in given else ""
        raise ConfigError(f"{place} has no object in the field function; {flat}write {_FORM}")
    name = told.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigError(f"{place}: function.name must be 1 to 64 of a-z, A-Z, 0-9, _ and -, not {short_repr(name)}")
    if told.get("description") is not None:
        check_text(f"{place}: function.description", told["description"])
    parameters = told.get("parameters")
    if parameters is not None and (not isinstance(parameters, dict) or parameters.get("type", "object") != "object"):
        raise ConfigError(
            f"{place}: function.parameters must be a JSON schema whose type is 'object', not {short_repr(parameters)}"
        )
    try:
        copied: dict[str, Any] = msgspec.json.decode(msgspec.json.encode({"type": "function", **given}))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{place} is not JSON: {error}") from None
    return copied


def tools_of(tools: object, functions: Mapping[str, Callable[..., Any]]) -> list[Tool[..., Any]]:
    """Return the tools of definitions and ``@tool`` objects; a definition without a function answers by an error.

    Functions that no definition names are ignored, unless a definition lacks its function: ConfigError.
    """
    if tools is None:
        tools = []
    if not isinstance(tools, list | tuple):
        raise ConfigError(f"tools must be a list of tool definitions, not {type_phrase(tools)}")
    made: list[Tool[..., Any]] = []
    missing = False
    for position, one in enumerate(tools):
        place = f"tools[{position}]"
        if isinstance(one, Tool):
            if one.name in functions:
                raise ConfigError(
                    f"{place} is a tool, and tool_functions has {short_repr(one.name)} as well: "
                    "leave one of the two out"
                )
            made.append(one)
            continue
        name = definition_of(one, place)["function"]["name"]
        known = name in functions
        missing |= not known
        made.append(DefinedTool(one, functions[name] if known else _missing(name), place, reads=known))
    names = [tool.name for tool in made]
    left = [name for name in functions if name not in names]
    if left and missing:  # likely a misspelt name
        listed = ", ".join(names[:_MOST_LISTED])
        raise ConfigError(f"tool_functions has {short_repr(left[0])}, and tools defines no tool of that name: {listed}")
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two of tools are named {short_repr(name)}: rename one")
    return made


def _missing(name: str) -> Callable[..., Any]:
    """Return the function of a definition without one: a warning at its first call, an error at every call."""
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


def _object(written: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(written)
    except RecursionError:
        raise BadArguments("the arguments are nested too deeply") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        try:
            value = loads(written)
        except (ValueError, RecursionError):
            raise BadArguments(f"the arguments are not valid JSON: {fault(written, str(error))}") from None
    if not isinstance(value, dict):
        raise BadArguments(f"the arguments must be one JSON object, not {type_phrase(value)}")
    return value
