"""The math team, rule for rule."""

from __future__ import annotations

import pytest
from team_scripts import play_replies

from trunkline.errors import ConfigError
from trunkline.llm.batch.batcher import BatchLLM
from trunkline.runner.run import run
from trunkline.scoring.rewards import exact_match
from trunkline.team.builtin import MathTeam
from trunkline.types import Task

TEAM = MathTeam(model="m")
STRICT = MathTeam(model="m", lenient=False)
APPROVE, REJECT = "<verify>approve</verify>", "<verify>reject</verify>"


def test_solver_and_verifier_take_turns_until_a_solution_is_approved() -> None:
    played = play_replies(TEAM, r"\boxed{1}", REJECT, r"\boxed{2}", APPROVE)
    assert played.roles == ["solver", "verifier", "solver", "verifier"]
    assert played.answer == "2"


def test_an_approved_solution_ends_the_rollout_at_once() -> None:
    assert play_replies(TEAM, r"\boxed{1}", APPROVE).roles == ["solver", "verifier"]


def test_the_last_solution_is_not_reviewed() -> None:
    played = play_replies(TEAM, r"\boxed{1}", REJECT, r"\boxed{2}", REJECT, r"\boxed{3}")
    assert played.roles == ["solver", "verifier", "solver", "verifier", "solver"]
    assert played.answer == "3"
    assert play_replies(MathTeam(model="m", rounds=1), r"\boxed{1}").roles == ["solver"]


def test_both_see_the_problem_and_all_that_was_said_in_order() -> None:
    played = play_replies(TEAM, r"A \boxed{1}", f"B {REJECT}", r"C \boxed{2}", APPROVE, question="Why {context}?")
    said = [
        '\nThe output of "solver": A \\boxed{1}\n',
        f'\nThe output of "verifier": B {REJECT}\n',
        '\nThe output of "solver": C \\boxed{2}\n',
    ]
    for place, row in enumerate(played.rows):
        context = row.prompt.partition("so far:\n")[2].partition("\n\nYou are the")[0]
        assert context == "".join(said[:place])
        assert "problem:\nWhy {context}?\n" in row.prompt
        assert row.step == 1


@pytest.mark.parametrize(
    ("verdict", "approved", "strictly"),
    [
        (f"Fine. {APPROVE} Bye.", True, True),
        ("<verify> approve\n</verify>", True, True),
        (f"{REJECT} no, {APPROVE}", True, False),
        (REJECT, False, False),
        ("I cannot say", True, False),
        ("<verify>approved</verify>", True, False),
        (REJECT.upper(), True, False),
        (APPROVE.upper(), True, True),
    ],
)
def test_a_verdict_is_read_as_the_setting_says(verdict: str, approved: bool, strictly: bool) -> None:
    for team, ends in ((TEAM, approved), (STRICT, strictly)):
        played = play_replies(team, r"\boxed{1}", verdict, *(() if ends else (r"\boxed{2}", APPROVE)))
        assert played.answer == ("1" if ends else "2")


def test_actions_that_are_not_valid_are_used_all_the_same_and_cost_a_tenth() -> None:
    played = play_replies(TEAM, "It is 4", "Looks fine", question="2 + 2?")
    assert [row.valid for row in played.rows] == [False, False]
    assert 'The output of "solver": It is 4\n' in played.rows[1].prompt
    assert played.answer == "It is 4"
    assert [member.role.penalty for member in TEAM.members.values()] == [0.1, 0.1]


def test_the_verifiers_verdict_is_trimmed_where_it_is_shown() -> None:
    played = play_replies(TEAM, r"\boxed{1}", "No. <verify>\nreject </verify> ", r"\boxed{2}", APPROVE)
    assert 'The output of "verifier": No. <verify>reject</verify> \n' in played.rows[2].prompt


def test_rewards_read_the_boxed_answer_and_not_the_thoughts() -> None:
    def generate(prompts: list[object]) -> list[str]:
        return [r"<think>\boxed{3}</think> So \boxed{4}."] * len(prompts)

    (tree,) = run(TEAM, [Task.ask("2 + 2?", "4", id="q")], llm=BatchLLM(generate), reward=exact_match, seed=1)
    assert (tree.answer, tree.core.rollout(0).reward) == ("4", 1.0)


@pytest.mark.parametrize("setting", [{"rounds": 0}, {"rounds": 1.5}, {"lenient": "no"}])
def test_a_setting_that_cannot_be_is_named(setting: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        MathTeam(model="m", **setting)
