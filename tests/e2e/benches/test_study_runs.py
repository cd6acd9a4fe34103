"""Small studies from end to end: what they depend on, what they must show, and the command."""

from __future__ import annotations

import json
import math
import re
from itertools import chain

import pytest
from click.testing import CliRunner
from study_agents import compiled_agent

from studies import sharing
from studies.arms import ARMS, confidence, find_arms
from studies.cell import POOL, Cell, run_cell
from studies.compare import compare
from studies.engine import SimLLM
from studies.growth import grow
from studies.study import Plan, run_study
from studies.tables import NOTICE, checks_of, markdown, signed
from studies.tries import COSTS, TOKENS
from study import app
from trunkline.errors import ConfigError, InputError
from trunkline.sim.server.options import Settings
from trunkline.strategies.chain import Chain
from trunkline.strategies.tree_grpo import TreeGRPO

SMALL = Plan(("null",), ("Chain(4)", "TreeGRPO(2, 2, 1)"), worlds=2, questions=4, judged=1, pool=9, continuations=4)


def run(plan):
    return list(chain.from_iterable(run_study(plan, lambda line: None)))


def test_a_study_does_not_depend_on_its_processes():
    alone = run(SMALL._replace(processes=0))
    assert alone == run(SMALL._replace(processes=2))
    assert len(alone) == 2 * 4 * 3
    assert [group.arm for group in alone[:3]] == [POOL, *SMALL.arms]


def test_every_strategy_costs_a_few_chains_and_shows_in_null_what_theory_says():
    arms = tuple(ARMS)
    groups = run(SMALL._replace(arms=arms, questions=3, pool=16, judged=0, processes=0))
    for arm in arms:
        for prices in (TOKENS, COSTS):
            assert 3 < compare(groups, arm, prices).chains < 10, arm
    checks = checks_of(groups, arms)
    assert {check.arm for check in checks} == {name for name, arm in ARMS.items() if not arm.labels}
    assert len(checks) == 3 * (len(ARMS) - 1)
    assert [check for check in checks if not check.passed] == []
    # A table for each budget and one of the checks, each with its notice.
    assert markdown(groups, arms).count(NOTICE) == 3


def test_an_arm_that_selects_by_labels_is_not_checked(monkeypatch):
    groups = run(SMALL._replace(questions=3, judged=0, processes=0))
    monkeypatch.setitem(ARMS, "Chain(4)", ARMS["Chain(4)"]._replace(labels=True))
    assert {check.arm for check in checks_of(groups, SMALL.arms)} == {"TreeGRPO(2, 2, 1)"}


def test_arms_and_chains_are_paired_by_question_and_share_no_draw(files, monkeypatch):
    corpus, tasks = files
    groups = run_cell(Cell("default", 41, str(corpus), str(tasks), 5, 0, 6, 4, ("Chain(4)",)))
    assert [group.question for group in groups[::2]] == [group.question for group in groups[1::2]]
    alike = 0
    for pool, arm in zip(groups[::2], groups[1::2], strict=True):
        assert (len(pool.tries), len(arm.tries)) == (6, 4)
        alike += [each.generated for each in pool.tries[:4]] == [each.generated for each in arm.tries]
    assert alike == 0


def test_gains_are_as_wide_as_the_number_of_comparisons_asks():
    arms = ("Chain(4)", "Chain(4) again")
    groups = run(SMALL._replace(presets=("default",), arms=arms, questions=6, judged=0, processes=0))
    one, all_of_them = (compare(groups, arms[0], TOKENS, family).gain["passed"] for family in (1, 12))
    assert all_of_them.value == one.value
    assert all_of_them.high - all_of_them.low == pytest.approx((one.high - one.low) * 2.8653 / 1.95996, rel=1e-3)
    report = markdown(groups, arms)
    assert "There are 12 gains" in report
    assert signed(all_of_them) in report


def test_the_control_is_repeated_with_draws_of_its_own():
    groups = run(SMALL._replace(arms=("Chain(4)", "Chain(4) again"), judged=0, processes=0))
    drawn = {arm: [group.tries for group in groups if group.arm == arm] for arm in (POOL, "Chain(4)", "Chain(4) again")}
    first, again = drawn["Chain(4)"], drawn["Chain(4) again"]
    assert [len(tries) for tries in first] == [len(tries) for tries in again] == [4] * 8
    assert all(one != two for one, two in zip(first, again, strict=True))


async def test_a_strategy_sees_its_guide_and_never_a_label(lookups):
    seen = []

    class Watch(Chain):
        def ended(self, view):
            seen.extend(rollout.reward for rollout in view.rollouts)
            return []

    tree = await grow(lookups[0], compiled_agent(), Watch(3), SimLLM(Settings()), 1)
    assert all(map(math.isnan, seen))
    assert {rollout.reward for rollout in tree.rollouts} <= {0.0, 1.0}
    seen.clear()
    sure = compiled_agent(logprobs=True, top_logprobs=4)
    guided = await grow(lookups[0], sure, Watch(3), SimLLM(Settings()), 1, guide=confidence)
    assert all(0 < value < 1 for value in seen)
    assert guided.reward == tree.reward


async def test_without_log_probabilities_there_is_no_confidence(lookups):
    tree = await grow(lookups[0], compiled_agent(), TreeGRPO(), SimLLM(Settings()), 1)
    assert [confidence(rollout) for rollout in tree.rollouts] == [0.0] * 6


def test_arms_are_found_by_how_their_names_begin():
    assert find_arms([]) == list(ARMS)
    assert find_arms(["treegrpo(2", " CHAIN"]) == ["Chain(4)", "Chain(4) again", "TreeGRPO(2, 2, 1)"]
    # Names stand in a list with commas.
    assert all(name in find_arms([name]) and "," not in re.sub(r"\(.*\)", "", name) for name in ARMS)
    for wrong in ("nobody", " "):
        with pytest.raises(ConfigError, match="strategies: there is no"):
            find_arms([wrong])


def test_the_command_prints_the_tables_and_writes_them(tmp_path, monkeypatch):
    monkeypatch.setattr(sharing, "LENGTHS", (sharing.Length(3, 1, False),))
    out = tmp_path / "tables.md"
    options = [
        "--quick",
        "--presets",
        "null,default",
        "--strategies",
        "chain",
        "--questions",
        "3",
        "--first-world",
        "7",
    ]
    done = CliRunner().invoke(app, ["strategies", *options, "-w", "0", "--out", str(out)])
    assert done.exit_code == 0
    assert out.read_text("utf-8") == done.stdout.removesuffix("\n")
    for part in (
        "## null",
        "## default",
        "### At equal cost",
        "## Estimators",
        "## The check of null",
        "## What sharing saves",
        NOTICE,
    ):
        assert part in done.stdout
    assert done.stderr.splitlines() == [
        *(f"{preset}, world {world}" for world in (7, 8) for preset in ("null", "default")),
        "3 steps",
    ]


def test_the_command_prints_every_group_as_json():
    options = ["--quick", "--presets", "default", "--strategies", "chain", "--questions", "2", "--judged", "0"]
    done = CliRunner().invoke(app, ["strategies", *options, "-w", "0", "--json"])
    groups = [json.loads(line) for line in done.stdout.splitlines()]
    assert [group["arm"] for group in groups] == [POOL, "Chain(4)", "Chain(4) again"] * 4
    assert {len(group["tries"]) for group in groups} == {4, 16}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (["--presets", "hard"], ConfigError, "--presets: there is no hard"),
        (["--presets", ","], ConfigError, "--presets: there is no name"),
        (["--strategies", "nobody"], ConfigError, "there is no 'nobody'"),
        (["--questions", "2", "--judged", "3"], ConfigError, "--judged: of 2 questions, 3"),
        (["--sharing", "1"], ConfigError, "--sharing: one question"),
        (["--out", "/no/such/folder/tables.md"], InputError, "cannot write the tables here"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(options, error, message):
    done = CliRunner().invoke(app, ["strategies", "--quick", *options])
    assert isinstance(done.exception, error)
    assert message in str(done.exception)
    assert done.stderr == ""
