"""How sure tries are, by the name of what says so, or by a function of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trunkline.cli.named import make_named
from trunkline.errors import ConfigError
from trunkline.printable import said
from trunkline.score.confidence import CONFIDENCES

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.tree.trajectory import Trajectory

__all__ = ["read_confidence"]


def read_confidence(given: str) -> Callable[[Trajectory], float]:
    """Return what says how sure a rollout is.

    Args:
        given: One of :data:`~trunkline.score.confidence.CONFIDENCES`, or ``MODULE:FUNCTION``.

    Raises:
        ConfigError: There is none such, or it cannot be called; later, where it fails or returns no number.
    """
    found: Any = make_named(given, "--confidence", CONFIDENCES, CONFIDENCES.__getitem__)
    if not callable(found):
        raise ConfigError(f"--confidence {given!r}: it is no function of a rollout")

    def sure(rollout: Trajectory) -> float:
        try:
            return float(found(rollout))
        except Exception as problem:
            raise ConfigError(f"--confidence {given}: {type(problem).__name__}: {said(problem)}") from problem

    return sure
