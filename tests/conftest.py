"""Where engines may live: the same tests run over every pool."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from trunkline.runtime import cluster
from trunkline.runtime.ray import Ray


@pytest.fixture(scope="session")
def ray_here() -> Iterator[None]:
    """A Ray of this process, which all pools of the session share: its start takes seconds."""
    pytest.importorskip("ray")
    assert asyncio.run(cluster.join(None, 2)).made, "nobody else has connected this process"
    yield
    asyncio.run(cluster.leave())


@pytest.fixture(params=["inline", "one worker", "two workers", pytest.param("ray", marks=pytest.mark.pool)])
def where(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Options of a run that say where its engines live."""
    if request.param == "ray":
        request.getfixturevalue("ray_here")
        return {"pool": Ray(1)}
    return {"workers": {"inline": 0, "one worker": 1, "two workers": 2}[request.param]}
