"""Run files of schema 8 are read as they were then: what is recorded of their cases, and what commands say of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import killed_runs
import pytest
from commands import trunkline
from dump import first_difference, run_dump, shortened, timeless
from files import read
from old_files import BEGUN, FILES, FINISHED, unpack
from old_runs import figures
from process_cases import HANDLERS
from stage import House

import trunkline as tl

FIGURES = json.loads((FILES / "figures.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    house = House()
    yield house
    house.close()


def dumped(path: Path) -> dict[str, Any]:
    """What a recording would have of a file."""
    text = timeless(json.dumps(run_dump(path)))
    return shortened(json.loads(re.sub(r"127\.0\.0\.1:\d+", "server", text)))


def test_there_are_figures_of_every_file():
    assert sorted(FIGURES) == sorted(path.name.removesuffix(".run.xz") for path in FILES.glob("*.xz"))
    assert sorted(FIGURES) == sorted([*FINISHED, *BEGUN])


@pytest.mark.parametrize("name", FIGURES)
def test_a_file_is_sound_and_says_what_it_said(name: str, tmp_path: Path):
    path = unpack(name, tmp_path)
    held = path.read_bytes()
    done = trunkline(tmp_path, "check", path.name)
    assert (done.returncode, done.stdout.count("\n")) == (0, 1), done
    assert first_difference(FIGURES[name], figures(path), name) is None
    assert path.read_bytes() == held


@pytest.mark.parametrize("name", FINISHED)
def test_a_finished_file_holds_what_is_recorded_of_its_case(name: str, tmp_path: Path):
    known, found = read(FINISHED[name]), dumped(unpack(name, tmp_path))
    assert first_difference(known["digests"]["run"], found["digests"], name) is None
    for part in known["runs"]["run"].keys() & found.keys():
        assert first_difference(known["runs"]["run"][part], found[part], f"{name}.{part}") is None


@pytest.mark.parametrize("name", BEGUN)
def test_a_file_of_a_run_that_was_ended_is_gone_on_with(name: str, tmp_path: Path, house: House):
    path, (kind, _) = unpack(name, tmp_path), BEGUN[name]
    known = read(f"killed and resumed, {kind}, 0 workers")
    whole = known["runs"]["run"]["trees"]
    begun = dumped(path)["trees"]
    assert begun
    assert any(None in {one["termination"] for one in tree["rollouts"].values()} for tree in begun.values())
    for task, tree in begun.items():
        assert tree["rollouts"].keys() <= whole[task]["rollouts"].keys()
        assert {node["message"] for node in tree["nodes"][1:]} <= {node["message"] for node in whole[task]["nodes"][1:]}
    url = house.servers.scripted(HANDLERS[kind], "server")
    made = killed_runs.KINDS[kind](llm=url, workers=0, out=path, resume=True)
    house.servers.stop()
    assert {tree.task.id: tree.digest() for tree in made} == known["digests"]["run"]
    assert first_difference(whole, dumped(path)["trees"], name) is None
    with tl.RunReader.open(path) as reader:
        assert reader.meta["state"] == "done"
