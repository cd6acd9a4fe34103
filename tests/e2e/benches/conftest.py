"""A small world on disk, and who plays in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trunkline.sim.tools import CORPUS_VARIABLE
from trunkline.sim.world.files import write_world
from trunkline.sim.world.generator import make_world
from trunkline.store.datasets.loader import load_tasks


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_world(make_world(41, 200, 80), tmp_path_factory.mktemp("world"))


@pytest.fixture
def tasks(files, monkeypatch):
    """Tasks of a world whose corpus the tools find."""
    corpus, path = files
    monkeypatch.setenv(CORPUS_VARIABLE, str(corpus))
    return load_tasks(str(path))


@pytest.fixture
def lookups(tasks):
    return [task for task in tasks if task.metadata["kind"] == "lookup"]
