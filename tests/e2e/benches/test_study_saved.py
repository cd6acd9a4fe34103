"""What a rollout costs beside a chain: shares of known tries, and the command."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from studies.cell import POOL, Group
from studies.saved import saved
from studies.tables import NOTICE
from studies.tries import Try
from study import app


def group(question, arm, *costs):
    tries = [Try(1.0, "a", generated, 7, tools) for generated, tools in costs]
    return Group("default", 1, question, "lookup 1", arm, tries, 0, [])


def test_a_share_is_of_as_many_chains_of_the_same_questions():
    groups = [
        group("one", POOL, (100, 4), (100, 2)),
        group("one", "Chain(4)", (100, 3), (50, 0), (30, 3)),
        group("two", POOL, (300, 1), (100, 1)),
        group("two", "Chain(4)", (200, 1), (220, 2), (0, 0)),
    ]
    found = saved(groups, "Chain(4)")
    assert found.rollouts == 3
    assert found.generated.value == pytest.approx((180 + 420) / (300 + 600))
    assert found.tools.value == pytest.approx((6 + 3) / (9 + 3))
    assert found.generated.low < found.generated.value < found.generated.high
    assert saved(groups, "Chain(4)", 10).generated.low < found.generated.low


def test_trees_cost_less_a_rollout_and_chains_what_they_cost(tmp_path):
    kept = tmp_path / "shares.md"
    command = "saved --presets default --strategies chain,treegrpo(1 --worlds 2 --questions 4 --workers 0 --out"
    done = CliRunner().invoke(app, [*command.split(), str(kept)])
    assert done.exit_code == 0, done.output
    assert kept.read_text("utf-8") in done.output
    report = kept.read_text("utf-8")
    assert "There are 6 shares" in report
    assert "leaves 1 out" in report
    assert NOTICE in report
    shares = {
        line.split(" | ")[0][2:]: float(line.split(" | ")[2].split()[0]) for line in report.splitlines() if "[" in line
    }
    assert shares["TreeGRPO(1, 4, 2)"] < 0.75
    assert 0.75 < shares["Chain(4)"] < 1.25
