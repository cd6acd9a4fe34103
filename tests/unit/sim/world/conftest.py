from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trunkline.sim.world.files import Evidence, write_world
from trunkline.sim.world.generator import World, make_world

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def world() -> World:
    """The default world."""
    return make_world(0)


@pytest.fixture(scope="session")
def evidence(world: World) -> Evidence:
    return Evidence(world.documents)


@pytest.fixture(scope="session")
def corpus(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(world, tmp_path_factory.mktemp("world"))[0]
