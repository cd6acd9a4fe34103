"""Public names of a package, each imported from its module on first use; old names lead on with a warning."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from trunkline._internal.old_names import warn_renamed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def exports(package: str, homes: str, renamed: Mapping[str, str] | None = None) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a package, and have ``dir`` and ``help`` list its ``__all__``.

    Args:
        package: Its ``__name__``.
        homes: Lines of a module below ``trunkline`` and its public names; ``name=other`` is called ``other`` there, and
            ``name=`` is the module itself.
        renamed: New dotted names below ``trunkline`` by old ones, which lead on until 0.2.
    """
    found: dict[str, tuple[str, str]] = {}
    for line in filter(None, homes.split("\n")):
        module, names = line.split(": ")
        for name, equals, other in (word.partition("=") for word in names.split()):
            found[name] = f"trunkline.{module}", other if equals else name

    own = vars(sys.modules[package])
    own["__dir__"] = lambda: own["__all__"]

    def getattr_(name: str) -> Any:
        if renamed is not None and name in renamed:
            new = renamed[name]
            warn_renamed(f"{package}.{name} is called trunkline.{new} now")
            value: Any = sys.modules["trunkline"]
            for part in new.split("."):
                value = getattr(value, part)
            return value
        if name not in found:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        home, attribute = found[name]
        value = importlib.import_module(home)
        if attribute:
            value = getattr(value, attribute)
        own[name] = value
        return value

    return getattr_
