"""Runs whose workers and controllers are killed at random times, and the same command again until it is done.

With more of everything: ``pytest tests/chaos -s --chaos-tasks 500 --chaos-kills 100 --chaos-seed 7``.
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

pytestmark = pytest.mark.timeout(3600)

STRATEGIES = {
    "chain": ["--rollouts", "2"],
    "tree": ["--strategy", "tree-grpo:trees=2,forks=1,rounds=2", "--durable"],
    "stepwise": ["--strategy", "adaptive:total=4,initial=2"],
}
PENDING = 64
"""Turns that a worker may hold beside those that wait for their reply."""

SLACK = 8
"""Descriptors of a controller that come and go: two workers that are replaced at once, and files it looks at."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with simulator("default", True, "--latency", "overhead=0.02,token=0.0005") as url:
        yield url


@pytest.fixture(autouse=True)
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_world(make_world(0), tmp_path)
    monkeypatch.setenv("TRUNKLINE_SIM_CORPUS", str(tmp_path / "corpus.jsonl"))


def command(folder: Path, url: str, tasks: int, options: list[str]) -> Command:
    (folder / "tmp").mkdir(parents=True)
    (folder / "questions.jsonl").symlink_to("../questions.jsonl")
    return Command(folder, url, tasks, options=options)


def paid(run: Command, killer: Killer) -> int:
    """Draws that a run costs in the end."""
    before = choices(run.url)
    killer.disturb(run, within=3600.0)
    return choices(run.url) - before


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_that_is_killed_again_and_again_ends_as_if_nothing_had_been(
    strategy: str, url: str, tmp_path: Path, pytestconfig: pytest.Config
):
    tasks, kills, seed = (pytestconfig.getoption(f"--chaos-{name}") for name in ("tasks", "kills", "seed"))
    calm = command(tmp_path / "calm", url, tasks, STRATEGIES[strategy])
    usual = paid(calm, Killer(random.Random(), 0))
    storm = command(tmp_path / "storm", url, tasks, STRATEGIES[strategy])
    killer = Killer(random.Random(seed), kills)
    cost = paid(storm, killer)

    told = f"seed {seed}: {killer.workers} workers and {killer.controllers} controllers killed, {killer.paused} paused"
    # A worker may have borrowed all of the concurrency; all workers together have no more than that.
    strikes = killer.workers + killer.controllers
    in_flight = strikes * storm.concurrency + (killer.workers + killer.controllers * storm.workers) * PENDING
    print(f"\n{strategy}: {told}; {usual} calls and {cost - usual} again, {in_flight} allowed")  # noqa: T201
    assert strikes > 0, told
    assert storm.digests() == calm.digests(), told
    assert usual <= cost <= usual + in_flight, told
    assert not marked(str(storm.folder)), told
    assert list((storm.folder / "tmp").iterdir()) == [], told
    with RunReader.open(storm.file) as reader, RunReader.open(calm.file) as undisturbed:
        after, before = reader.summary(), undisturbed.summary()
    assert after.failed == 0, told
    assert (after.state, after.finished, after.rollouts) == (before.state, before.finished, before.rollouts), told


def test_a_controller_outlives_many_workers_and_keeps_no_descriptor_of_theirs(
    url: str, tmp_path: Path, pytestconfig: pytest.Config
):
    kills = 2 * pytestconfig.getoption("--chaos-kills")
    options = ["--rollouts", "3", "--fail-on-error", "9"]
    calm, storm = (command(tmp_path / name, url, 40, options) for name in ("calm", "storm"))
    watcher = Killer(random.Random(0), 1, gap=(10**9, 10**9))
    watcher.disturb(calm)
    killer = Killer(random.Random(1), kills, gap=(10, 60), spares_controllers=True)
    killer.disturb(storm)
    assert killer.workers > SLACK
    assert killer.most <= watcher.most + SLACK, f"{killer.workers} workers were killed"
    with RunReader.open(storm.file) as reader:
        # By chance the storm kills two workers that tried the same task alone: then it looks guilty, and is ended.
        guilty = {event.task for event in reader.events() if event.kind == "quarantined"}
    assert len(guilty) <= 3
    assert {task for task, digest in storm.digests().items() if digest != calm.digests()[task]} <= guilty
