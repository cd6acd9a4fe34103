"""Imports of frameworks for tests: skipped with a reason where one is missing, and quiet about their own warnings."""

from __future__ import annotations

import importlib
import warnings
from types import ModuleType

import pytest

MARKS = [
    pytest.mark.trainers,
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::trunkline"),
]
"""For ``pytestmark``: warnings of ours are errors, those of frameworks are not."""


def load(*names: str) -> list[ModuleType]:
    """Import modules, or skip the test module that asks for them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [_load(name) for name in names]


def _load(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        pytest.skip(f"{missing.name} is not installed: tests/trainers/run installs it", allow_module_level=True)


load("torch")  # what every module here needs, beside it or in what it imports
