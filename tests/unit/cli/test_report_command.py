"""``trunkline report``: what it writes into a run that is over, what it leaves alone, and what it says."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest
from call_logs import delta_with
from commands import trunkline
from foreign import serving
from groves import D6, E6, Try, grove
from reported import Scribe, record

from trunkline.errors import EndpointError
from trunkline.runner.amend import REPORTS, report_run
from trunkline.scoring.reports.reporter import Reporter
from trunkline.store.derive import rows
from trunkline.store.reader import RunReader
from trunkline.store.schema import CallRow
from trunkline.store.writer import RunWriter
from trunkline.tree.views import Tree

LONG = "first thought " * 900


def stored(path: Path, trees: list[Tree]) -> Path:
    """Write trees as a run of one endpoint that is over."""
    writer = RunWriter.create(path, {}, [tree.task for tree in trees])
    for number, tree in enumerate(trees):
        turns = sum(rollout.turns for rollout in tree.rollouts)
        calls = [CallRow("http://h/v1", 1, 10, 0, 5, 1, 0, -1, 1, 0) for _ in range(turns)]
        writer.commit([(number, 0, delta_with(tree.core, calls))], [(number, *rows(tree.core))])
    writer.finish()
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Three tasks: one whose tries share a long trunk, one of chains, one whose tries broke."""
    trees = [
        grove([Try([LONG, "A", last], 1.0) for last in "xyz"], id="deep"),
        grove(E6, id="flat"),
        grove([Try(["A"], ended="llm_error")], id="broken"),
    ]
    return stored(tmp_path / "a.run", trees)


class Model:
    """Answers as a server, with the number of the request, and keeps what it was asked."""

    def __init__(self, text: str = "Plan: to see\nAnswer: x\x1b[2J") -> None:
        self.asked: list[str] = []
        self._text = text

    def __call__(self, body: dict) -> dict:
        self.asked.append(body["messages"][1]["content"])
        message = {"role": "assistant", "content": self._text}
        usage = {"prompt_tokens": 1000, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 600}}
        return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}


def call(path, server, *options):
    return trunkline(
        path.parent, "report", path.name, "--model", "m", "--base-url", server.url, "--max-retries", 0, *options
    )


def figures(path):
    with RunReader.open(path) as reader:
        return reader.summary(), [reader.tree(name).digest() for name in ("deep", "flat", "broken")]


def test_reports_are_written_and_everything_else_stays(path):
    before, model = figures(path), Model()
    with serving(model) as server:
        done = call(path, server)
        assert done.returncode == 0, done.stderr
        # The long trunk is reported once, and not shown again.
        assert len(model.asked) == 4 + 6
        assert sum(LONG[:200] in asked for asked in model.asked) == 1
        assert sum(record(asked) is not None for asked in model.asked) == 3
        assert [line.split("  ")[-1].strip() for line in done.stdout.splitlines()] == [
            "a.run", "10 written, 0 there before", "10", "10,000 tokens, 6,000 of them cached", "200 tokens"
        ]  # fmt: skip
        assert trunkline(path.parent, "check", path.name).returncode == 0
        assert figures(path) == before
        again = call(path, server)
        assert "0 written, 10 there before" in again.stdout
        assert len(model.asked) == 10
        assert call(path, server, "--again", "--per-leaf").returncode == 0
        assert len(model.asked) == 10 + 9
    with sqlite3.connect(path) as connection:
        (said,) = connection.execute("SELECT value FROM meta WHERE key = ?", (REPORTS,)).fetchone()
    connection.close()
    noted = json.loads(said)
    assert [(one["model"], one["written"], one["usage"]["calls"]) for one in noted] == [("m", 10, 10), ("m", 9, 9)]


def test_show_has_the_first_line_of_a_report_and_json_all_of_it(path):
    with serving(Model()) as server:
        call(path, server)
    shown = trunkline(path.parent, "show", path.name, "--task", "flat").stdout
    assert shown.count("≡ Plan: to see") == 6
    assert "\x1b" not in shown
    data = json.loads(trunkline(path.parent, "show", path.name, "--task", "flat", "--json").stdout)
    assert [node["report"] for node in data["tree"]["nodes"]].count("Plan: to see\nAnswer: x\x1b[2J") == 6
    assert "≡" not in trunkline(path.parent, "show", path.name, "--task", "broken").stdout


def test_extracted_reports_ask_nobody(path):
    done = trunkline(path.parent, "report", path.name, "--extract", "--limit", 300)
    assert (done.returncode, done.stdout.split("\n")[1]) == (0, "reports   9 written, 0 there before")
    with RunReader.open(path) as reader:
        reports = [rollout.leaf.compressed_reasoning for rollout in reader.tree("deep").rollouts]
    assert all(report is not None and len(report) <= 300 for report in reports)
    assert [report.splitlines()[-1] for report in reports if report] == ["Answer: x", "Answer: y", "Answer: z"]
    assert trunkline(path.parent, "check", path.name).returncode == 0
    assert "0 written, 9 there" in trunkline(path.parent, "report", path.name, "--extract").stdout


def test_a_model_that_says_nothing_is_told_and_ends_as_a_failure(path):
    with serving(Model("")) as server:
        done = call(path, server)
    assert done.returncode == 1
    assert "10: m wrote nothing (stop)" in done.stdout
    assert trunkline(path.parent, "check", path.name).returncode == 0


def test_what_was_written_before_an_end_stays_and_is_not_asked_again(path):
    class Ending(Scribe):
        async def complete(self, request):
            if len(self.asked) == 3:
                raise EndpointError("gone")
            return await super().complete(request)

    async def run(scribe):
        return await report_run(path, Reporter(scribe, "m"))

    def noted():
        with RunReader.open(path) as reader:
            return [(one["written"], one["usage"]["calls"]) for one in json.loads(reader.meta[REPORTS])]

    with pytest.raises(EndpointError, match="gone"):
        asyncio.run(run(Ending()))
    assert noted() == [(3, 3)], "it was paid for"
    rest = Scribe()
    reported = asyncio.run(run(rest))
    assert (reported.skipped, reported.written, len(rest.asked)) == (3, 7, 7)
    assert noted() == [(3, 3), (7, 7)]
    assert trunkline(path.parent, "check", path.name).returncode == 0


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ([], "--model is missing"),
        (["--extract", "--model", "m"], "--extract asks no model"),
        (["--model", "m", "--words", "3"], "words must be a whole number from 20"),
    ],
    ids=["no model", "both", "words"],
)
def test_a_mistake_is_one_line(path, options, problem):
    done = trunkline(path.parent, "report", path.name, *options)
    assert done.returncode == 2
    assert problem in done.stderr


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "a.run: no such run file"),
        (b"", "a.run is empty"),
        (b"a text " * 200, "a.run is not a Trunkline run"),
    ],
    ids=["none", "empty", "text"],
)
def test_a_file_that_is_no_run_is_refused(tmp_path, content, problem):
    if content is not None:
        (tmp_path / "a.run").write_bytes(content)
    done = trunkline(tmp_path, "report", "a.run", "--extract")
    assert (done.returncode, done.stderr.startswith(f"error: {problem}")) == (2, True), done.stderr


def test_a_try_that_said_nothing_has_nothing_to_extract_and_that_is_said(tmp_path):
    path = stored(tmp_path / "s.run", [grove([Try([""], 0.0), Try(["A"], 1.0)], id="s")])
    done = trunkline(tmp_path, "report", path.name, "--extract")
    assert done.returncode == 0
    assert "1 written, 0 there before" in done.stdout
    assert "1: nothing was said that could be extracted" in done.stdout
    again = trunkline(tmp_path, "report", path.name, "--extract")
    assert (again.returncode, "0 written, 1 there before" in again.stdout) == (0, True)


def test_trees_of_all_forks_are_reported_on_too(tmp_path):
    tree = grove(D6, id="d6")
    path = stored(tmp_path / "d.run", [tree])
    reported = asyncio.run(report_run(path, Reporter(Scribe(), "m", share="always")))
    assert reported.written == 9
    assert trunkline(tmp_path, "check", "d.run").returncode == 0
