"""Google-style docstrings: the summary of a function and what it says about each argument."""

from __future__ import annotations

import inspect
import re
from typing import Final, NamedTuple

__all__ = ["Docstring", "parse"]

_SECTION: Final = re.compile(
    r"^(args|arguments|parameters|returns?|yields?|raises|examples?|notes?|attributes|warnings?)\s*:\s*$",
    re.IGNORECASE,
)
_ARGUMENTS: Final = frozenset({"args", "arguments", "parameters"})
_ENTRY: Final = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")


class Docstring(NamedTuple):
    """The parts of a docstring that a model is shown.

    Attributes:
        summary: Everything before the first section, paragraphs kept, lines joined.
        arguments: Text by parameter name.
    """

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
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            paragraphs[-1].append(line.strip())
        elif paragraphs[-1]:
            paragraphs.append([])
    return "\n\n".join(" ".join(paragraph) for paragraph in paragraphs if paragraph)
