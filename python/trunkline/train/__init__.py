"""Views for training: what a run's trees hold, as records. Nothing is trained here, and no verdict is passed over."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trunkline.train.pairs import Pair, pairs
from trunkline.train.rows import Row, Rows, rows
from trunkline.train.selection import write_jsonl
from trunkline.train.turns import TurnSample, turns

if TYPE_CHECKING:
    from trunkline.train import torch

__all__ = ["Pair", "Row", "Rows", "TurnSample", "pairs", "rows", "torch", "turns", "write_jsonl"]

_FRAMEWORKS = ("torch",)
"""Modules for one framework each, imported when they are first used."""


def __getattr__(name: str) -> Any:
    if name in _FRAMEWORKS:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
