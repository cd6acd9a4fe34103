"""Records of a view, written to a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trunkline.errors import ConfigError
from trunkline.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["write_jsonl"]


def write_jsonl(records: Iterable[msgspec.Struct], path: str | Path) -> int:
    """Write records as JSON lines, one at a time.

    Args:
        records: Of :func:`trunkline.train.turns`, ``pairs`` or ``rows``. NaN becomes null.
        path: The file, which must not exist. Nothing is left of it if a record cannot be had.

    Returns:
        How many were written.

    Raises:
        ConfigError: There is a file already, or it cannot be made.
    """
    place, encoder, count = Path(path), msgspec.json.Encoder(), 0
    try:
        stream = place.open("xb")
    except OSError as problem:
        raise ConfigError(f"cannot write {printable(str(place))}: {problem.strerror or problem}") from None
    try:
        with stream:
            for record in records:
                stream.write(encoder.encode(record) + b"\n")
                count += 1
    except BaseException:
        place.unlink(missing_ok=True)
        raise
    return count
