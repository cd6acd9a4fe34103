"""How sure tries are, by the name of what says so, or by a function of one's own."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from trunkline.cli.named import make_named
from trunkline.errors import ConfigError
from trunkline.printable import said

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.tree.trajectory import Trajectory

__all__ = ["CONFIDENCES", "read_confidence"]

_HOME: Final = "trunkline.score.confidence"

CONFIDENCES: Final = ("logprob", "entropy", "verbalised", "reward", "value")
"""Functions of that module; it is imported when one is asked for."""


def read_confidence(given: str) -> Callable[[Trajectory], float]:
    """Return what says how sure a rollout is.

    Args:
        given: One of :data:`CONFIDENCES`, or ``MODULE:FUNCTION``.

    Raises:
        ConfigError: There is none such, or it cannot be called; later, where it fails or returns no number.
    """
    found: Any = make_named(given, "--confidence", CONFIDENCES, _own)
    if not callable(found):
        raise ConfigError(f"--confidence {given!r}: it is no function of a rollout")

    def sure(rollout: Trajectory) -> float:
        try:
            return float(found(rollout))
        except Exception as problem:
            raise ConfigError(f"--confidence {given}: {type(problem).__name__}: {said(problem)}") from problem

    return sure


def _own(name: str) -> Any:
    return getattr(importlib.import_module(_HOME), name)
