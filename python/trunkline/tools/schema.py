"""From a function's signature to a JSON schema and a decoder of arguments."""

from __future__ import annotations

import copy
import inspect
import re
import typing
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Union

import msgspec

from trunkline._internal.text import excerpt, loads, scrub
from trunkline.errors import ConfigError
from trunkline.tools.calls import fault
from trunkline.tools.environment import Environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline._internal.text import JSON

_SECTION: Final = re.compile(
    r"^(args|arguments|parameters|returns?|yields?|raises|examples?|notes?|attributes|warnings?)\s*:\s*$",
    re.IGNORECASE,
)
_ARGUMENTS: Final = frozenset({"args", "arguments", "parameters"})
_BLANK: Final = re.compile(r"\n(?:[^\S\n]*\n)+")
_ENTRY: Final = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")


class Docstring(NamedTuple):
    """The parts of a docstring that a model reads: the text before the first section, and a text for each parameter."""

    summary: str
    arguments: dict[str, str]


def parse(text: str | None) -> Docstring:
    """Read a docstring; one without sections is all summary."""
    lines = inspect.cleandoc(text or "").splitlines()
    sections = [number for number, line in enumerate(lines) if _SECTION.match(line)]
    summary = lines[: sections[0]] if sections else lines
    arguments: dict[str, str] = {}
    for start, end in zip(sections, [*sections[1:], len(lines)], strict=False):
        if lines[start].rstrip(" \t:").lower() in _ARGUMENTS:
            arguments.update(_entries(lines[start + 1 : end]))
    return Docstring(_join(summary), arguments)


def _entries(lines: list[str]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    margin: int | None = None
    current: list[str] | None = None
    for line in lines:
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        if indent == 0:
            break
        margin = indent if margin is None else margin
        entry = _ENTRY.match(line.strip()) if indent <= margin else None
        if entry:
            current = found.setdefault(entry.group(1), [])
            current.append(entry.group(2))
        elif current is not None:
            current.append(line.strip())
    return {name: " ".join(part for part in parts if part) for name, parts in found.items()}


def _join(lines: list[str]) -> str:
    paragraphs = _BLANK.split("\n".join(lines).strip())
    return "\n\n".join(" ".join(map(str.strip, paragraph.splitlines())) for paragraph in paragraphs)


Annotation = Any

_DEFS: Final = "#/$defs/"
_PATH: Final = re.compile(r"^(?P<what>.*?)(?: - at `(?P<key>key in )?\$(?P<path>.*)`)?$", re.DOTALL)
_MISSING: Final = re.compile(r"^Object missing required field `(.*)`$", re.DOTALL)
_UNKNOWN: Final = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_VARIADIC: Final[dict[object, str]] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}

_encoder = msgspec.json.Encoder()


class BadArguments(ValueError):
    """A model's arguments do not fit; the message tells the model which field and why."""


class EnvironmentSlot(NamedTuple):
    """A parameter that the schema leaves out: the rollout's environment, of the class it is annotated with."""

    name: str
    kind: type[Environment]


class Schema:
    """JSON Schema and decoder of a function's arguments, with its docstring and its slot for an environment, if any."""

    __slots__ = ("_decoder", "_names", "_plain", "_positional", "_struct", "docstring", "parameters", "slot")

    def __init__(
        self,
        struct: type[msgspec.Struct],
        parameters: dict[str, Any],
        docstring: Docstring,
        positional: int,
        slot: EnvironmentSlot | None,
    ) -> None:
        # Models often write "5" for 5: a number in a string is accepted where the type allows one reading.
        self._decoder = msgspec.json.Decoder(struct, strict=False)
        self._struct = struct
        self._names = struct.__struct_fields__
        self._positional = positional
        # Every argument is given, and by name.
        self._plain = not positional and not struct.__struct_defaults__
        self.parameters = parameters
        self.docstring = docstring
        self.slot = slot

    def decode(self, arguments: str) -> tuple[list[Any], dict[str, Any]]:
        """Read the JSON text of a call's arguments; return the positional and keyword arguments that it gives."""
        try:
            values = self._decoder.decode(arguments)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            values = self._read_odd(arguments)
        if self._plain:
            return [], msgspec.structs.asdict(values)
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for index, name in enumerate(self._names):
            value = getattr(values, name)
            if value is msgspec.UNSET:
                continue
            if index < self._positional and len(positional) == index:
                positional.append(value)
            elif index < self._positional:
                raise BadArguments(f"argument {name!r} needs every argument before it")
            else:
                named[name] = value
        return positional, named

    def as_json(self, arguments: str) -> dict[str, Any]:
        """Read the JSON text of a call's arguments, and return those it gives, converted, as JSON holds them."""
        try:
            values = self._decoder.decode(arguments)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            values = self._read_odd(arguments)
        found: dict[str, Any] = msgspec.to_builtins(values)
        return found

    def _read_odd(self, arguments: str) -> msgspec.Struct:
        """Read arguments that are blank, hold what no text can, or are wrong."""
        text = scrub(arguments) if arguments.strip() else "{}"
        try:
            return self._read(text)
        except msgspec.ValidationError as error:
            raise BadArguments(self._explain(str(error))) from None
        except RecursionError:
            raise BadArguments("the arguments are nested too deeply") from None
        except (msgspec.DecodeError, UnicodeError) as error:
            raise BadArguments(f"the arguments are not valid JSON: {fault(text, str(error))}") from None

    def _read(self, text: str) -> msgspec.Struct:
        try:
            return self._decoder.decode(text)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            if "\\u" not in text:
                raise
            try:
                value = loads(text)
            except ValueError:
                value = None
            if value is None:
                raise
            return msgspec.convert(value, self._struct, strict=False)

    def _explain(self, message: str) -> str:
        found = _PATH.match(message)
        what, key, path = found.group("what", "key", "path") if found else (message, None, None)
        place = excerpt((path or "").removeprefix("."), 80)
        missing, unknown = _MISSING.match(what), _UNKNOWN.match(what)
        if missing:
            where = f" in {place!r}" if place else ""
            return f"missing argument {missing.group(1)!r}{where}"
        if unknown:
            known = ", ".join(self._names) or "none"
            where = f" in {place!r}" if place else f"; the arguments are: {known}"
            return f"unknown argument '{excerpt(unknown.group(1), 80)}'{where}"
        reason = excerpt(what, 200).replace("`", "")
        reason = reason[:1].lower() + reason[1:]
        if not path:
            return f"the arguments must be one JSON object: {reason}"
        return f"argument '{place}'{' (a key)' if key else ''}: {reason}"


def build(function: Callable[..., Any], name: str) -> Schema:
    """Make the schema of the function of a tool; every parameter needs an annotation."""
    place = f"tool {name!r} ({getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', name)})"
    docstring = parse(getattr(function, "__doc__", None))
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    properties: dict[str, dict[str, Any]] = {}
    hints = _hints(function, place)
    positional = 0
    slot: EnvironmentSlot | None = None
    for parameter in _signature(function, place).parameters.values():
        annotation = _annotation(parameter, hints, place)
        if isinstance(annotation, type) and issubclass(annotation, Environment):
            slot = _slot(parameter, annotation, slot, place)
            continue
        notes = _notes(parameter, annotation, docstring, place)
        _check(parameter.name, annotation, place)
        positional += parameter.kind is inspect.Parameter.POSITIONAL_ONLY
        if parameter.default is inspect.Parameter.empty:
            fields.append((parameter.name, annotation))
        else:
            fields.append((parameter.name, Union[annotation, msgspec.UnsetType], msgspec.UNSET))  # noqa: UP007
        properties[parameter.name] = notes
    try:
        struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        parameters = _parameters(struct, properties)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{place} cannot be described: {error}") from None
    return Schema(struct, parameters, docstring, positional, slot)


def _slot(
    parameter: inspect.Parameter, kind: type[Environment], other: EnvironmentSlot | None, place: str
) -> EnvironmentSlot:
    if other is not None:
        raise ConfigError(
            f"{place}: {other.name!r} and {parameter.name!r} both take an environment; a rollout has one, so keep one"
        )
    if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        raise ConfigError(f"{place}: {parameter.name!r} takes the environment, so it must not be positional-only")
    return EnvironmentSlot(parameter.name, kind)


def _signature(function: Callable[..., Any], place: str) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        raise ConfigError(f"{place} has no signature to read; wrap it in a function with annotations") from None


def _hints(function: Callable[..., Any], place: str) -> dict[str, Annotation]:
    target = inspect.unwrap(function)
    if not inspect.isroutine(target):
        target = getattr(target, "func", None) or type(target).__call__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except NameError as error:
        raise ConfigError(
            f"{place}: an annotation names {error.name!r}, which is not defined at the module's top level"
        ) from None
    except (TypeError, SyntaxError, AttributeError) as error:
        raise ConfigError(f"{place}: an annotation cannot be read: {error}") from None


def _annotation(parameter: inspect.Parameter, hints: dict[str, Annotation], place: str) -> Annotation:
    star = _VARIADIC.get(parameter.kind)
    if star:
        raise ConfigError(
            f"{place}: parameter {star}{parameter.name} cannot be described to a model; name each argument"
        )
    if parameter.name not in hints:
        hint = "; decorate a function, not a method" if parameter.name in {"self", "cls"} else ", for example `: str`"
        raise ConfigError(f"{place}: parameter {parameter.name!r} has no annotation; give it a type{hint}")
    return hints[parameter.name]


def _notes(parameter: inspect.Parameter, annotation: Annotation, docstring: Docstring, place: str) -> dict[str, Any]:
    notes: dict[str, Any] = {}
    description = docstring.arguments.get(parameter.name, "")
    for extra in getattr(annotation, "__metadata__", ()):  # of Annotated[type, ...]
        text = extra if isinstance(extra, str) else getattr(extra, "description", None)
        if isinstance(text, str) and text:
            description = text
    if description:
        notes["description"] = description
    if parameter.default is not inspect.Parameter.empty:
        try:
            notes["default"] = msgspec.to_builtins(parameter.default)
            _encoder.encode(notes["default"])
        except (TypeError, ValueError, RecursionError):
            notes.pop("default", None)
    return notes


def _check(name: str, annotation: Annotation, place: str) -> None:
    try:
        msgspec.json.schema(annotation)
        msgspec.json.Decoder(annotation, strict=False)
    except (TypeError, ValueError, RecursionError) as error:
        shown = annotation.__name__ if isinstance(annotation, type) else str(annotation)
        detail = f": {error}" if "union" in str(error) else ""
        raise ConfigError(
            f"{place}: parameter {name!r} has the type {shown}, which a model cannot send{detail}; use "
            "str, int, float, bool, list, dict, Literal, Enum, a dataclass, a TypedDict, or a union of these"
        ) from None


def _parameters(struct: type[msgspec.Struct], notes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    schema = msgspec.json.schema(struct)
    definitions = schema.get("$defs", {})
    root = definitions.pop(schema["$ref"].removeprefix(_DEFS))
    kept: dict[str, Any] = {}
    properties = {
        name: {**_inline(value, definitions, kept, ()), **notes[name]} for name, value in root["properties"].items()
    }
    required = root.get("required", [])
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return parameters | {"$defs": kept} if kept else parameters


def _inline(value: JSON, definitions: dict[str, JSON], kept: dict[str, JSON], inside: tuple[str, ...]) -> JSON:
    """Replace references by their definitions, since chat templates may not follow them; recursive ones stay."""
    if isinstance(value, list):
        return [_inline(item, definitions, kept, inside) for item in value]
    if not isinstance(value, dict):
        return value
    reference = value.get("$ref")
    if isinstance(reference, str):
        name = reference.removeprefix(_DEFS)
        if name in kept:
            return dict(value)
        if name in inside:
            kept[name] = {}
            kept[name] = _inline(copy.deepcopy(definitions[name]), definitions, kept, (*inside, name))
            return dict(value)
        return _inline(definitions[name], definitions, kept, (*inside, name))
    if "enum" in value and "type" not in value:
        kinds = {type(item) for item in value["enum"]}
        if kinds <= {str}:
            value = {"type": "string", **value}
        elif kinds <= {int}:
            value = {"type": "integer", **value}
    # A title is the Python class's name; a property that happens to be called title is a dict, not a string.
    return {
        key: _inline(item, definitions, kept, inside)
        for key, item in value.items()
        if not (key == "title" and isinstance(item, str))
    }
