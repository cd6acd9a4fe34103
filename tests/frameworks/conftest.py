"""Agents of real frameworks: collected only with ``-m frameworks``, since these are large."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the modules out of a run that does not ask for them."""
    asked = config.option.markexpr
    left = "frameworks" not in asked or "not frameworks" in asked
    return True if left and collection_path.name.startswith("test_") else None
