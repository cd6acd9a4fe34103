"""The team of experts: asked together, each on its own, and heard by one."""

from __future__ import annotations

import pytest
from team_scripts import play_replies

from trunkline.errors import ConfigError
from trunkline.llm.batch.batcher import BatchLLM
from trunkline.runner.run import run
from trunkline.team import TEAMS
from trunkline.team.builtin import ExpertsTeam
from trunkline.team.team import Team
from trunkline.types import Task

TEAM = ExpertsTeam(model="m")


@pytest.mark.parametrize("parallel_agents", [True, False])
def test_experts_see_nothing_of_one_another_and_the_synthesiser_all_of_them_in_order(parallel_agents: bool) -> None:
    team = ExpertsTeam(model="m", parallel_agents=parallel_agents)
    played = play_replies(team, "one", "two", "three", "So <answer> 4 </answer>", question="2 + 2?")
    assert played.roles == ["theorist", "practitioner", "sceptic", "synthesiser"]
    assert all("The output of" not in row.prompt and row.prompt.startswith("2 + 2?") for row in played.rows[:3])
    said = [f'\nThe output of "{row.role}": {row.text}\n' for row in played.rows[:3]]
    assert f"What they said:\n{''.join(said)}\n" in played.rows[3].prompt
    assert played.answer == "4"


@pytest.mark.parametrize(("parallel_agents", "calls"), [(True, [3, 1]), (False, [1, 1, 1, 1])])
def test_experts_are_asked_in_one_call_of_the_engine_or_one_after_the_other(
    parallel_agents: bool, calls: list[int]
) -> None:
    sizes: list[int] = []

    def generate(prompts: list[object]) -> list[str]:
        sizes.append(len(prompts))
        return ["<answer>4</answer>"] * len(prompts)

    run(ExpertsTeam(model="m", parallel_agents=parallel_agents), [Task.ask("2 + 2?", id="q")], llm=BatchLLM(generate))
    assert sizes == calls


def test_each_expert_has_a_system_prompt_of_its_own() -> None:
    played = play_replies(TEAM, "one", "two", "three", "<answer>4</answer>")
    core = played.tree.core
    contexts = [core.node(node).context for node in core.path(core.rollout(0).leaf)]
    sent = [core.request_context(context, b"[", b"]").decode() for context in contexts if context is not None]
    assert ["You are a " in one.partition('"user"')[0] for one in sent] == [True, True, True, False]


def test_an_answer_outside_the_tag_is_no_valid_action_and_none_at_all() -> None:
    played = play_replies(TEAM, "one", "two", "three", "It is 4")
    assert [row.valid for row in played.rows] == [True, True, True, False]
    assert played.answer == ""


def test_the_teams_of_the_catalog_are_found_by_their_names() -> None:
    found = dict(TEAMS)
    assert {name: kind.__name__ for name, kind in found.items()} == {
        "experts": "ExpertsTeam",
        "math": "MathTeam",
        "search": "SearchTeam",
    }
    assert all(issubclass(kind, Team) and kind.__doc__ for kind in found.values())
    with pytest.raises(KeyError):
        TEAMS["chess"]
    with pytest.raises(ConfigError, match="team: 'chess' is none of experts, math, search"):
        TEAMS.find("chess")
