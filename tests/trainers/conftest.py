"""Tests against real frameworks: collected only with ``-m trainers``, since their imports take seconds."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the modules out of a run that does not ask for them."""
    asked = "trainers" in config.option.markexpr
    return True if collection_path.name.startswith("test_") and not asked else None
