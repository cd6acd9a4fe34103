"""Things with options on the command line: ``NAME:OPTION=VALUE,...``, of the library's own or ``MODULE:CLASS:...``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from trunkline.bounds import shown
from trunkline.cli.options import load_named
from trunkline.errors import ConfigError, UsageError
from trunkline.printable import said

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["make_named", "read_value"]

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
    values = _read(options, f"{option} {name}", open_)
    needed = [key for key in _required(kind) if key not in values and key not in others]
    if needed:
        says = ",".join(f"{key}=..." for key in needed)
        raise ConfigError(f"{option} {name} needs {', '.join(needed)}: {option} {name}:{says}")
    try:
        return kind(**values, **{name: value for name, value in others.items() if name in known})
    except UsageError as problem:
        raise ConfigError(f"{option} {name}: {problem}") from None
    except Exception as problem:
        raise ConfigError(f"{option} {name}: {type(problem).__name__}: {said(problem)}") from problem


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
    raise ConfigError(f"{what} must be {_type_name(kind)}, not {shown(text)}")


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
