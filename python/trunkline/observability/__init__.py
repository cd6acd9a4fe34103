"""How a run is watched (``trunkline.observability``): its events, progress, logs, Prometheus, OpenTelemetry, sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline._internal.exports import exports

if TYPE_CHECKING:
    from trunkline.observability.event_stream import EventListener, EventStream
    from trunkline.observability.events import (
        ErrorEvent,
        EventsDropped,
        MessageEvent,
        ObservationEvent,
        RequestedCall,
        RolloutEnded,
        RolloutForked,
        RolloutStarted,
        RunEnded,
        RunEvent,
        RunStarted,
        ScoreEvent,
        ScorePart,
        TaskEnded,
        ToolCallEvent,
        TurnEvent,
    )
    from trunkline.observability.logging import log_to
    from trunkline.observability.observers import Observer, Progress
    from trunkline.observability.opentelemetry import Tracing
    from trunkline.observability.prometheus import PrometheusServer
    from trunkline.observability.server_metrics import ServerMetrics
    from trunkline.observability.sinks import MLflow, Sink, Trackio, Wandb

__all__ = [
    "ErrorEvent",
    "EventListener",
    "EventStream",
    "EventsDropped",
    "MLflow",
    "MessageEvent",
    "ObservationEvent",
    "Observer",
    "Progress",
    "PrometheusServer",
    "RequestedCall",
    "RolloutEnded",
    "RolloutForked",
    "RolloutStarted",
    "RunEnded",
    "RunEvent",
    "RunStarted",
    "ScoreEvent",
    "ScorePart",
    "ServerMetrics",
    "Sink",
    "TaskEnded",
    "ToolCallEvent",
    "Tracing",
    "Trackio",
    "TurnEvent",
    "Wandb",
    "log_to",
]

__getattr__ = exports(
    __name__,
    """
observability.event_stream: EventListener EventStream
observability.events: ErrorEvent EventsDropped MessageEvent ObservationEvent RequestedCall RolloutEnded
observability.events: RolloutForked RolloutStarted RunEnded RunEvent RunStarted ScoreEvent
observability.events: ScorePart TaskEnded ToolCallEvent TurnEvent
observability.logging: log_to
observability.observers: Observer Progress
observability.opentelemetry: Tracing
observability.prometheus: PrometheusServer
observability.server_metrics: ServerMetrics
observability.sinks: MLflow Sink Trackio Wandb
""",
)
