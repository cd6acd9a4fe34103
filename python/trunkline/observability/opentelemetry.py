"""Traces by OpenTelemetry's conventions for generative AI, made in the controller (extra: otel)."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, Any

from trunkline.errors import ConfigError
from trunkline.observability.observers import Observer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trunkline.observability.observers import Progress
    from trunkline.protocol.job import Job
    from trunkline.protocol.messages import Batch, Done
    from trunkline.rollout.sampling.inflight import SpanRecord
    from trunkline.store.schema import TakenRow
    from trunkline.types import Task

_LONGEST = 65_536
"""Characters of captured content in one attribute."""


class Tracing(Observer):
    """A span for each rollout (``invoke_agent``), under it those of its turns (``chat``) and tools (``execute_tool``).

    Spans are made when their events are in the run file, with the times of the events. A rollout that is continued in
    another worker keeps its span.

    Args:
        content: Whether texts of models and tools are captured; they may be private, and are large.
        provider: An OpenTelemetry ``TracerProvider``; the global one when None.

    Raises:
        ConfigError: The library is missing.
    """

    def __init__(self, *, content: bool = False, provider: Any = None) -> None:
        try:
            self._api = importlib.import_module("opentelemetry.trace")
        except ImportError:
            raise ConfigError('tracing needs opentelemetry: pip install "trunkline[otel]"') from None
        from trunkline._core import __version__  # noqa: PLC0415 - beside the library that is optional

        self.content = content
        self._tracer = self._api.get_tracer("trunkline", __version__, provider)
        self._tasks: Sequence[Task] = ()
        self._model = self._agent = ""
        self._open: dict[tuple[int, int], Any] = {}

    def begin(self, job: Job, tasks: Sequence[Task], taken: Mapping[int, TakenRow]) -> None:
        """See ``Observer``."""
        self._tasks, self._model, self._agent = tasks, job.agent.model, job.agent.name

    def committed(self, worker_id: int, batch: Batch, seconds: float) -> None:
        """See ``Observer``."""
        for delta in batch.deltas:
            for record in delta.spans:
                if record.kind == "rollout":
                    self._end(delta.task, record)
                else:
                    self._span(worker_id, delta.task, record)

    def completed(self, done: Done) -> None:
        """See ``Observer``; open spans were lost with their workers."""
        for key in [key for key in self._open if key[0] == done.task]:
            span = self._open.pop(key)
            self._fail(span, "lost")
            span.end()

    def end(self, progress: Progress) -> None:
        """See ``Observer``; open spans end as unfinished."""
        for span in self._open.values():
            span.set_attribute("trunkline.unfinished", True)
            span.end()
        self._open.clear()

    def _span(self, worker_id: int, task: int, record: SpanRecord) -> None:
        kinds = self._api.SpanKind
        kind = kinds.CLIENT if record.kind == "chat" else kinds.INTERNAL
        name, attributes = _chat(record) if record.kind == "chat" else _tool(record)
        parent = self._api.set_span_in_context(self._rollout(task, record))
        attributes["trunkline.worker"] = worker_id
        span = self._tracer.start_span(name, parent, kind, attributes, start_time=record.started * 1000)
        if record.error:
            self._fail(span, record.error)
        span.end((record.started + record.micros) * 1000)

    def _rollout(self, task: int, record: SpanRecord) -> Any:
        """The span of a rollout, which begins with its first record."""
        key = (task, record.rollout)
        if key not in self._open:
            attributes = {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": self._agent,
                "gen_ai.provider.name": "openai",
                "gen_ai.request.model": self._model,
                "gen_ai.conversation.id": f"{self._tasks[task].id}/{record.rollout}",
                "trunkline.task": self._tasks[task].id,
                "trunkline.rollout": record.rollout,
            }
            name = f"invoke_agent {self._agent}"
            self._open[key] = self._tracer.start_span(
                name, None, self._api.SpanKind.INTERNAL, attributes, start_time=record.started * 1000
            )
        return self._open[key]

    def _end(self, task: int, record: SpanRecord) -> None:
        span = self._rollout(task, record)
        span.set_attribute("trunkline.termination", record.finish)
        if record.error:
            self._fail(span, record.error)
        span.end((record.started + record.micros) * 1000)
        del self._open[task, record.rollout]

    def _fail(self, span: Any, kind: str) -> None:
        span.set_attribute("error.type", kind)
        span.set_status(self._api.Status(self._api.StatusCode.ERROR))


def _chat(record: SpanRecord) -> tuple[str, dict[str, Any]]:
    found: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": record.model,
        "gen_ai.agent.name": record.name,
    }
    if record.prompt >= 0:
        found["gen_ai.usage.input_tokens"] = record.prompt
    if record.generated >= 0:
        found["gen_ai.usage.output_tokens"] = record.generated
    if record.finish:
        found["gen_ai.response.finish_reasons"] = [record.finish]
    if record.output:
        found["gen_ai.output.messages"] = _messages(record)[:_LONGEST]
    return f"chat {record.model}", found


def _tool(record: SpanRecord) -> tuple[str, dict[str, Any]]:
    found: dict[str, Any] = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": record.name,
        "gen_ai.tool.type": "function",
    }
    if record.output:
        found["gen_ai.tool.call.result"] = record.output[:_LONGEST]
    return f"execute_tool {record.name}", found


def _messages(record: SpanRecord) -> str:
    """A reply in the form of the conventions."""
    message = json.loads(record.output)
    parts: list[dict[str, Any]] = []
    if isinstance(message.get("content"), str) and message["content"]:
        parts.append({"type": "text", "content": message["content"]})
    for call in message.get("tool_calls") or ():
        function = call["function"]
        parts.append(
            {"type": "tool_call", "id": call["id"], "name": function["name"], "arguments": function["arguments"]}
        )
    return json.dumps([{"role": "assistant", "parts": parts, "finish_reason": record.finish}])
