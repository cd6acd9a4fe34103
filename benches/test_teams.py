"""Teams on a batch engine that answers at once, beside a loop over whole batches: what does a row cost?

Both sides play the same questions with the same replies, in turns; that they find the same answers in as many rows is
checked. Of both sides CPU is counted, without the engine's, for each row that counts. Ours is all of a run: prompts,
the batch engine's way, trees, records, the deltas of them and the end of each rollout. The rival does the bookkeeping
that `rivals/team.py` describes, once with texts alone and once with columns of token ids; it keeps nothing that could
be resumed, shown or forked.

Approval is the share of verdicts that approve: 0.9, 0.5 and 0.2. `--batches 4096` plays larger ones.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pytest

import teams
from rivals.team import WholeBatch

ROUNDS = 3


class Rival:
    """What the loop over whole batches takes."""

    def __init__(self, kind: str, batch: int, approval: float, *, columns: bool) -> None:
        script = teams.Script(approval)
        spent = 0.0

        def generate(role: str, rows: list[int]) -> list[str]:
            nonlocal spent
            start = time.thread_time()
            said = [script.reply(role, row) for row in rows]
            spent += time.thread_time() - start
            return said

        given = teams.questions(batch)
        start = time.thread_time()
        loop = WholeBatch(given, generate, columns=columns)
        self.answers = loop.math(teams.ROUNDS) if kind == "math" else loop.search(teams.STEPS, teams.known_of)
        self.rows = len(loop.rows())
        self.cpu = time.thread_time() - start - spent
        self.ratio = self.rows / (batch * loop.calls)

    @property
    def us_a_row(self) -> float:
        """CPU microseconds for each row that counts."""
        return 1e6 * self.cpu / self.rows


def ours(kind: str, batch: int, approval: float) -> teams.Played:
    """Play the same with a team."""
    return teams.play(teams.team(kind), teams.tasks(batch), teams.Engine(teams.Script(approval)))


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """Import everything before anything is timed."""
    for kind in ("math", "search"):
        ours(kind, 8, 0.5)
        Rival(kind, 8, 0.5, columns=True)


@pytest.mark.parametrize("approval", teams.APPROVALS)
@pytest.mark.parametrize("kind", ["math", "search"])
def test_a_team_beside_a_loop_over_whole_batches(benchmark, capsys, kind: str, approval: float, batch: int):
    played: list[teams.Played] = []
    bare: list[Rival] = []
    full: list[Rival] = []

    def rivals() -> None:
        bare.append(Rival(kind, batch, approval, columns=False))
        full.append(Rival(kind, batch, approval, columns=True))

    benchmark.pedantic(lambda: played.append(ours(kind, batch, approval)), setup=rivals, rounds=ROUNDS)
    one = played[0]
    for rival in (bare[0], full[0]):
        assert rival.rows == one.active
        assert rival.answers == [answer or "" for answer in one.answers]
    wall = median(run.wall for run in played)
    figures = {
        "samples_per_s": batch / wall,
        "ms_a_call": 1e3 * wall / one.calls,
        "rows": one.active,
        "calls": one.calls,
        "active_ratio": one.ratio(batch),
        "us_a_row": median(run.us_a_row for run in played),
        "rival_us_a_row": median(run.us_a_row for run in bare),
        "rival_us_with_columns": median(run.us_a_row for run in full),
    }
    benchmark.extra_info.update(figures, rows_by_role=dict(one.rows), ms_by_role=one.ms)
    with capsys.disabled():
        shown = "  ".join(f"{name} {value:,.4g}" for name, value in figures.items())
        by_role = "  ".join(f"{role} {ms:,.1f}" for role, ms in one.ms.items())
        print(f"\n{kind} {batch} x {approval}: {shown}  (ms by role: {by_role})")


def peak(who: str, kind: str, batch: int) -> float:
    """MiB by which the resident set of a process grows at most while it plays, modules not counted."""
    command = [sys.executable, __file__, who, kind, str(batch)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=Path(__file__).parent)
    return json.loads(done.stdout)


def test_peak_memory_beside_a_loop_over_whole_batches(benchmark, capsys, batch: int):
    found: dict[str, float] = {}
    benchmark.pedantic(
        lambda: found.update({f"{who}_mib": peak(who, "search", batch) for who in ("ours", "rival", "columns")}),
        rounds=1,
    )
    benchmark.extra_info.update(found)
    with capsys.disabled():
        print(f"\nsearch {batch} x 0.5: peak of the resident set, above an idle process: {found}")


def resident(field: str) -> int:
    """KiB of a field of /proc/self/status."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1])


def main(who: str, kind: str, size: str) -> None:
    """Play once in a process of its own, and print by how many MiB its resident set has grown at most."""
    ours(kind, 1, 0.5)
    Rival(kind, 1, 0.5, columns=True)
    before = resident("VmRSS")
    if who == "ours":
        kept: object = ours(kind, int(size), 0.5)
    else:
        kept = Rival(kind, int(size), 0.5, columns=who == "columns")
    assert kept is not None
    print(round((resident("VmHWM") - before) / 1024, 1))


if __name__ == "__main__":
    main(*sys.argv[1:])
