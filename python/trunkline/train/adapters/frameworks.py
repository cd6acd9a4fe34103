"""Imports of the frameworks of trainers, when they are first used."""

from __future__ import annotations

import importlib
from typing import Any

from trunkline.errors import ConfigError


def load_framework(module: str, extra: str) -> Any:
    """Import a module of a framework; ConfigError says which import failed, and the extra that brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as missing:
        raise ConfigError(f"{module} cannot be imported ({missing}): pip install 'trunkline[{extra}]'") from None
