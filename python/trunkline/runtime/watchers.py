"""The observers that a run was given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline.bounds import shown
from trunkline.errors import ConfigError
from trunkline.runtime.metrics import Metrics
from trunkline.runtime.tracing import Tracing

if TYPE_CHECKING:
    from trunkline.runtime.observer import Observer
    from trunkline.runtime.options import Given

__all__ = ["watchers"]


def watchers(told: Given) -> tuple[str, list[Observer]]:
    """Return what engines are to tell for traces (see ``Job.traced``), and who observes.

    Raises:
        ConfigError: One is no observer, or its library is missing.
    """
    if told.metrics is not None and not isinstance(told.metrics, Metrics):
        raise ConfigError(f"metrics must be a trunkline.Metrics, not {shown(told.metrics)}")
    if not isinstance(told.tracing, bool | Tracing):
        raise ConfigError(f"tracing must be True or a trunkline.Tracing, not {shown(told.tracing)}")
    observers: list[Observer] = [] if told.metrics is None else [told.metrics]
    if told.tracing is False:
        return "", observers
    tracing = Tracing() if told.tracing is True else told.tracing
    return "content" if tracing.content else "spans", [*observers, tracing]
