"""The hook of sinks: what they are told, in which order, and that none can end or hold up a run."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
from atlas import agent, tasks
from foreign import capital_cities, error, message, serving

import trunkline as tl
from trunkline.errors import ConfigError, EndpointError
from trunkline.observability import observers, sinks
from trunkline.observability.sinks import Sink

USAGE = {"prompt_tokens": 100, "completion_tokens": 20}
KEY = "sk-a-key-of-this-test-0123456789"


class Kept(Sink):
    """Keeps what it is told, and raises where that is asked for."""

    def __init__(self, fails: str = "") -> None:
        self.told: list[tuple] = []
        self.fails = fails

    def note(self, *what: object) -> None:
        self.told.append(what)
        if what[0] == self.fails:
            raise RuntimeError(f"no {self.fails}, {KEY}")

    def on_run_begin(self, name: str, config: dict) -> None:
        self.note("begin", name, config)

    def on_task(self, finished: int, figures: dict[str, float]) -> None:
        self.note("task", finished, figures)

    def on_run_end(self, state: str, figures: dict[str, float]) -> None:
        self.note("end", state, figures)


def play(sink: Sink, out: Path, handler: object = None, **options: object) -> tl.Run:
    with serving(handler or (lambda body: capital_cities(body) | {"usage": USAGE})) as server:
        llm = tl.LLM(server.url, api_key=KEY, price=tl.llms.Price(prompt=1, generated=2), max_retries=0)
        given = {"workers": 0, "reward": "exact_match", "strategy": "chain:n=2"} | options
        return tl.run(agent(), tasks(), llm=llm, out=out, observers=[sink], **given)


@pytest.mark.parametrize("workers", [0, 2])
def test_figures_of_every_task_and_of_the_whole(tmp_path: Path, workers: int):
    sink = Kept()
    summary = play(sink, tmp_path / "r.run", workers=workers).summary()
    (word, name, config), *each, (last, state, figures) = sink.told
    assert (word, name, last, state) == ("begin", "r", "end", "done")
    assert config["agent"]["model"] == "m"
    assert KEY not in repr(sink.told)
    assert [one[:2] for one in each] == [("task", number) for number in range(1, 6)]
    final = each[-1][2]
    assert final["accuracy"] == summary.accuracy.value == figures["summary/accuracy/value"]
    assert (final["tries"], final["errors"]) == (summary.rollouts, summary.failed)
    assert (final["prompt_tokens"], final["generated_tokens"]) == (summary.usage.prompt, summary.usage.generated)
    assert final["cost"] == pytest.approx(summary.spent.money)
    assert all(isinstance(value, int | float) for value in figures.values())


def test_tries_that_broke_count_and_nothing_scored_has_no_accuracy(tmp_path: Path):
    def dislikes(body: dict) -> object:
        return message("<answer>x</answer>") if "France" in str(body["messages"]) else error(400, "bad field")

    sink = Kept()
    with pytest.warns(tl.errors.BrokenRolloutsWarning):
        play(sink, tmp_path / "r", dislikes, reward=None)
    assert "summary/spent/money" not in sink.told[-1][2], "no call had usage, so no price is known"
    assert sink.told[-2][2] == {"tries": 10, "errors": 8, "prompt_tokens": 0, "generated_tokens": 0}


@pytest.mark.parametrize("fails", ["begin", "task", "end"])
def test_one_that_raises_is_reported_once_and_costs_nothing_else(
    tmp_path: Path, fails: str, caplog: pytest.LogCaptureFixture
):
    sink = Kept(fails)
    assert play(sink, tmp_path / "r").summary().finished == 5
    assert caplog.text.count("Kept failed, and the run goes on: RuntimeError: no") == 1
    assert KEY not in caplog.text
    lost = {"begin": 5, "task": 5, "end": 0}[fails]
    assert (f"Kept was not sent the figures of {lost} finished tasks" in caplog.text) == bool(lost)
    assert ("end" in {one[0] for one in sink.told}) == (fails != "begin")


def test_one_that_never_returns_holds_up_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(observers, "_CLOSE_WITHIN", 0.05)
    over = threading.Event()

    class Stuck(Kept):
        def on_run_begin(self, name: str, config: dict) -> None:
            over.wait(60)

    try:
        assert play(Stuck(), tmp_path / "r").summary().finished == 5
    finally:
        over.set()
    assert "Stuck has not ended within 0 s: the run does not wait for it" in caplog.text


def test_figures_that_would_wait_without_end_are_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(sinks, "WAITING", 2)
    asked = threading.Event()

    class Slow(Kept):
        def on_run_begin(self, name: str, config: dict) -> None:
            asked.wait(60)

    class Last(observers.Observer):
        def end(self, progress: observers.Progress) -> None:
            asked.set()

    sink = Slow()
    with serving(capital_cities) as server:
        tl.run(agent(), tasks(), llm=server.url, workers=0, out=tmp_path / "r", observers=[sink, Last()])
    assert [one[:2] for one in sink.told] == [("task", 1), ("task", 2), ("end", "done")]
    assert "Slow was not sent the figures of 3 finished tasks" in caplog.text


def test_how_a_run_ended_is_told(tmp_path: Path):
    sink = Kept()
    play(sink, tmp_path / "a", budget="calls=3")
    assert sink.told[-1][:2] == ("end", "budget")
    sink = Kept()
    with pytest.raises(EndpointError):
        play(sink, tmp_path / "b", lambda _body: error(401, "no"))
    assert sink.told[-1] == ("end", "failed", {})


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_library_that_is_missing_is_named_before_the_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf'pip install "trunkline\[{name}\]"'):
        tl.run(agent(), tasks(), llm="http://127.0.0.1:9/v1", out=tmp_path / "r", observers=[f"{name}:p"])
    assert not (tmp_path / "r").exists()


def test_a_name_that_is_no_sink_is_refused():
    with pytest.raises(ConfigError, match=r"wandbb.*did you mean wandb"):
        tl.run(agent(), tasks(), llm="http://127.0.0.1:9/v1", observers=["wandbb:p"])
