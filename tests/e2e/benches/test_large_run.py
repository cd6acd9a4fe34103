"""The run file that the memory of readers is measured on is one that the product could have written."""

from __future__ import annotations

from pathlib import Path

from large_run import make
from trunkline.store.reader import RunReader


def test_every_row_of_it_follows_from_its_deltas(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    make(tmp_path / "run", tasks=4, rollouts=3, unfinished=1)
    with RunReader.open(tmp_path / "run") as reader:
        assert reader.check() == []
        found = reader.summary()
    assert (found.state, found.tasks, found.finished, found.rollouts, found.scored) == ("interrupted", 4, 3, 9, 9)
    assert found.spent is not None
    assert found.spent.unpriced == 0
