"""Named choices that options and specs name, and ``NAME:OPTION=VALUE,...`` read into what a name stands for."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from trunkline._internal.old_names import current_name
from trunkline._internal.text import describe_error, printable
from trunkline._internal.validation import did_you_mean, short_repr
from trunkline.errors import ConfigError, UsageError

T = TypeVar("T")


class Registry(MutableMapping[str, T], Generic[T]):
    """Named choices of one ``kind``: objects, or ``module:attribute``, imported when first used."""

    # ``configured`` has, for names of functions, the classes that take options in their place; ``former`` has names of
    # earlier releases.

    def __init__(
        self,
        kind: str,
        entries: Mapping[str, T | str],
        configured: Mapping[str, Any] | None = None,
        former: Mapping[str, str] | None = None,
    ) -> None:
        self._kind = kind
        self._entries: dict[str, Any] = dict(entries)
        self._configured = dict(configured or {})
        self._former = dict(former or {})

    def __getitem__(self, name: str) -> T:
        entry: T = self._loaded(self._entries, self._called(name))
        return entry

    def __setitem__(self, name: str, entry: T) -> None:
        self._entries[name] = entry

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return self._called(name) in self._entries

    def __str__(self) -> str:
        return ", ".join(self._entries)

    def unknown(self, name: str, *further: str) -> str:
        """Return the error text for an unknown name: all known names, and the one that is spelled almost like it."""
        known = (*self._entries, *further)
        return f"{short_repr(name)} is none of {', '.join(known)}{did_you_mean(name, known)}"

    def find(self, name: str, *, options: bool = False) -> Any:
        """Return the entry of a name, or its class with options; ConfigError if unknown or not importable."""
        name = self._called(name)
        if name not in self._entries:
            raise ConfigError(f"{self._kind}: {self.unknown(name)}")
        return self._loaded(self._configured if options and name in self._configured else self._entries, name)

    def make(
        self,
        given: str,
        option: str,
        beside: Callable[[type], Mapping[str, Any]] = lambda _kind: {},
        also: Callable[[type], Mapping[str, Any]] = lambda _kind: {},
    ) -> Any:
        """Make the object that the value of a command-line option names; ConfigError for an invalid value."""
        # The value is NAME or NAME:OPTION=VALUE,..., where NAME is an entry or MODULE:CLASS; several values of one
        # option stand between slashes. ``beside`` has a class's options that are given by other means, ``also`` the
        # types of further names that its constructor takes.
        name, _, options = given.partition(":")
        if name in self:
            kind = self.find(name, options=bool(options))
        else:
            attribute, _, options = options.partition(":")
            if not attribute or "=" in attribute:
                raise ConfigError(f"{option} {given!r}: {self.unknown(name)}; your own is written module:Class")
            name = f"{name}:{attribute}"
            kind = load_named(name, option)
        if not isinstance(kind, type):
            if options:
                raise ConfigError(f"{option} {given!r}: {name} is no class, so it takes no options")
            return kind
        known, others = _parameters(kind), beside(kind)
        open_ = {key: hint for key, (hint, _) in known.items() if key not in others}
        further = {key: hint for key, hint in also(kind).items() if key not in open_}
        values = _read(options, f"{option} {name}", open_ | further)
        needed = [key for key, (_, required) in known.items() if required and key not in values and key not in others]
        if needed:
            says = ",".join(f"{key}=..." for key in needed)
            raise ConfigError(f"{option} {name} needs {', '.join(needed)}: {option} {name}:{says}")
        try:
            return kind(**values, **{key: value for key, value in others.items() if key in known})
        except UsageError as problem:
            raise ConfigError(f"{option} {name}: {problem}") from None
        except Exception as problem:
            raise ConfigError(f"{option} {name}: {describe_error(problem)}") from problem

    def _called(self, name: Any) -> Any:
        """The entry's own spelling: an underscore is as good as a hyphen, and names of earlier releases lead on."""
        if name in self._entries or not isinstance(name, str):
            return name
        name = self._former.get(name, name)
        return next((one for one in self._entries if one.replace("_", "-") == name.replace("_", "-")), name)

    def _loaded(self, entries: dict[str, Any], name: str) -> Any:
        entry = entries[name]
        if isinstance(entry, str):
            module, _, attribute = entry.partition(":")
            try:
                entry = entries[name] = getattr(importlib.import_module(module), attribute)
            except (ImportError, AttributeError) as problem:
                raise ConfigError(f"{self._kind} {name} cannot be imported: {printable(str(problem))}") from problem
        return entry


def load_named(name: str, what: str) -> Any:
    """Import ``module:attribute``, also from the current folder, or ``file.py:attribute``; ConfigError says why not."""
    module_name, _, attribute = name.partition(":")
    file = None
    if module_name.endswith(".py"):
        file = Path(module_name).absolute()
        if not file.is_file():
            raise ConfigError(f"{what} {name!r}: there is no such file")
        module_name = file.stem
    if not module_name or not re.fullmatch(r"[\w.]+", module_name):
        raise ConfigError(f"{what} {name!r}: write module:attribute, for example mytools:search")
    with contextlib.suppress(OSError):
        here = str(Path.cwd() if file is None else file.parent)
        if here not in sys.path:
            sys.path.insert(0, here)
    try:
        module_name, attribute = current_name(module_name, attribute)
        found = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{what} {name!r}: cannot import {module_name!r}: {describe_error(error)}") from error
    if file is not None and not file.samefile(getattr(found, "__file__", None) or os.devnull):
        raise ConfigError(f"{what} {name!r}: Python has another module called {module_name!r}: rename the file")
    for part in filter(None, attribute.split(".")):
        if not hasattr(found, part):
            raise ConfigError(f"{what} {name!r}: {module_name!r} has no {attribute!r}")
        found = getattr(found, part)
    return found


def load_extra(module: str, extra: str, what: str) -> Any:
    """Import a module of an optional dependency; ``what`` needs the extra that brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as missing:
        raise ConfigError(f"{what} needs an extra ({missing}): pip install 'trunkline[{extra}]'") from None


def _parameters(kind: type) -> dict[str, tuple[Any, bool]]:
    """The options of a class: by name, the type and whether it is required."""
    try:
        taken = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):
        return {}
    try:
        # Of a struct or dataclass the hints are those of its fields, of another class those of its constructor.
        hints = get_type_hints(kind) | get_type_hints(kind.__init__)  # type: ignore[misc]
    except Exception:  # noqa: BLE001 - a name in a user's annotation that leads nowhere; values are text then
        hints = {}
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {one.name: (hints.get(one.name, str), one.default is one.empty) for one in taken if one.kind in named}


def _read(text: str, what: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """Read ``OPTION=VALUE,...`` into the types of the options."""
    values: dict[str, Any] = {}
    for part in text.split(",") if text else ():
        key, equals, value = part.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or key not in known:
            there = f"its options are {', '.join(known)}{did_you_mean(key, known)}" if known else "it has no options"
            raise ConfigError(f"{what}: {part.strip()!r} is no option=value that it knows; {there}")
        if key in values:
            raise ConfigError(f"{what}: option {key} is given twice")
        values[key] = read_value(value.strip(), f"{what}: {key}", known[key])
    return values


def read_value(text: str, what: str, kind: Any) -> Any:
    """Read a value, or several between slashes, into a type; ConfigError if it is no value of that type."""

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


_WORDS: Final[dict[Any, str]] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    NoneType: "none",
}


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
