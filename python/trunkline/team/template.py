"""A role's prompt: text with slots, and braces that mean nothing unless a slot's name stands in them."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from trunkline.bounds import shown
from trunkline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["Slot", "Template"]

_BRACED: Final = re.compile(r"\{([^\W\d]\w*)\}")
_LIKE: Final = 0.75
"""How like a slot's name a braced word must be to be taken for a slip of the pen."""


class Slot(NamedTuple):
    """A place in a template.

    Attributes:
        name: What stands there.
    """

    name: str


class Template:
    """A text with slots: ``{question}`` where that is one; every other brace is a brace.

    What fills a slot is never looked at again, so a question that holds ``{context}`` stays as it is.

    Args:
        text: The text.
        slots: The names that are slots.
        where: What to call it, for messages.

    Attributes:
        parts: Text and slots in their order; no text is empty.
        slots: The slots it has.

    Raises:
        ConfigError: A word in braces is almost the name of a slot.
    """

    def __init__(self, text: str, slots: Collection[str], where: str) -> None:
        self.parts: list[str | Slot] = []
        end = 0
        for found in _BRACED.finditer(text):
            name = found[1]
            if name not in slots:
                _check_slip(name, slots, where)
                continue
            self._add(text[end : found.start()])
            self.parts.append(Slot(name))
            end = found.end()
        self._add(text[end:])
        self.slots = frozenset(part.name for part in self.parts if isinstance(part, Slot))

    def _add(self, text: str) -> None:
        if text:
            self.parts.append(text)

    def fill(self, values: Mapping[str, str]) -> str:
        """Return the text with its slots filled.

        Args:
            values: A text for every slot.
        """
        return "".join(values[part.name] if isinstance(part, Slot) else part for part in self.parts)


def _check_slip(name: str, slots: Collection[str], where: str) -> None:
    near = difflib.get_close_matches(name, slots, 1, _LIKE)
    if near:
        raise ConfigError(
            f"{where} has {{{name}}}, which is no slot but almost {{{near[0]}}}; its slots are "
            f"{', '.join(f'{{{slot}}}' for slot in sorted(slots))}, and others are named in slots={shown([name])}"
        )
