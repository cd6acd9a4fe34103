"""Small HTML of objects for notebooks: every text escaped, no script, no colour of its own."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING, Final

from trunkline._internal.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST_ROWS: Final = 50
"""Rows of a table that are shown."""

_MOST: Final = 2000
"""Characters of a text that are shown."""

_LEFT: Final = ' style="text-align:left;vertical-align:top;white-space:pre-wrap"'


def escaped(text: str, most: int = _MOST) -> str:
    """A text from anywhere as HTML: its lines, escaped for a terminal too, cut after ``most`` characters."""
    lines = (printable(line) for line in text[:most].split("\n"))
    return html.escape("\n".join(lines)) + (f"… ({len(text) - most:,} more characters)" if len(text) > most else "")


def number(value: float | None) -> str:
    """A number with at most three decimals; a dash for None and NaN."""
    return "-" if value is None or math.isnan(value) else f"{value:,.3f}".rstrip("0").rstrip(".")


def interval(value: float, low: float | None, high: float | None) -> str:
    """A number with its interval."""
    return f"{number(value)}  [{number(low)}, {number(high)}]"


def table(title: str, rows: Iterable[Sequence[str]], head: Sequence[str] = (), *, more: int = 0) -> str:
    """A table of texts that are not escaped yet; ``more`` is how many rows are left out."""
    above = "".join(f"<th{_LEFT}>{escaped(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td{_LEFT}>{escaped(cell)}</td>' for cell in row)}</tr>" for row in rows)
    left = f"<p>{more:,} more</p>" if more > 0 else ""
    header = f"<thead><tr>{above}</tr></thead>" if head else ""
    return f"<div><strong>{escaped(title, 300)}</strong><table>{header}<tbody>{body}</tbody></table>{left}</div>"
