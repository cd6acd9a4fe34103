"""Teams against a loop over whole batches with masks: equal rows, row for row."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from team_reference import Batch, play_math, play_search
from team_scripts import answers, found, play, questions, rows_of, scripted, search, trees

from trunkline.llm.batch.batcher import BatchLLM
from trunkline.runner.run import run
from trunkline.scoring.answers import extract_answer
from trunkline.team.builtin import MathTeam, SearchTeam
from trunkline.team.team import Team
from trunkline.types import Task

SIZES = (8, 64, 256)
SHARES = (0.2, 0.5, 0.9)
NAIVE = {"math": {8: 40, 64: 320, 256: 1280}, "search": {8: 96, 64: 768, 256: 3072}}


def batch_of(team: Team, asked: list[str], script: object) -> Batch:
    return Batch({name: member.role.prompt for name, member in team.members.items()}, asked, script)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("size", SIZES)
def test_the_math_team_has_the_rows_of_a_loop_over_the_whole_batch(size: int, share: float) -> None:
    team, asked, script = MathTeam(model="m"), questions(size), scripted("math", share)
    batch = batch_of(team, asked, script)
    solutions = play_math(batch)
    made = play(team, asked, script)
    assert [rows_of(team, tree) for tree in trees(made)] == batch.rows
    assert answers(made) == [extract_answer(solution) for solution in solutions]
    assert 0 < sum(map(len, batch.rows)) < NAIVE["math"][size]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("size", SIZES)
def test_the_search_team_has_the_rows_of_a_loop_over_the_whole_batch(size: int, share: float) -> None:
    team, asked, script = SearchTeam(model="m", tool=search), questions(size), scripted("search", share)
    batch = batch_of(team, asked, script)
    said = play_search(batch, found)
    made = play(team, asked, script)
    assert [rows_of(team, tree) for tree in trees(made)] == batch.rows
    assert answers(made) == said
    assert 0 < sum(map(len, batch.rows)) < NAIVE["search"][size]


@given(salt=st.integers(0, 2**32), share=st.floats(0, 1), size=st.integers(1, 5), rounds=st.integers(1, 4))
@settings(max_examples=15)
def test_any_script_gives_the_math_team_those_rows(salt: int, share: float, size: int, rounds: int) -> None:
    team, asked, script = MathTeam(model="m", rounds=rounds), questions(size), scripted(salt, share)
    batch = batch_of(team, asked, script)
    play_math(batch, rounds)
    assert [rows_of(team, tree) for tree in trees(play(team, asked, script))] == batch.rows


@given(
    salt=st.integers(0, 2**32),
    share=st.floats(0, 1),
    size=st.integers(1, 4),
    steps=st.integers(1, 5),
    history=st.integers(0, 3),
)
@settings(max_examples=15)
def test_any_script_gives_the_search_team_those_rows(
    salt: int, share: float, size: int, steps: int, history: int
) -> None:
    team = SearchTeam(model="m", tool=search, max_steps=steps, history=history)
    asked, script = questions(size), scripted(salt, share)
    batch = batch_of(team, asked, script)
    said = play_search(batch, found, steps, history)
    made = play(team, asked, script)
    assert [rows_of(team, tree) for tree in trees(made)] == batch.rows
    assert answers(made) == said


@pytest.mark.parametrize("size", SIZES)
def test_without_early_end_and_skipping_the_solver_and_the_verifier_have_five_rows_and_the_active_ones_stay(
    size: int,
) -> None:
    team = MathTeam(model="m", early_termination=False, agent_skip=False)
    asked, script = questions(size), scripted("math", 0.5)
    batch = batch_of(team, asked, script)
    solutions = play_math(batch)
    made = play(team, asked, script)
    rows = [rows_of(team, tree) for tree in trees(made)]
    assert sum(map(len, rows)) == NAIVE["math"][size]
    assert [[row for row in of_one if row.active] for of_one in rows] == batch.rows
    assert answers(made) == [extract_answer(solution) for solution in solutions]


@pytest.mark.parametrize("size", SIZES)
def test_without_early_end_and_skipping_all_three_have_a_row_each_step_and_the_active_ones_stay(size: int) -> None:
    team = SearchTeam(model="m", tool=search, early_termination=False, agent_skip=False)
    asked, script = questions(size), scripted("search", 0.5)
    batch = batch_of(team, asked, script)
    said = play_search(batch, found)
    made = play(team, asked, script)
    rows = [rows_of(team, tree) for tree in trees(made)]
    assert sum(map(len, rows)) == NAIVE["search"][size]
    assert [[row for row in of_one if row.active] for of_one in rows] == batch.rows
    assert answers(made) == said


def searched(size: int, **settings: bool | int) -> list[list[str]]:
    """The prompts of each call of an engine by a search team, whose answers are not always readable."""
    calls: list[list[str]] = []
    script = scripted("search", 0.3)

    def generate(prompts: list) -> list[str]:
        calls.append([prompt.messages[-1]["content"] for prompt in prompts])
        return [script(prompt) for prompt in calls[-1]]

    tasks = [Task.ask(question, id=str(number)) for number, question in enumerate(questions(size))]
    # Long waits: a call leaves when nobody could join it, however busy the machine is.
    llm = BatchLLM(generate, max_wait=600, tool_wait=600, **settings)
    run(SearchTeam(model="m", tool=search, max_steps=6), tasks, llm=llm, seed=5)
    return calls


@pytest.mark.parametrize(("fuse", "calls"), [(True, 12), (False, 17)])
def test_rows_of_one_batch_are_in_the_same_step_and_are_asked_together_without_regrouping(fuse: bool, calls: int):
    together = searched(40, fuse_calls=fuse)
    apart = searched(40, fuse_calls=fuse, regroup=False)
    assert len(together) == calls
    # A verifier and a call of the searchers and answerers that it sent on, or one of each, at every step.
    assert sorted(map(sorted, apart)) == sorted(map(sorted, together))


def test_without_regrouping_no_call_mixes_steps():
    def steps(call: list[str]) -> set[str]:
        return {step for prompt in call for step in re.findall(r"(?:at|this is) step (\d)", prompt)}

    mixed = searched(24, max_concurrency=4)
    assert any(len(steps(call)) > 1 for call in mixed)
    assert all(len(steps(call)) <= 1 for call in searched(24, max_concurrency=4, regroup=False))
