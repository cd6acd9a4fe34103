"""The page on answers has every aggregator and does what it says; every arm of its study is in the tables."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import doc_pages
import pytest
from places import ROOT

from studies.answers.arms import ARMS
from studies.answers.tables import _HEAD as HEAD
from studies.tables import NOTICE
from trunkline.scoring.aggregators.aggregate import AGGREGATORS

PAGE = ROOT / "docs/how-to/answers.md"
TABLES = (ROOT / "docs/science/answers-tables.md").read_text("utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page has run."""
    made = tmp_path_factory.mktemp("answers") / "page"
    made.mkdir()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    done = doc_pages.run(PAGE, made, port=port)
    assert done.code == 0, done.output
    (made / "printed").write_text(done.output, "utf-8")
    return made


def test_the_evidence_and_the_reports_of_every_task_are_written(folder: Path):
    rows = [json.loads(line) for line in (folder / "answers.jsonl").read_text("utf-8").splitlines()]
    assert [row["method"] for row in rows] == ["synthesis"] * 12
    assert all(len(row["parties"]) >= 1 for row in rows)
    printed = (folder / "printed").read_text("utf-8")
    assert printed.count("12 of 12 tasks") == 5
    assert "model     " in printed, "a model was asked"
    reports = [int(count) for count in re.findall(r"(\d+) written", printed)]
    assert len(reports) == 2
    assert min(reports) >= 12


def test_every_try_in_python_has_an_answer_of_every_aggregator(folder: Path):
    lines = [
        line.split(" | ")
        for line in (folder / "printed").read_text("utf-8").splitlines()
        if re.match(r"q\d+ \| ", line)
    ]
    assert len(lines) == 3
    assert all(len(line) == 5 for line in lines)


def test_every_aggregator_is_on_the_page_and_every_arm_in_the_tables():
    choice = PAGE.read_text("utf-8").partition("## Which aggregator")[2].partition("\n## ")[0]
    for name in AGGREGATORS:
        assert f"`{name}" in choice
    assert TABLES.startswith(f"{HEAD}\n")
    presets = re.split(r"^## ", TABLES, flags=re.MULTILINE)[1:]
    assert [part.partition("\n")[0] for part in presets[:5]] == [
        "default",
        "early-decisive",
        "late-decisive",
        "shared-misbelief",
        "null",
    ]
    for part in presets[:5]:
        assert part.startswith(f"{part.partition(chr(10))[0]}\n\n640 questions of worlds 2001 to 2016.")
        assert re.findall(r"^\| ([^|]+) \| \d", part, re.MULTILINE) == list(ARMS)
        assert NOTICE in part
    assert "**NO**" not in TABLES
    assert TABLES.count("| yes |") == len(ARMS) + 2
