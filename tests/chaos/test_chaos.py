"""Runs whose workers and controllers are killed at random times, and the same command again until it is done.

With more of everything: ``pytest tests/chaos --chaos-tasks 500 --chaos-kills 100 --chaos-seed 7 --timeout 3600``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from havoc import Command, Killer, choices, marked

from trunkline.cli.demo import simulator
from trunkline.sim.world.files import write_world
from trunkline.sim.world.generator import make_world
from trunkline.store.reader import RunReader

STRATEGIES = {
    "chain": ["--rollouts", "2"],
    "tree": ["--strategy", "tree-grpo:trees=2,forks=1,rounds=2"],
    "stepwise": ["--strategy", "adaptive:total=4,initial=2"],
}
PENDING = 64
"""Turns that a worker may hold beside those that wait for their reply."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with simulator("default", True, "--latency", "overhead=0.01,token=0.0005") as url:
        yield url


def command(folder: Path, url: str, tasks: int, options: list[str]) -> Command:
    folder.mkdir()
    (folder / "tmp").mkdir()
    write_world(make_world(0), folder)
    return Command(folder, url, tasks, options=options)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_that_is_killed_again_and_again_ends_as_if_nothing_had_been(
    strategy: str, url: str, tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
):
    tasks, kills, seed = (pytestconfig.getoption(f"--chaos-{name}") for name in ("tasks", "kills", "seed"))
    undisturbed = command(tmp_path / "calm", url, tasks, STRATEGIES[strategy])
    monkeypatch.setenv("TRUNKLINE_SIM_CORPUS", str(undisturbed.folder / "corpus.jsonl"))
    began = choices(url)
    Killer(random.Random(), 0).disturb(undisturbed)
    usual = choices(url) - began

    disturbed, killer = (
        command(tmp_path / "storm", url, tasks, STRATEGIES[strategy]),
        Killer(random.Random(seed), kills),
    )
    began = choices(url)
    killer.disturb(disturbed)
    paid = choices(url) - began

    told = f"seed {seed}: {killer.workers} workers and {killer.controllers} controllers killed"
    assert disturbed.digests() == undisturbed.digests(), told
    each = disturbed.concurrency + PENDING
    in_flight = killer.workers * each + killer.controllers * disturbed.workers * each
    assert paid <= usual + in_flight, told
    print(f"\n{strategy}: {told}; {paid} calls, {usual} undisturbed: {paid - usual} paid again, {in_flight} allowed")  # noqa: T201
    assert not marked(str(disturbed.folder)), told
    assert list((disturbed.folder / "tmp").iterdir()) == [], told
    with RunReader.open(disturbed.file) as reader, RunReader.open(undisturbed.file) as calm:
        assert reader.summary().rollouts == calm.summary().rollouts
        assert reader.summary().failed == 0, told
