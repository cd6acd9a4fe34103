"""Where in an input file something was found, for errors that say so."""

from __future__ import annotations

import msgspec

from trunkline.errors import InputError

__all__ = ["Place"]


class Place(msgspec.Struct, frozen=True):
    """One row of an input file.

    Attributes:
        path: The file, as the caller named it.
        line: One-based line in a text file with lines.
        item: One-based row where there are no lines: an array's item, a table's row.
    """

    path: str
    line: int | None = None
    item: int | None = None

    def error(self, message: str) -> InputError:
        """An error about this row."""
        if self.line is None and self.item is not None:
            message = f"row {self.item}: {message}"
        return InputError(message, self.path, self.line)

    def __str__(self) -> str:
        return f"line {self.line}" if self.line is not None else f"row {self.item}"
