"""``trunkline score``, as a user starts it: what it prints, what it refuses, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from atlas import CAPITALS, agent, tasks
from commands import trunkline
from foreign import message, serving
from resuming import environment

import trunkline as tl
from trunkline.runner.run import run
from trunkline.store.reader import RunReader
from trunkline.store.state import under_way

OWN = """
import asyncio, os, pathlib

async def slow(rollout):
    "Waits for good after a few, unless it is told not to."
    asked = pathlib.Path(os.environ["ASKED"])
    with asked.open("a") as file:
        file.write(rollout.task.id + "\\n")
    if len(asked.read_text().split()) > 3 and "GO" not in os.environ:
        await asyncio.Event().wait()
    return 1.0

def never(rollout):
    raise ValueError("no \\x1b[31m idea")

class Unequal:
    pass
"""


def capitals(body: dict) -> dict:
    """Says the capital, in a sentence for half of the draws."""
    country = body["messages"][0]["content"].removeprefix("Capital of ").rstrip("?")
    return message(CAPITALS[country] if body["seed"] % 2 else f"I say {CAPITALS[country]}")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run whose endpoint is gone, and rewards of one's own."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_scores.py").write_text(OWN)
    with serving(capitals) as server:
        options = {"strategy": tl.Chain(4), "reward": tl.exact_match, "seed": 1, "workers": 0, "out": tmp_path / "r"}
        run(agent(), tasks(), llm=tl.LLM(server.url), **options)
    return tmp_path


def lines(text: str) -> dict[str, str]:
    return {line[:15].strip(): line[15:].strip() for line in text.splitlines() if line[:15].strip()}


def accuracy(path: Path) -> float:
    with RunReader.open(path) as reader:
        assert reader.check() == []
        found = reader.summary().accuracy
    return -1.0 if found is None else found.value


def test_what_came_of_it_is_printed_before_and_after(folder: Path):
    shown = trunkline(folder, "show", "r", "-v").stdout
    before = next(line.split(maxsplit=4)[4] for line in shown.splitlines() if line.startswith("accuracy of one try"))
    done = trunkline(folder, "score", "r", "--reward", "contains")
    assert (done.returncode, done.stderr) == (0, "scores r by contains\n")
    said = lines(done.stdout)
    assert said["run file"] == "r"
    assert said["reward"] == "contains  (before: exact_match)"
    assert said["accuracy before"] == before
    assert said["accuracy now"].startswith("100.0 %  (95 %: ")
    assert 0 < int(said["changed"].split()[0]) < 20
    assert said["changed"].endswith("of 20 rollouts")
    assert "unscored" not in said
    assert accuracy(folder / "r") == 1.0
    shown = trunkline(folder, "show", "r", "-v").stdout
    assert "scored    again, by contains" in shown.splitlines()
    assert said["accuracy now"] in shown
    assert trunkline(folder, "check", "r").returncode == 0


def test_a_copy_is_scored_by_several_as_json(folder: Path):
    held = (folder / "r").read_bytes()
    done = trunkline(
        folder, "score", "r", "--reward", "contains@0.5", "--reward", "exact_match@0.5", "-o", "new/copy", "--json"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["path"], found["before"], found["rollouts"]) == ("new/copy", "exact_match", 20)
    assert found["new"]["value"] == pytest.approx(0.5 + accuracy(folder / "r") / 2)
    assert found["old"]["value"] == accuracy(folder / "r")
    assert (folder / "r").read_bytes() == held
    shown = json.loads(trunkline(folder, "show", "new/copy", "--json").stdout)
    assert [one["reward"] for one in shown["scorings"]] == [found["reward"]]
    assert "scorings" not in json.loads(trunkline(folder, "show", "r", "--json").stdout)


def test_where_nothing_could_be_scored_the_exit_code_says_so(folder: Path):
    done = trunkline(folder, "score", "r", "--reward", "own_scores:never")
    assert done.returncode == 1
    said = lines(done.stdout)
    assert said["accuracy now"] == "nothing is scored"
    assert said["unscored"] == "20 of 20 rollouts"
    assert "20: never raised ValueError: no " in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert accuracy(folder / "r") == -1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("r",), "Missing option '--reward'"),
        (("r", "--reward", "none"), "--reward none scores nothing"),
        (("r", "--reward", "best"), "'best' is none of exact_match, contains"),
        (("r", "--reward", "own_scores:gone"), "own_scores"),
        (("r", "--reward", "own_scores:Unequal"), "is not callable"),
        (("gone", "--reward", "contains"), "gone: no such run file"),
        (("own_scores.py", "--reward", "contains"), "is not a Trunkline run"),
        (("r", "--reward", "contains", "-o", "own_scores.py"), "choose another --out"),
    ],
    ids=["no reward", "none", "unknown", "no attribute", "no function", "no run", "other file", "out is there"],
)
def test_mistakes_are_one_line_and_change_nothing(folder: Path, arguments: tuple[str, ...], words: str):
    held = (folder / "r").read_bytes()
    done = trunkline(folder, "score", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert (folder / "r").read_bytes() == held


def test_stopped_by_a_signal_it_goes_on_when_called_again(folder: Path):
    def start(**more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "trunkline.cli", "score", "r", "--reward", "own_scores:slow"]
        env = environment() | {"ASKED": str(folder / "asked")} | more
        path = os.pathsep.join([str(folder), env["PYTHONPATH"]])
        return subprocess.Popen(
            command, cwd=folder, env=env | {"PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    with start() as process:
        deadline = time.monotonic() + 60
        while not (folder / "asked").exists() or len((folder / "asked").read_text().split()) < 20:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 143, said
    assert "Traceback" not in said
    with RunReader.open(folder / "r") as reader:
        assert reader.check() == []
        assert under_way(reader.meta) is not None
    shown = trunkline(folder, "show", "r", "-v").stdout
    assert "scored    again, by slow, in part: trunkline score continues it" in shown
    resumed = trunkline(folder, "run", "--from", "r", "-m", "m", "--strategy", "partial", "--base-url", "http://h/v1")
    assert resumed.returncode == 2
    assert "is scored by slow in part" in resumed.stderr
    with start(GO="1") as process:
        out, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "20 of 20 rollouts" not in lines(out).get("unscored", "")
    assert accuracy(folder / "r") == 1.0
