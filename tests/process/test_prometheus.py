"""Metrics of runs, read as Prometheus reads them."""

from __future__ import annotations

import os
import signal
import urllib.request
from pathlib import Path

import pytest
from atlas import CAPITALS, agent, tasks
from foreign import capital_cities, error, serving
from prometheus_client.parser import text_string_to_metric_families

from trunkline.errors import ConfigError
from trunkline.llm.config import LLM
from trunkline.llm.pricing import Price
from trunkline.observability.prometheus import PrometheusServer, address_of
from trunkline.runner.run import run
from trunkline.store.reader import RunReader
from trunkline.store.schema import CallRow
from trunkline.tools.tool import tool


@tool(name="lookup")
def deadly(country: str) -> str:
    """Look a country up, and die of Brazil.

    Args:
        country: Its name.
    """
    if country == "Brazil":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"capital: {CAPITALS[country]}"


USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 60}}


def scraped(metrics: PrometheusServer) -> dict[tuple[str, ...], float]:
    """Every sample by its name and its labels' values."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_counted_is_what_the_run_file_has(workers: int, tmp_path: Path):
    with serving(lambda body: capital_cities(body) | {"usage": USAGE}) as server, PrometheusServer(0) as metrics:
        llm = LLM(server.url, max_concurrency=4, price=Price(prompt=1, cached=0.5, generated=2))
        result = run(agent(), tasks(), llm=llm, workers=workers, metrics=metrics, out=tmp_path / "r")
        found = scraped(metrics)
    with RunReader.open(result.path) as reader:
        calls = [call for _, call in reader.calls()]
        uses = [use for _, use in reader.tool_calls()]
        size = sum(len(data) for number in range(5) for data in reader.deltas(number))
    summary = result.summary()
    assert found["trunkline_rollouts_total", "answer"] == 5
    assert found["trunkline_tasks_total", "finished"] == 5
    assert (
        found["trunkline_calls_total", "agent", server.url, "answered"] == len(calls) == found["trunkline_turns_total",]
    )
    assert found["trunkline_tokens_total", "agent", server.url, "prompt"] == summary.usage.prompt
    assert found["trunkline_tokens_total", "agent", server.url, "generated"] == summary.usage.generated
    assert found["trunkline_call_seconds_count", "agent", server.url] == len(calls)
    assert found["trunkline_call_seconds_sum", "agent", server.url] == pytest.approx(
        sum(call.micros for call in calls) / 1e6
    )
    assert found["trunkline_tool_seconds_count", "lookup"] == sum(use.tool == "lookup" for use in uses)
    assert found["trunkline_tool_errors_total", "(unknown)"] == sum(use.failed for use in uses if use.tool != "lookup")
    assert found["trunkline_run_file_bytes_total",] == size
    assert found["trunkline_spent_money_total",] == pytest.approx(sum(each.money for each in result.costs().values()))
    assert found["trunkline_commit_seconds_count",] == found["trunkline_batches_total",] >= 1
    assert found["trunkline_workers",] == 0, "the run is over"


@pytest.mark.breaks_rollouts
def test_workers_that_died_and_rollouts_that_were_lost_are_counted(tmp_path: Path):
    with serving(capital_cities) as server, PrometheusServer(0) as metrics:
        llm = LLM(server.url, max_concurrency=4)
        result = run(agent(tools=[deadly]), tasks()[:3], llm=llm, workers=1, metrics=metrics, out=tmp_path / "r")
        found = scraped(metrics)
    with RunReader.open(result.path) as reader:
        deaths = [event.kind for event in reader.events()].count("died")
    assert found["trunkline_worker_deaths_total",] == deaths >= 1


@pytest.mark.breaks_rollouts
def test_calls_that_fail_are_told_from_others(tmp_path: Path):
    with serving(lambda body: error(400, "too long")) as server, PrometheusServer(0) as metrics:
        llm = LLM(server.url, max_concurrency=4)
        run(agent(), tasks()[:2], llm=llm, workers=0, metrics=metrics, out=tmp_path / "r")
        found = scraped(metrics)
    assert found["trunkline_calls_total", "agent", server.url, "failed"] == 2
    assert found["trunkline_rollouts_total", "bad_request"] == 2


def test_labels_are_bounded_printable_and_without_secrets():
    metrics = PrometheusServer()
    for number in range(100):
        metrics._called(CallRow(f"http://u:geheim@h\x1b[31m/{number}", 1, 1, 0, 1, 1, 0, 1, 1, 0))
    labels = {
        sample.labels["endpoint"]
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "trunkline_calls_total"
    }
    assert len(labels) == 65
    assert "(other)" in labels
    assert not any("geheim" in label or "\x1b" in label for label in labels)


def test_a_port_that_is_taken_and_an_address_that_is_none_are_named():
    with (
        PrometheusServer(0) as first,
        pytest.raises(ConfigError, match=f"cannot serve metrics at 127.0.0.1:{first.port}"),
    ):
        PrometheusServer(first.port)
    assert address_of("9464") == ("127.0.0.1", 9464)
    assert address_of("[::1]:9464") == ("::1", 9464)
    assert address_of("0.0.0.0:1") == ("0.0.0.0", 1)
    for wrong in ("", "host", "1:99999", "-1"):
        with pytest.raises(ConfigError, match="HOST:"):
            address_of(wrong)
    with pytest.raises(ConfigError, match="metrics must be a"):
        run(agent(), tasks(), llm=LLM("http://127.0.0.1:9/v1"), metrics=9464)
