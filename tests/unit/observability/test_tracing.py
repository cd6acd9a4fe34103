"""Traces of runs, as an exporter of OpenTelemetry gets them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from atlas import agent, tasks
from duo_team import TASKS, Duo, generate
from foreign import capital_cities, error, serving
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from trunkline.errors import ConfigError
from trunkline.llm.batch.batcher import BatchLLM
from trunkline.llm.config import LLM
from trunkline.observability.opentelemetry import Tracing
from trunkline.runner.pool import Pool
from trunkline.runner.run import run
from trunkline.strategies.chain import Chain

USAGE = {"prompt_tokens": 100, "completion_tokens": 20}


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


def tracing(exporter: InMemorySpanExporter, **options: bool) -> Tracing:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracing(provider=provider, **options)


def under(spans: tuple[ReadableSpan, ...], parent: ReadableSpan) -> list[ReadableSpan]:
    return [span for span in spans if span.parent and span.parent.span_id == parent.context.span_id]


@pytest.mark.parametrize("workers", [0, 2])
def test_each_rollout_is_a_span_over_its_turns_and_tool_calls(workers: int, exporter, tmp_path: Path):
    begun = time.time_ns()
    with serving(lambda body: capital_cities(body) | {"usage": USAGE}) as server:
        result = run(
            agent(name="scout"),
            tasks(),
            llm=LLM(server.url, max_concurrency=4),
            strategy=Chain(2),
            workers=workers,
            tracing=tracing(exporter),
            out=tmp_path / "r",
        )
    spans = exporter.get_finished_spans()
    rollouts = [span for span in spans if span.name == "invoke_agent scout"]
    trees = {tree.task.id: tree for tree in result}
    assert len(rollouts) == 10
    for span in rollouts:
        made = trees[span.attributes["trunkline.task"]].rollouts[span.attributes["trunkline.rollout"]]
        below = under(spans, span)
        chats = [each for each in below if each.name == "chat m"]
        tools = [each for each in below if each.name.startswith("execute_tool ")]
        assert len(chats) == made.turns
        assert len(chats) + len(tools) == len(below)
        assert {each.kind for each in chats} == {SpanKind.CLIENT}
        assert {each.attributes["gen_ai.operation.name"] for each in tools} <= {"execute_tool"}
        assert chats[0].attributes["gen_ai.usage.input_tokens"] == 100
        assert chats[0].attributes["gen_ai.usage.output_tokens"] == 20
        assert chats[-1].attributes["gen_ai.response.finish_reasons"] == ("stop",)
        assert span.attributes["trunkline.termination"] == "answer"
        assert span.status.status_code == StatusCode.UNSET
        assert all(begun < each.start_time <= each.end_time <= time.time_ns() for each in (span, *below))
    failed = [span for span in spans if span.attributes.get("error.type") == "tool_error"]
    assert {span.name for span in failed} >= {"execute_tool (unknown)"}
    assert not any("messages" in name or "result" in name for span in spans for name in span.attributes)


def test_content_is_captured_where_it_is_asked_for(exporter, tmp_path: Path, local_pool: Pool):
    with serving(capital_cities) as server:
        llm = LLM(server.url, max_concurrency=4)
        run(agent(), tasks()[:1], llm=llm, pool=local_pool, tracing=tracing(exporter, content=True), out=tmp_path / "r")
    spans = exporter.get_finished_spans()
    chats = [span.attributes["gen_ai.output.messages"] for span in spans if span.name == "chat m"]
    assert '"type": "tool_call"' in chats[0]
    assert "Paris" in chats[-1]
    assert "capital: Paris" in {span.attributes.get("gen_ai.tool.call.result") for span in spans}


@pytest.mark.breaks_rollouts
def test_what_fails_says_how(exporter, tmp_path: Path, local_pool: Pool):
    with serving(lambda body: error(400, "too long")) as server:
        llm = LLM(server.url, max_concurrency=4)
        run(agent(), tasks()[:1], llm=llm, pool=local_pool, tracing=tracing(exporter), out=tmp_path / "r")
    chat, rollout = exporter.get_finished_spans()
    assert chat.attributes["error.type"] == "BadRequest"
    assert rollout.attributes["error.type"] == "bad_request"
    assert {chat.status.status_code, rollout.status.status_code} == {StatusCode.ERROR}


def test_tracing_is_a_switch_or_a_tracing_and_nothing_else():
    with pytest.raises(ConfigError, match="tracing must be True"):
        run(agent(), tasks(), llm=LLM("http://127.0.0.1:9/v1"), tracing="yes")


def test_neither_library_is_imported_where_nobody_asks():
    code = """
import sys
import trunkline as tl
tl.run, tl.observability.PrometheusServer, tl.observability.Tracing, tl.observability.log_to
print([name for name in sys.modules if name.partition(".")[0] in ("opentelemetry", "prometheus_client")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_turns_of_a_team_are_their_roles_and_its_rollouts_the_teams(exporter, tmp_path: Path):
    run(Duo(model="m"), TASKS, llm=BatchLLM(generate), tracing=tracing(exporter), out=tmp_path / "r")
    spans = exporter.get_finished_spans()
    rollouts = [span for span in spans if span.name == "invoke_agent team"]
    assert [span.attributes["gen_ai.agent.name"] for span in rollouts] == ["team"] * 3
    for span in rollouts:
        said = [each.attributes["gen_ai.agent.name"] for each in under(spans, span)]
        assert said == ["solver", "verifier"] * (len(said) // 2)
