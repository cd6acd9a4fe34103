"""The guide to answers: its commands and its example, run as printed but for the server's address and their size."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Done, trunkline
from places import ROOT

from studies.answers.arms import ARMS
from studies.tables import NOTICE
from trunkline.scoring.aggregators.aggregate import AGGREGATORS

GUIDES = ROOT / "docs" / "guide"
GUIDE = (GUIDES / "answers.md").read_text("utf-8")
TABLES = (GUIDES / "answers-tables.md").read_text("utf-8")
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
PREPARE, FIRST, BENCH, *OTHERS = re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
HERE = "http://localhost:8000/v1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, world: Path, url: str) -> Iterator[Path]:
    """A smaller world than the guide's, and what it exports."""
    made = tmp_path_factory.mktemp("guide")
    (made / "world").symlink_to(world)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in re.findall(r"^export (\w+)=(\S+)$", FIRST, re.MULTILINE):
            patch.setenv(name, value.replace(HERE, url))
        yield made


@pytest.fixture(scope="module")
def done(folder: Path) -> dict[str, Done]:
    """What came of every command, by its words from the second on."""
    found = {}
    text = "".join((FIRST, *OTHERS)).replace("\\\n", " ").replace("majority@8", "majority@3")
    for line in text.splitlines():
        if not line.startswith("trunkline "):
            assert line.startswith("export ")
            continue
        words = shlex.split(line)[1:]
        if words[0] == "run":
            small = {"--limit": "8", "--rollouts": "3"}
            words = [small.get(before, word) for before, word in zip(["", *words], words, strict=False)] + ["-w", "0"]
        found[" ".join(words)] = trunkline(folder, *words)
    return found


def test_the_first_terminal_is_made_of_commands_that_there_are(tmp_path: Path):
    world, serve = PREPARE.splitlines()
    made = trunkline(tmp_path, *shlex.split(world)[1:], "--documents", "100", "--questions", "9")
    assert made.returncode == 0, made.stderr
    assert {path.name for path in (tmp_path / "world").iterdir()} == {"corpus.jsonl", "questions.jsonl"}
    assert serve == "trunkline sim serve --port 8000"


def test_the_commands_work_as_printed(folder: Path, done: dict[str, Done]):
    assert {words: each.stderr for words, each in done.items() if each.returncode} == {}
    assert len(done) == 16
    decided = [each.stdout for words, each in done.items() if words.startswith("answers")]
    assert len(decided) == 5
    assert all("8 of 8 tasks" in shown and "accuracy" in shown for shown in decided)
    assert "model  " in decided[3], "a model was asked"
    rows = [json.loads(line) for line in (folder / "answers.jsonl").read_text("utf-8").splitlines()]
    assert [row["method"] for row in rows] == ["synthesis"] * 8
    assert all(len(row["parties"]) >= 1 for row in rows)
    reports = [each.stdout for words, each in done.items() if words.startswith("report")]
    assert all(int(re.findall(r"(\d+) written", shown)[0]) >= 8 for shown in reports)
    shown = {words: each.stdout for words, each in done.items()}
    assert "AUROC" in shown["show runs/eight.run --confidence verbalised"]
    assert "majority@3" in shown["show runs/eight.run --metrics"]
    assert "tasks compared  8:" in shown["compare runs/eight.run runs/cool.run"]
    for name in ("right.jsonl", "muse.jsonl"):
        assert (folder / name).read_text("utf-8").count("\n") > 3


def test_the_example_works_as_printed(folder: Path, url: str):
    (folder / "example.py").write_text(EXAMPLE.replace(HERE, url), "utf-8")
    ran = subprocess.run(
        [sys.executable, "example.py"], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    lines = [line.split(" | ") for line in ran.stdout.splitlines()]
    assert len(lines) == 8
    assert all(len(line) == 6 for line in lines)
    assert all(int(line[4]) >= 1 for line in lines if line[3] != "None")


def test_every_aggregator_is_in_the_guide_and_every_arm_in_the_tables():
    for name in AGGREGATORS:
        assert f"`{name}" in GUIDE.partition("## Which one")[2].partition("##")[0]
    assert BENCH == "python benches/study.py answers --out docs/guide/answers-tables.md\n"
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
