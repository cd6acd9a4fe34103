"""Rows of data sets that need an extra: Parquet files and Hugging Face data sets."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from trunkline.errors import ConfigError, InputError
from trunkline.printable import printable
from trunkline.store.place import Place
from trunkline.types import JSON

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["HUB", "read_hub", "read_parquet"]

Rows = Iterator[tuple[Place, JSON]]

HUB = re.compile(
    r"(?:hf:)?(?P<name>[\w.-]+/[\w.-]+?)"
    r"(?::(?P<config>[\w.-]+))?(?:@(?P<revision>[\w./-]+))?(?:#(?P<split>[\w.-]+))?",
    re.ASCII,
)
"""``org/name``, then optionally ``:config``, ``@revision`` and ``#split``."""

_SPLITS = ("test", "validation", "train")


def _extra(module: str, extra: str, what: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ConfigError(f"{what} needs an extra: pip install 'trunkline[{extra}]'") from None


def _plain(row: JSON) -> JSON:
    # Dates, bytes and decimals become strings, NaN becomes null: what a task holds must be JSON.
    return msgspec.json.decode(msgspec.json.encode(row, enc_hook=str))


def read_parquet(path: str, limit: int | None = None) -> Rows:
    """Rows of a Parquet file.

    Args:
        path: A local file.
        limit: How many rows will be read, if known.

    Yields:
        Each row with its place.

    Raises:
        ConfigError: pyarrow is not installed.
        InputError: The file is not Parquet or is damaged.
    """
    parquet = _extra("pyarrow.parquet", "parquet", f"{path}: reading Parquet")
    item = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=min(limit or 1024, 1024)):
                for row in batch.to_pylist():
                    item += 1
                    yield Place(path, item=item), _plain(row)
    except (OSError, ValueError) as problem:
        # pyarrow's own errors derive from these two; errors about a row are raised outside of this generator.
        raise InputError(f"not a readable Parquet file: {printable(str(problem), 120)}", path) from None


def _split(available: list[str], wanted: str | None, path: str) -> str:
    if wanted is not None:
        if wanted in available:
            return wanted
        raise ConfigError(f"{path}: no split {wanted}; there is {', '.join(available)}")
    if len(available) == 1:
        return available[0]
    for split in _SPLITS:
        if split in available:
            return split
    raise ConfigError(f"{path}: name a split by appending #split: {', '.join(available)}")


def read_hub(path: str) -> Rows:
    """Rows of a Hugging Face data set, fetched as they are needed.

    Without ``#split`` the only split is read, else ``test``, ``validation`` or ``train``, whichever comes
    first.

    Args:
        path: See :data:`HUB`.

    Yields:
        Each row with its place.

    Raises:
        ConfigError: The path cannot be one, or the ``datasets`` package is not installed.
        InputError: The data set cannot be loaded.
    """
    found = HUB.fullmatch(path)
    if found is None:
        raise ConfigError(
            f"{printable(path, 120)}: not a data set path; the form is org/name[:config][@revision][#split]"
        )
    what = f"{path}: no such local file, and reading a Hugging Face data set"
    datasets = _extra("datasets", "hf", what)
    try:
        splits = datasets.load_dataset(found["name"], found["config"], revision=found["revision"], streaming=True)
    except Exception as problem:  # noqa: BLE001 - the package has no common error class
        reason = printable(f"{type(problem).__name__}: {problem}", 300)
        raise InputError(f"cannot be loaded as a Hugging Face data set: {reason}", path) from None
    rows = iter(splits[_split(list(splits), found["split"], path)])
    item = 0
    while True:
        try:
            row = next(rows, None)
        except Exception as problem:  # noqa: BLE001 - as above
            raise InputError(f"row {item + 1} cannot be read: {printable(str(problem), 300)}", path) from None
        if row is None:
            return
        item += 1
        yield Place(path, item=item), _plain(row)
