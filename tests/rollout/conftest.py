"""A small world for rollouts against the simulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from trunkline.sim.tools import CORPUS_VARIABLE
from trunkline.sim.world.files import write_world
from trunkline.sim.world.generator import make_world
from trunkline.store.datasets.loader import load_tasks
from trunkline.types import Task


@pytest.fixture(scope="package")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and questions."""
    folder = tmp_path_factory.mktemp("world")
    write_world(make_world(3, 200, 20), folder)
    return folder


@pytest.fixture
def tasks(world: Path, monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """Three questions, whose corpus the tools find."""
    monkeypatch.setenv(CORPUS_VARIABLE, str(world / "corpus.jsonl"))
    return load_tasks(str(world / "questions.jsonl"), limit=3)
