"""What a run says while nothing goes on, and how its workers are shown."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from atlas import agent, tasks
from foreign import capital_cities, error, serving

import trunkline.observability.observers as stall
from trunkline.llm.config import LLM
from trunkline.observability.live import ProgressLine
from trunkline.observability.observers import Progress, StallDetector, explain, pause_of
from trunkline.protocol.messages import EndpointState, OldestRollout, WorkerState
from trunkline.runner.run import run


def state(**changes: object) -> WorkerState:
    return WorkerState(
        **(
            {
                "lag": 0.012,
                "memory": 310 << 20,
                "rollouts": 64,
                "requests": 64,
                "request": 34.0,
                "tools": 0,
                "tool": "",
                "tool_seconds": 0.0,
            }
            | changes
        )
    )


def stalled(quiet: float = 34.0, **changes: object) -> Progress:
    return Progress(tasks=10, rollouts=10, workers=2, quiet=quiet, **changes)


def test_requests_that_nobody_answers_are_named_with_their_endpoint_and_the_next_try():
    endpoints = [EndpointState("http://a/v1", 64, 3, "http://a/v1 answered 503")]
    shot = stalled(engines={0: state(endpoints=endpoints, retry=8.2)}, silent={1: 12.0})
    assert explain(shot) == (
        "no progress for 34 s: 64 requests wait at http://a/v1, the oldest for 34 s; 3 of them wait to be let in at "
        "http://a/v1; http://a/v1 gets no requests for now: http://a/v1 answered 503; worker 1 has not answered for "
        "12 s; next retry in 8 s"
    )


def test_an_endpoint_that_asked_to_wait_is_named_with_the_seconds_left():
    asked = EndpointState("http://a/v1", 0, 3, "http://a/v1 answered 429", 58.4)
    shot = stalled(engines={0: state(requests=0, endpoints=[asked])})
    assert "http://a/v1 gets no requests for now: http://a/v1 answered 429 (asked again in 58 s)" in str(explain(shot))


def test_a_run_pauses_where_no_endpoint_of_any_worker_gets_requests():
    closed, other, still = (
        EndpointState("http://a/v1", 0, 3, "429" if pause else "", pause) for pause in (58.0, 12.0, 0.0)
    )
    assert pause_of(stalled(engines={0: state(endpoints=[closed]), 1: state(endpoints=[other])})) == 12.0
    assert pause_of(stalled(engines={0: state(endpoints=[closed]), 1: state(endpoints=[still])})) == 0.0
    assert pause_of(stalled()) == 0.0


def test_an_endpoint_that_is_out_for_good_does_not_hide_that_the_others_asked_to_wait():
    asked = EndpointState("http://a/v1", 0, 3, "http://a/v1 answered 429", 58.0)
    out = EndpointState("http://b/v1", 0, 0, "http://b/v1 answered 401")
    assert pause_of(stalled(engines={0: state(endpoints=[asked, out])})) == 58.0
    assert pause_of(stalled(engines={0: state(endpoints=[out])})) == 0.0


def test_a_tool_that_takes_long_is_named():
    shot = stalled(engines={0: state(requests=0, tools=2, tool="visit", tool_seconds=33.0)})
    assert explain(shot) == "no progress for 34 s: 2 tool calls run, visit for 33 s"


def test_nothing_is_said_before_thirty_seconds_and_again_only_when_they_doubled(caplog: pytest.LogCaptureFixture):
    stalls = StallDetector()
    assert explain(stalled(29.9)) is None
    for second in range(200):
        stalls.look(stalled(float(second)))
    assert len(caplog.records) == 3
    stalls.look(stalled(0.0))
    stalls.look(stalled(31.0))
    assert len(caplog.records) == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_a_server_that_stalls_is_named_while_the_run_waits(workers: int, tmp_path: Path, caplog, monkeypatch):
    monkeypatch.setattr(stall, "STALLED", 1.0)
    seen: list[str] = []
    slow: list[OldestRollout] = []

    def watch(shot: Progress) -> None:
        seen.append(explain(shot) or "")
        slow.extend(each for engine in shot.engines.values() for each in engine.oldest)

    with serving(capital_cities, delay=3.0) as server:
        llm = LLM(server.url, max_concurrency=4)
        run(agent(max_turns=1), tasks()[:2], llm=llm, workers=workers, watch=watch, out=tmp_path / "r")
        line = next(line for line in seen if " wait" in line)
        assert f"wait at {server.url}" in line or f"waits at {server.url}" in line
    assert any(record.getMessage().startswith("no progress for") for record in caplog.records)
    assert "model" in {each.place for each in slow}
    assert {each.task for each in slow} <= {task.id for task in tasks()}
    assert max(each.seconds for each in slow) > 1


def test_a_server_that_refuses_for_a_while_is_named_with_the_next_retry(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(stall, "STALLED", 1.0)
    seen: list[str] = []
    refused: list[int] = []

    def handler(body: dict) -> object:
        refused.append(1)
        if len(refused) < 3:
            answer = error(503, "loading")
            answer.headers["Retry-After"] = "3"
            return answer
        return capital_cities(body)

    with serving(handler) as server:
        llm = LLM(server.url, max_concurrency=1)
        run(agent(), tasks()[:1], llm=llm, workers=1, watch=lambda s: seen.append(explain(s) or ""), out=tmp_path / "r")
    assert any("next retry in " in line for line in seen)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [20, 60, 200])
def test_a_terminal_of_any_width_shows_workers_and_stalls_and_cuts_nothing(columns: int, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.delenv("NO_COLOR", raising=False)
    now = [100.0]
    stream = Terminal()
    with ProgressLine(stream, clock=lambda: now[0], verbose=True) as progress:
        progress.update(Progress(tasks=1, rollouts=1, engines={0: state(), 1: state(tools=3)}))
        now[0] += 1
        progress.update(stalled(engines={0: state()}))
    text = stream.getvalue()
    assert "w0 12 ms lag" in text
    assert "no progress for" in text
    if columns == 200:
        assert "w0 12 ms lag 310 MiB 64 requests | w1 12 ms lag 310 MiB 64 requests 3 tools" in text


def test_a_dumb_terminal_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with ProgressLine(stream) as progress:
        progress.update(Progress(tasks=1, rollouts=1, engines={0: state()}))
    assert "\x1b" not in stream.getvalue()
    assert "lag" not in stream.getvalue()
