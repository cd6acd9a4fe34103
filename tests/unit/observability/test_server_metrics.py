"""What model servers say of themselves: read, shown and kept."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from pathlib import Path

import pytest
from atlas import agent, tasks
from foreign import Server, message, serving
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from trunkline.cli.output import summary_rows
from trunkline.errors import ConfigError
from trunkline.llm.config import LLM
from trunkline.observability.live import ProgressLine
from trunkline.observability.observers import Observer, Progress
from trunkline.observability.server_metrics import ServerMetrics, server_load
from trunkline.runner.run import run
from trunkline.store.stats.summary import ServerLoad, ServerUse

NAMES = {
    "vllm": ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
    "sglang": ("num_running_reqs", "num_queue_reqs", "token_usage"),
    "llamacpp": ("requests_processing", "requests_deferred", "kv_cache_usage_ratio"),
}
engines = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 5000), st.floats(0, 1)), min_size=1, max_size=4)


@given(st.sampled_from(sorted(NAMES)), engines, st.text(max_size=10))
def test_gauges_are_read_as_the_library_of_prometheus_writes_them(software: str, values: list, label: str):
    registry = CollectorRegistry()
    gauges = [
        Gauge(f"{software}:{name}", "{} is 3", ["model", "engine"], registry=registry) for name in NAMES[software]
    ]
    Gauge(f"{software}:other_num_requests_running", "9", registry=registry).set(9)
    for number, figures in enumerate(values):
        for gauge, figure in zip(gauges, figures, strict=True):
            gauge.labels(model=label, engine=str(number)).set(figure)
    load = server_load(generate_latest(registry).decode())
    running, waiting, cache = zip(*values, strict=True)
    assert load == ServerLoad(sum(running), sum(waiting), max(cache))


@given(st.text() | st.floats().map(str))
def test_anything_else_is_no_load_and_no_error(text: str):
    load = server_load(f"vllm:num_requests_running {text}")
    assert load is None or 0 <= load.running <= 1e9
    load = server_load(f"sglang:token_usage {text}")
    assert load is None or 0 <= load.cache <= 1


@given(st.lists(st.builds(ServerLoad, st.integers(0, 99), st.integers(0, 99), st.floats(0, 1)), min_size=1))
def test_means_and_the_longest_queue(loads: list[ServerLoad]):
    use = ServerUse()
    for load in loads:
        use = use.after(load)
    count = len(loads)
    assert (use.samples, use.now, use.longest) == (count, loads[-1], max(load.waiting for load in loads))
    for field in ("running", "waiting", "cache"):
        assert getattr(use, field) == pytest.approx(sum(getattr(load, field) for load in loads) / count)


def waiting_for(server_of: list[Server], looks: int):
    """An answer that comes once the metrics were asked for so many times."""

    async def answer(body: dict) -> dict:
        while server_of[0].looked < looks:
            await asyncio.sleep(0.005)
        return message("<answer>x</answer>")

    return answer


def test_a_run_keeps_them_and_shows_them(tmp_path: Path):
    servers: list[Server] = []
    with serving(waiting_for(servers, 3)) as server:
        server.metrics = ["vllm:num_requests_running 3", "vllm:num_requests_waiting 2", "vllm:kv_cache_usage_perc 0.5"]
        servers.append(server)
        llm = LLM(server.url, api_key="secret-of-this-test")
        result = run(agent(), tasks()[:1], llm=llm, workers=0, out=tmp_path / "r", observers=[ServerMetrics(0.01)])
    summary = result.summary()
    assert summary.resources is not None
    assert summary.resources.memory > 10 << 20
    (use,) = summary.resources.servers.values()
    assert use.samples >= 2
    rows = dict(summary_rows(summary))
    assert rows["server"] == (f"{server.url}: 3.0 requests at once, 2.0 waiting (at most 2), its cache 50.0 % full")
    assert "MiB of memory" in rows["time"]
    stream = io.StringIO()
    shot = Progress(1, 1, servers={"http://h/\x1b[2J": use})
    assert ProgressLine(stream).beside(shot) == "http://h/\\x1b[2J: 3 running, 2 waiting, cache 50% full"
    assert json.loads(json.dumps(result.summary().resources.servers[server.url].samples)) == use.samples


def test_a_server_without_metrics_is_named_and_asked_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    servers: list[Server] = []
    with serving(waiting_for(servers, 1)) as server:
        servers.append(server)
        result = run(
            agent(), tasks()[:3], llm=LLM(server.url), workers=0, out=tmp_path / "r", observers=[ServerMetrics(0.01)]
        )
        assert server.looked == 1
    assert result.summary().resources.servers == {}
    assert f"{server.url} gives no metrics that are known: it answers 404 to GET /metrics" in caplog.text


def test_an_address_that_is_not_ascii_is_named_and_asked_once(caplog: pytest.LogCaptureFixture):
    ServerMetrics()._ask(["http://127.0.0.1:9/\u00e9/v1", "http://b\u00fc..cher/v1"], threading.Event())
    assert caplog.text.count("gives no metrics that are known") == 2


class Loud(Observer):
    """Raises at an event, and counts the others."""

    def __init__(self, event: str) -> None:
        self.told: list[str] = []
        self.event = event

    def __getattribute__(self, name: str):
        if name in {"begin", "committed", "completed", "look", "end"}:
            return lambda *_: self.tell(name)
        return super().__getattribute__(name)

    def tell(self, name: str) -> None:
        self.told.append(name)
        if name == self.event:
            raise ValueError(f"at {name}")


@pytest.mark.parametrize("event", ["begin", "committed", "completed", "end"])
def test_an_observer_that_raises_is_told_no_more(tmp_path: Path, event: str, caplog: pytest.LogCaptureFixture):
    loud, quiet = Loud(event), Loud("")
    with serving(lambda _body: message("<answer>x</answer>")) as server:
        result = run(agent(), tasks(), llm=LLM(server.url), workers=0, out=tmp_path / "r", observers=[loud, quiet])
    assert result.summary().finished == len(tasks())
    assert loud.told.count(event) == 1
    assert loud.told[-1] == event
    assert {"begin", "committed", "completed", "end"} <= set(quiet.told)
    assert caplog.text.count("Loud raised, and is told no more of this run") == 1


def test_what_is_no_observer_is_refused():
    for wrong in ("wandb", [object()], Loud("")):
        with pytest.raises(ConfigError, match=r"observers must be a list of .*, not "):
            run(agent(), tasks(), observers=wrong)
