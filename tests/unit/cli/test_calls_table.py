"""Calls and money on screen: the same figures as the rows, and nothing that could steer a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from call_logs import delta_with
from click.testing import CliRunner
from test_table import cells, row, totals

from trunkline.cli.output import summary_data
from trunkline.cli.show import show
from trunkline.cli.tables import calls_table, cost, table
from trunkline.llm.pricing import Price
from trunkline.store.derive import rows
from trunkline.store.reader import RunReader
from trunkline.store.schema import CallRow
from trunkline.store.stats.calls import Spending, by_endpoint
from trunkline.store.stats.summary import summarise
from trunkline.store.writer import RunWriter
from trunkline.tree.views import Tree
from trunkline.types import Task

URL = "http://h/v1"
PRICES = {URL: Price(prompt=2, cached=1, generated=10)}
CALL = CallRow(URL, 1, 1000, 400, 50, 1, 0, 250_000, 500_000, 0)
META = {"state": "done", "created": "100.0", "updated": "162.0", "seconds": "62.0"}


def replaced(**fields: object) -> CallRow:
    return msgspec.structs.replace(CALL, **fields)


def test_an_endpoint_with_everything():
    calls = [
        *[CALL] * 18,
        replaced(attempts=3, queue=40_000, micros=90_000_000),
        replaced(prompt=-1, cached=-1, generated=-1, first=-1, draws=4),
        replaced(attempts=0),
    ]
    assert calls_table(by_endpoint(calls, PRICES)).splitlines() == [
        URL,
        "  requests                  20, 2 retries",
        "  from the cache            1 more, in none of the figures below",
        "  completions               23",
        "  prompt tokens by request  19,000, 7,600 of them cached  (40.0 %)",
        "  generated tokens          950  (10.6 tokens/s)",
        "  without usage             1, counted in no total",
        "  queue                     p50 0.000 s, p95 0.000 s, max 0.040 s",
        "  first byte                p50 0.250 s, p95 0.250 s, max 0.250 s",
        "  whole call                p50 0.500 s, p95 0.500 s, max 90 s",
        "  price                     0.03990; not priced: 1 request whose usage is not known",
    ]


def test_what_failed_for_good_is_said():
    failed = replaced(draws=0, prompt=-1, attempts=6, first=-1)
    assert (
        "  requests                  1, 5 retries, 1 more failed after all retries"
        in calls_table(by_endpoint([CALL, failed], {})).splitlines()
    )
    assert calls_table(by_endpoint([failed], {})).splitlines() == [
        URL,
        "  requests  0, 5 retries, 1 more failed after all retries",
    ]


def test_what_is_not_known_is_not_shown_as_zero():
    silent = replaced(prompt=-1, first=-1)
    shown = calls_table(by_endpoint([silent], PRICES))
    assert "tokens" not in shown
    assert "first byte" not in shown
    assert "price          not known; not priced: 1 request whose usage is not known" in shown
    assert "price" not in calls_table(by_endpoint([CALL], {}))
    assert calls_table([]) == "no request was made"


FLAGS = "(vLLM: --enable-prompt-tokens-details, SGLang: --enable-cache-report)"


def test_cached_tokens_that_no_server_reports_are_not_said_to_be_none():
    silent = replaced(cached=-1)
    (endpoint,) = by_endpoint([silent, silent], {})
    assert f"prompt tokens by request  2,000, cached not reported {FLAGS}" in calls_table([endpoint])
    assert "0 of them cached" not in calls_table([endpoint])
    shown = calls_table(by_endpoint([silent, CALL], {}))
    assert "2,000, 400 of them cached  (20.0 %); 1 request did not say" in shown
    known = totals(row(0, "answer", "a", 1.0))
    summary = msgspec.structs.replace(known, endpoints=[endpoint])
    assert cells(summary)["prompt tokens by turn"] == f"100, cached not reported {FLAGS}"
    assert cells(summary)["prompt tokens by request"] == "2,000, cached not reported"
    data = summary_data(summary)
    assert (data["usage"]["cached"], data["cached"], data["uncached"]) == (None, None, None)
    assert data["endpoints"][0]["cached"] is None


def test_generated_tokens_that_are_estimated_bear_a_mark():
    first, _ = by_endpoint([CALL, replaced(endpoint="z")], PRICES, {URL: 30})
    assert "generated tokens          ~50  (30 of them estimated, " in calls_table([first])
    assert f"price                     ~{cost(first.spent)}" in calls_table([first])
    summary = msgspec.structs.replace(totals(row(0, "answer", "a", 1.0)), endpoints=[first], spent=first.spent)
    found = cells(summary)
    assert found["of these estimated"].startswith("~30 generated: ")
    assert found["tokens flat (server usage)"].startswith("~")
    assert found["price"].startswith("~")
    assert "of these estimated" not in cells(totals(row(0, "answer", "a", 1.0)))


def test_names_of_endpoints_cannot_steer_a_terminal():
    shown = calls_table(by_endpoint([replaced(endpoint="a\x1b[2J\n\u202eb"), replaced(endpoint="")], {}))
    assert shown.splitlines()[0] == "(no name)"
    assert "a\\x1b[2J\\n\\u202eb" in shown.splitlines()
    assert shown.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("spent", "text"),
    [
        (Spending(0.0, 3, 0), "0.00"),
        (Spending(1234.5, 3, 0), "1,234.50"),
        (Spending(12.3456, 3, 0), "12.35"),
        (Spending(0.0012344, 3, 0), "0.001234"),
        (Spending(1e-30, 3, 0), "0.000000000000"),
        (Spending(1.5, 3, 1200), "1.500; not priced: 1,200 requests whose usage is not known"),
        (Spending(0.0, 0, 2), "not known; not priced: 2 requests whose usage is not known"),
    ],
)
def test_amounts(spent: Spending, text: str):
    assert cost(spent) == text


def test_the_summary_has_a_price_if_the_run_has():
    calls = [(0, CALL), (1, CALL), (1, replaced(cached=-1))]
    shown = table(summarise(META, 2, [], [], calls, PRICES)).splitlines()
    (line,) = [line for line in shown if line.startswith("price")]
    silent = f"priced as uncached: 1 request whose server does not report cached tokens {FLAGS}"
    assert line.split(maxsplit=1)[1] == f"0.006700  (0.003350 per task); {silent}"
    assert "price" not in table(summarise(META, 2, [], [], calls))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """One solved task of three turns, priced, at an endpoint with a hostile name."""
    path = tmp_path / "run"
    task = Task.ask("Who?", "Ada", id="q")
    core = Tree(task).core
    point = core.append(0, 1, json.dumps(task.messages[0]).encode())
    for draw in range(3):
        rollout = core.open(point, [0, draw], draw)
        core.turn(rollout, b'{"role":"assistant","content":"%d"}' % draw, 0, 0, 0, 1000, 400, 50, 0, 500_000)
        core.close(rollout, "answer", "Ada")
        core.score(rollout, 1.0)
    calls = [replaced(endpoint=f"{URL}/\x1b[2J", micros=500_000 * (n + 1)) for n in range(3)]
    with RunWriter.create(path, {"llm": {"price": PRICES}}, [task], command=[]) as writer:
        writer.commit([(0, 0, delta_with(core, calls))], [(0, *rows(core))])
    return path


def test_calls_are_shown_in_place_of_a_tree(path: Path):
    shown = CliRunner().invoke(show, [str(path), "--calls"])
    assert shown.exit_code == 0, shown.output
    price = "price                            0.006300  (0.006300 per task, 0.006300 per solved task)"
    assert price not in shown.output, "the summary was not asked for"
    assert price in CliRunner().invoke(show, [str(path), "-v"]).output
    assert f"{URL}/\\x1b[2J\n  requests" in shown.output
    assert "p50 1.000 s, p95 1.500 s, max 1.500 s" in shown.output
    assert "task q:" not in shown.output
    both = CliRunner().invoke(show, [str(path), "--calls", "--task", "q"])
    assert "task q:" in both.output
    assert "whole call" in both.output
    assert "whole call" not in CliRunner().invoke(show, [str(path)]).output


def test_json_has_the_calls_by_endpoint(path: Path):
    data = json.loads(CliRunner().invoke(show, [str(path), "--json"]).output)["summary"]
    with RunReader.open(path) as reader:
        calls = [call for _, call in reader.calls()]
        assert reader.check() == []
    (endpoint,) = data["endpoints"]
    assert endpoint["endpoint"] == f"{URL}/\x1b[2J"
    assert endpoint["requests"] == len(calls) == data["usage"]["calls"]
    assert endpoint["prompt"] == sum(call.prompt for call in calls) == data["usage"]["prompt"]
    assert endpoint["total"] == {"p50": 1.0, "p95": 1.5, "max": 1.5}
    assert (
        data["spent"] == endpoint["spent"] == {"money": pytest.approx(0.0063), "priced": 3, "unpriced": 0, "silent": 0}
    )
    assert data["per_task"] == data["per_solved"] == data["spent"]["money"]
