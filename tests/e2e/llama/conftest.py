"""A model that this project writes, on llama.cpp's own server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from llama_cpp_server import MISSING, LlamaCpp, llama_cpp
from tiny_model import write_model


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Write a model with options of :func:`tiny_model.write_model`."""
    if MISSING:
        pytest.skip(MISSING)
    folder = tmp_path_factory.mktemp("models")

    def written(**options: float) -> Path:
        path = folder / f"words{sorted(options.items())}.gguf"
        if not path.exists():
            write_model(path, **options)
        return path

    return written


@pytest.fixture
def serve(models: Callable[..., Path], tmp_path: Path) -> Iterator[Callable[..., LlamaCpp]]:
    """Start servers of a model, all of which end with the test."""
    with ExitStack() as servers:

        def started(model: dict[str, float] | None = None, **options: int) -> LlamaCpp:
            return servers.enter_context(llama_cpp(models(**model or {}), tmp_path / "server.log", **options))

        yield started
