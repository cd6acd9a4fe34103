"""``examples/strategy``: a strategy of one's own runs as the header of its file says."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections import Counter
from pathlib import Path

from commands import started
from places import ROOT

import trunkline as tl


def test_tries_fork_until_enough_agree(tmp_path: Path):
    folder = tmp_path / "strategy"
    shutil.copytree(ROOT / "examples/strategy", folder)
    header = (folder / "strategy.toml").read_text("utf-8").splitlines()[0].removeprefix("# ")
    sim, _, command = header.removeprefix("trunkline ").partition(" trunkline ")
    done = started(*shlex.split(sim), sys.executable, "-m", "trunkline.cli", *shlex.split(command), cwd=folder)
    assert done.returncode == 0, done.stderr
    with tl.RunReader.open(folder / "strategy.run") as run:
        assert run.check() == []
        sizes = Counter()
        for tree in run:
            votes = Counter(tried.answer.casefold() for tried in tree.rollouts if tried.answer)
            assert max(votes.values()) == 2 or len(tree.rollouts) == 6
            sizes[len(tree.rollouts)] += 1
    assert sizes.total() == 12
    assert len(sizes) > 1
    assert set(sizes) <= {2, 3, 4, 5, 6}
