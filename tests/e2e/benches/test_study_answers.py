"""The study of aggregators: equal cost, no labels, what null and a shared misbelief must show, and the command."""

from __future__ import annotations

import asyncio
import json
import math
from itertools import chain
from pathlib import Path
from statistics import fmean

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from studies.answers import study
from studies.answers.arms import ARMS, MAJORITY, ONE, Arm
from studies.answers.cell import Asked, Cell, Point, run_cell
from studies.answers.cell import _right as right_of
from studies.answers.checks import LEAST, gains, nulls
from studies.answers.compare import compare, paid
from studies.answers.readers import Reader, judge
from studies.answers.study import Plan, run_study
from studies.answers.tables import checks_of, markdown
from studies.tables import NOTICE
from study import app
from trunkline.errors import ConfigError
from trunkline.scoring.aggregators.base import Candidate, Decision, Party
from trunkline.scoring.aggregators.llm import Synthesis
from trunkline.scoring.aggregators.voting import Majority, key_of
from trunkline.store.datasets.loader import load_tasks

SMALL = Plan(("null", "default"), worlds=2, questions=2, pool=4, most=3, windows=2, processes=0)
INTEGRATE = "integrate, reports written"
JUDGED = "best by a judge"


@pytest.fixture(scope="module")
def small():
    return list(chain.from_iterable(run_study(SMALL, lambda line: None)))


def asked(preset="default", seed=1, question="q", *, even=True, right=0.5, vote=None, costs=None):
    """A question in which every arm is right alike, and each chain costs 100."""
    points = {}
    for name, arm in ARMS.items():
        own = (costs or {}).get(name, [0.0, 0.0, 0.0])
        value = right if vote is None or name == ONE else vote
        curve = [Point(value, 10.0 * size, 100.0 * size + own[size - 1]) for size in (1, 2, 3)]
        points[name] = curve[:1] if arm.single else curve
    sure = {"logprob": [0.9, 0.8], "verbalised": [0.5, math.nan]}
    return Asked(preset, seed, question, "lookup 1", even, [1.0, 0.0], sure, points)


def test_a_study_does_not_depend_on_its_processes(small):
    plan = SMALL._replace(presets=("null",), processes=2)
    told = []
    found = list(chain.from_iterable(run_study(plan, told.append)))
    assert repr(found) == repr([one for one in small if one.preset == "null"])
    assert told == ["null, world 2001", "null, world 2002"]
    assert [one.question for one in small[:2]] == [one.question for one in small[2:4]], "presets ask the same questions"


def test_every_arm_answers_every_question_and_pays_for_its_own_calls(small):
    for one in small:
        assert set(one.points) == set(ARMS)
        assert {len(confidences) for confidences in one.sure.values()} == {len(one.rewards)} == {4}
        votes = one.points[MAJORITY]
        for name, points in one.points.items():
            assert len(points) == (1 if name == ONE else 3)
            assert all(0 <= point.right <= 1 for point in points)
            for own, plain in zip(points, votes, strict=False):
                assert own.tokens - plain.tokens >= (1 if "judge" in name else 0)
                if not ("judge" in name or ARMS[name].reads):
                    assert own[1:] == plain[1:]
                else:
                    assert (own.cost > plain.cost) == (own.tokens > plain.tokens)
        assert [point.cost for point in votes] == pytest.approx([votes[0].cost * size for size in (1, 2, 3)])
        assert one.points[ONE][0].right == pytest.approx(fmean(reward > 0 for reward in one.rewards))
    # Nothing is asked of a model where all tries agree, and one try always does.
    assert all(one.points[INTEGRATE][0] == one.points[MAJORITY][0] for one in small)
    assert any(one.points[INTEGRATE][2].cost > one.points[MAJORITY][2].cost for one in small)


def test_the_tables_and_checks_of_a_small_study(small):
    report = markdown(small)
    assert report.count(NOTICE) == 4
    for part in (
        "## null\n\n4 questions of worlds 2001 to 2002.",
        "## default",
        "## Calibration",
        "## The check of null",
    ):
        assert part in report
    assert [line.count("|") for line in report.splitlines() if line.startswith("| majority |")] == [8, 8, 5]
    assert [one.check.passed for one in nulls(small)] == [True] * len(ARMS)
    assert gains(small) == [], "it was not run under a shared misbelief"


def test_no_arm_is_shown_a_label(files, monkeypatch):
    seen = []

    class Watch(Majority, frozen=True):
        async def decide(self, question, candidates):
            seen.extend(candidates)
            return await Majority.decide(self, question, candidates)

    spied = {ONE: ARMS[ONE], MAJORITY: ARMS[MAJORITY]}
    spied |= {
        "plain": Arm("plain", lambda _: Watch()),
        "judged": Arm("judged", lambda _: Watch(), judged=True),
        "extracted": Arm("extracted", lambda _: Watch(), extracted=True),
    }
    monkeypatch.setattr("studies.answers.cell.ARMS", spied)
    corpus, tasks = files
    (found,) = run_cell(Cell("default", 41, str(corpus), str(tasks), 1, 6, 2, 3))
    third = len(seen) // 3
    assert third == 3 * (1 + 2)
    assert all(math.isnan(one.value) for one in seen)
    assert all(math.isnan(one.reward) for one in seen[:third] + seen[2 * third :])
    assert {one.reward for one in seen[third : 2 * third]} <= {0.0, 1.0}
    assert [bool(one.report) for one in seen] == [False] * 2 * third + [True] * third
    assert all("Answer: " in one.report for one in seen[2 * third :] if one.answer)
    assert len(found.rewards) == 6


@pytest.mark.parametrize(
    ("answers", "tied", "right"),
    [
        (["a", "b"], True, 0.5),
        (["b", "a", "c"], True, 1 / 3),
        (["b", "a"], False, 0.0),
        (["a"], False, 1.0),
        ([], False, 0.0),
    ],
)
def test_a_tie_counts_as_its_expectation(answers, tied, right):
    parties = tuple(Party(answer, (place,), 1.0) for place, answer in enumerate(answers))
    decision = Decision(answer=answers[0] if answers else None, parties=(*parties, Party("A", (9,), 0.5)), tied=tied)
    assert right_of(decision, {key_of("a")}) == pytest.approx(right)


def test_a_question_in_which_nothing_can_be_chosen_wrongly_is_found(tmp_path):
    with study.worlds(101, 1, 40) as known:
        corpus, path = known[101]
        lines = Path(path).read_text("utf-8").splitlines(keepends=True)
        (sure,) = [line for line in lines if json.loads(line)["id"] == "q0034"]
        few = tmp_path / "few.jsonl"
        few.write_text(lines[0] + sure, "utf-8")
        null = run_cell(Cell("null", 101, corpus, str(few), 2, 12, 1, 1))
        usual = run_cell(Cell("default", 101, corpus, str(few), 2, 2, 1, 1))
    assert [one.even for one in null] == [True, False]
    assert null[1].rewards == [1.0] * 12
    assert not any(one.even for one in usual)


@pytest.fixture(scope="module")
def sums(files):
    return [task for task in load_tasks(str(files[1])) if task.metadata["kind"] == "arithmetic"]


async def test_who_reads_knows_nothing_in_null_and_elsewhere_most(sums):
    async def accepted(preset, answer):
        reader = Reader(preset)
        verdicts = [await judge(reader, one.question, Candidate(id=0, answer=answer(one))) for one in sums]
        assert all(verdict.usage.calls == 1 for verdict in verdicts)
        return sum(verdict.reward for verdict in verdicts) / len(verdicts)

    assert len(sums) >= 12
    for answer in (lambda one: one.reference[0], lambda one: "7"):
        assert 0.15 < await accepted("null", answer) < 0.85
    assert await accepted("default", lambda one: one.reference[0]) > 0.6
    assert await accepted("default", lambda one: "7") < 0.5


async def test_a_reader_answers_an_equal_request_once_and_every_one_is_paid_for(sums, monkeypatch):
    reader = Reader("default")
    asked_for = []
    inner = reader._llm.complete

    async def complete(request):
        asked_for.append(request.body)
        return await inner(request)

    monkeypatch.setattr(reader._llm, "complete", complete)
    tries = [Candidate(id=0, answer="1"), Candidate(id=1, answer=sums[0].reference[0])]
    picker = Synthesis(reader, "sim-picker")
    first, second = [await picker.decide(sums[0].question, tries) for _ in range(2)]
    assert len(asked_for) == len(set(asked_for)) == first.usage.calls
    assert first == second
    assert second.usage.generated > 0
    again = await asyncio.gather(*(judge(reader, sums[0].question, tries[0]) for _ in range(2)))
    assert again[0] == again[1]


def test_an_arm_gets_as_many_chains_as_its_calls_leave_it():
    costs = {JUDGED: [50.0, 100.0, 150.0], INTEGRATE: [0.0, 0.0, 400.0]}
    found = [asked(seed=seed, question=name, costs=costs) for seed in (1, 2) for name in "abc"]
    rows = {row.arm: row for row in compare(found)}
    assert (rows[ONE].chains, rows[ONE].cost.value) == (1.0, 100.0)
    assert (rows[MAJORITY].chains, rows[MAJORITY].cost.value) == (3.0, 300.0)
    # 150 a chain of the judge's, so two for 300; 200 for two chains of the other's, and of the third a fifth.
    assert (rows[JUDGED].chains, rows[JUDGED].cost.value) == (2.0, 300.0)
    assert rows[INTEGRATE].chains == pytest.approx(2.2)
    assert rows[INTEGRATE].cost.value == pytest.approx(300.0)
    assert rows[INTEGRATE].tokens.value == pytest.approx(22.0)


def test_a_budget_is_read_off_the_other_worlds():
    dear, cheap = {JUDGED: [100.0, 200.0, 300.0]}, {JUDGED: [50.0, 100.0, 150.0]}
    found = [asked(seed=seed, question=name, costs=dear if seed == 1 else cheap) for seed in (1, 2) for name in "abc"]
    assert [one.chains for one in paid(found, JUDGED)] == pytest.approx([2.0] * 3 + [1.5] * 3)
    with pytest.raises(ConfigError, match="measured in other worlds"):
        compare(found[:3])
    ruinous = [asked(seed=seed, costs={JUDGED: [250.0, 300.0, 350.0]}) for seed in (1, 2)]
    with pytest.raises(ConfigError, match="best by a judge: one chain and its calls cost more than 3 chains"):
        paid(ruinous, JUDGED)


@given(
    st.lists(st.floats(0, 150), min_size=3, max_size=3),
    st.lists(st.floats(0, 1), min_size=3, max_size=3),
)
def test_what_an_arm_costs_is_the_budget_and_it_is_right_by_the_lottery(own, rights):
    calls = [own[0], own[0] + own[1], own[0] + own[1] + own[2]]
    found = []
    for seed in (1, 2):
        one = asked(seed=seed, costs={JUDGED: calls})
        points = [point._replace(right=right) for point, right in zip(one.points[JUDGED], rights, strict=True)]
        found.append(one._replace(points=one.points | {JUDGED: points}))
    chains, point = paid(found, JUDGED)[0]
    assert point.cost == pytest.approx(300.0)
    assert 1 <= chains <= 3
    below = min(int(chains), 2)
    share = chains - below
    assert point.right == pytest.approx((1 - share) * rights[below - 1] + share * rights[below])


def test_in_null_no_arm_may_be_above_theory_where_one_answer_is_wrong():
    def found(right, sure):
        both = [right, right, right, 1 - right]
        return [
            asked("null", seed, f"{place}", even=place >= sure, right=both[place % 4])
            for seed in (1, 2)
            for place in range(40)
        ]

    fair = nulls(found(0.5, 0))
    assert [one.theory for one in fair] == [0.5] * len(ARMS)
    assert all(one.check.passed for one in fair)
    assert nulls(found(0.5, 4))[0].found.questions == 72
    # Below theory is no error: a model that picks may well do harm.
    assert all(one.check.passed for one in nulls(found(0.1, 0)))
    above = checks_of(found(0.95, 0))
    assert not any(one.passed for one in above)
    assert "one try: it is right with 0.7250 where theory allows 0.5000" in above[0].what
    assert nulls(found(0.95, 40)) == []
    assert nulls([asked()]) == []


def test_under_a_shared_misbelief_a_vote_must_gain_little_and_less_than_by_default():
    def both(usual, shared, questions):
        return [
            asked(preset, seed, f"{place}", right=0.5, vote=0.5 + gain + (place % 2 - 0.5) / 50)
            for preset, gain in (("default", usual), ("shared-misbelief", shared))
            for seed in (1, 2)
            for place in range(questions // 2)
        ]

    held = gains(both(0.13, 0.02, LEAST))
    assert [one.of for one in held] == ["default", "shared-misbelief", "default less shared-misbelief"]
    assert [one.found.value for one in held] == pytest.approx([0.13, 0.02, 0.11])
    assert [None if one.check is None else one.check.passed for one in held] == [None, True, True]
    assert [one.check.passed for one in gains(both(0.01, 0.02, LEAST))[1:]] == [True, False]
    assert [one.check.passed for one in gains(both(0.13, 0.07, LEAST))[1:]] == [False, True]
    assert [one.check for one in gains(both(0.01, 0.07, LEAST - 2))] == [None, None, None]
    assert "| shared-misbelief | +0.070 [+0.068, +0.072] | **NO** |" in markdown(both(0.13, 0.07, LEAST))


def test_the_command_prints_the_tables_and_writes_them(tmp_path):
    out = tmp_path / "tables.md"
    options = ["--quick", "--presets", "null", "--questions", "1", "-w", "0"]
    done = CliRunner().invoke(app, ["answers", *options, "--out", str(out)])
    assert done.exit_code == 0
    assert out.read_text("utf-8") == done.stdout.removesuffix("\n")
    assert "## The check of null" in done.stdout
    assert done.stderr.splitlines() == ["null, world 2001", "null, world 2002"]


def test_the_command_prints_questions_as_json_and_ends_with_1_where_a_check_fails(monkeypatch):
    above = [asked("null", seed, f"{place}", right=0.9 + place / 1000) for seed in (1, 2) for place in range(5)]
    plans = []

    def run(plan, tell):
        plans.append(plan)
        return [above]

    monkeypatch.setattr(study, "run_study", run)
    done = CliRunner().invoke(
        app, ["answers", "--presets", "null", "--worlds", "3", "--first-world", "9", "-w", "0", "--json"]
    )
    assert done.exit_code == 1
    assert [json.loads(line)["question"] for line in done.stdout.splitlines()] == list("0123401234")
    assert done.stderr.splitlines()[0].startswith("null: one try: it is right with 0.9020")
    assert plans == [Plan(("null",), first=9, worlds=3, processes=0)]


def test_a_mistake_is_told_before_anything_runs():
    for options, message in ((["--presets", "hard"], "--presets: there is no hard"), (["--out", "/no/such/x"], "here")):
        done = CliRunner().invoke(app, ["answers", "--quick", *options])
        assert message in str(done.exception)
        assert done.stderr == ""
