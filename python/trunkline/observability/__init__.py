"""How a run is watched (``trunkline.observability``): its progress, logs, Prometheus, OpenTelemetry, sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline._internal.exports import exports

if TYPE_CHECKING:
    from trunkline.observability.logging import log_to
    from trunkline.observability.observers import Observer, Progress
    from trunkline.observability.opentelemetry import Tracing
    from trunkline.observability.prometheus import PrometheusServer
    from trunkline.observability.server_metrics import ServerMetrics
    from trunkline.observability.sinks import MLflow, Sink, Trackio, Wandb

__all__ = [
    "MLflow",
    "Observer",
    "Progress",
    "PrometheusServer",
    "ServerMetrics",
    "Sink",
    "Tracing",
    "Trackio",
    "Wandb",
    "log_to",
]

__getattr__ = exports(
    __name__,
    """
observability.logging: log_to
observability.observers: Observer Progress
observability.opentelemetry: Tracing
observability.prometheus: PrometheusServer
observability.server_metrics: ServerMetrics
observability.sinks: MLflow Sink Trackio Wandb
""",
)
