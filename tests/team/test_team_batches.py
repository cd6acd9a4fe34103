"""Teams against a loop over whole batches with masks: equal rows, row for row."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from team_reference import Batch, play_math, play_search
from team_scripts import answers, found, play, questions, rows_of, scripted, search, trees

from trunkline.scoring.answers import extract_answer
from trunkline.team.builtin import MathTeam, SearchTeam
from trunkline.team.team import Team

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
@settings(max_examples=15, deadline=None)
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
@settings(max_examples=15, deadline=None)
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
