"""``--team`` and ``--role``: the team that they make, and what is said where they cannot."""

from __future__ import annotations

from typing import Any

import pytest
from atlas import lookup
from notebook import Notebook
from pair_team import Finding, Looking, Pair

from trunkline.cli.targets import make_team
from trunkline.errors import ConfigError
from trunkline.llm.request import Sampling
from trunkline.team import TEAMS
from trunkline.team.team import Team

NOTHING = Sampling()


def made(team: str, *roles: str, sampling: Sampling = NOTHING, **told: Any) -> Team:
    given = {"team": team, "role": roles, "model": "m", "tools": (), "max_turns": 30} | told
    return make_team(given, told, sampling)


def test_a_team_has_the_model_and_its_own_settings():
    team = made("pair_team:Pair:rounds=4,eager=true,context_fragments=false")
    assert isinstance(team, Pair)
    assert (team.model, team.rounds, team.eager, team.context_fragments) == ("m", 4, True, False)
    assert (team.max_turns, team.roles) == (100, {})


@pytest.mark.parametrize("name", sorted(set(TEAMS) - {"search"}))
def test_teams_of_the_library_have_names(name: str):
    assert type(made(name)) is TEAMS[name]


def test_the_search_team_is_given_its_tool():
    assert made("search:max_steps=2", tools=("atlas:lookup",)).tool is lookup


def test_turns_that_somebody_names_are_those_of_the_team():
    assert made("pair_team:Pair", max_turns=7).max_turns == 7
    assert made("pair_team:Pair:max_turns=8").max_turns == 8


def test_roles_are_changed_one_field_at_a_time():
    team = made(
        "pair_team:Pair",
        "solver.model=large",
        "checker.sampling.top_p=0.5",
        "checker.sampling.stop=END/STOP",
        "checker.sees=solver",
        "solver.system=a = b, c",
        "solver.dialect=hermes",
        "solver.tools=atlas:lookup",
    )
    solver, checker = team.members["solver"], team.members["checker"]
    assert (solver.agent.model, checker.agent.model) == ("large", "m")
    assert (solver.role.system, solver.role.dialect, list(solver.role.tools)) == ("a = b, c", "hermes", [lookup])
    assert checker.agent.sampling == Sampling(temperature=0.5, top_p=0.5, stop=("END", "STOP"))
    assert list(checker.role.sees or ()) == ["solver"]


def test_sampling_of_the_run_holds_for_roles_that_say_nothing_else():
    said = Sampling(temperature=0.9, max_tokens=100)
    team = made("pair_team:Pair", "solver.sampling.max_tokens=50", sampling=said)
    assert team.members["solver"].agent.sampling == Sampling(temperature=0.9, max_tokens=50)
    assert team.members["checker"].agent.sampling == Sampling(temperature=0.5, max_tokens=100)


def test_a_team_that_is_made_already_keeps_what_it_was_given():
    team = made("pair_team:READY", "solver.sampling.temperature=0", sampling=Sampling(max_tokens=9))
    assert (team.model, team.rounds) == ("m", 4)
    assert team.members["solver"].agent.model == "other"
    assert team.members["solver"].agent.sampling == Sampling(temperature=0, max_tokens=9)
    assert team.members["checker"].agent.sampling == Sampling(top_p=0.9, max_tokens=9)


def test_tools_go_to_the_setting_that_takes_them():
    looking = made("pair_team:Looking", tools=("atlas:lookup",))
    finding = made("pair_team:Finding", tools=("atlas:lookup",))
    assert isinstance(looking, Looking)
    assert list(looking.tools) == [lookup]
    assert isinstance(finding, Finding)
    assert finding.tool is lookup


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            ("nothing",),
            "--team 'nothing': 'nothing' is none of experts, math, search; your own is written module:Class",
        ),
        (("pair_team:Nobody",), "has no 'Nobody'"),
        (("pair_team:Pair:round=2",), "'round=2' is no option=value that it knows; its options are rounds, eager,"),
        (("pair_team:Pair:rounds=few",), "rounds must be a whole number, not 'few'"),
        (("pair_team:Pair:model=x",), "'model=x' is no option=value that it knows"),
        (("pair_team:Pair:roles=x",), "'roles=x' is no option=value that it knows"),
        (("pair_team:Pair:max_turns=0",), "max_turns must be"),
        (("atlas:CAPITALS",), "dict is no team; derive it from trunkline.Team"),
        (("pair_team:Finding",), "tool"),
        (("pair_team:Pair", "judge.model=x"), "there is no role 'judge'; the roles are solver, checker"),
        (("pair_team:Pair", "solver=x"), "write NAME.FIELD=VALUE, for example solver.model=NAME"),
        (("pair_team:Pair", "solver.model"), "write NAME.FIELD=VALUE"),
        (("pair_team:Pair", "solver.name=x"), "a role has no such field"),
        (("pair_team:Pair", "solver.reads=x"), "those that can be given are prompt, system, sees"),
        (("pair_team:Pair", "solver.sampling=x"), "sampling.temperature"),
        (("pair_team:Pair", "solver.sampling.heat=1"), "those that can be given are sampling.temperature,"),
        (("pair_team:Pair", "solver.sampling.temperature=hot"), "temperature must be a number or none, not 'hot'"),
        (("pair_team:Pair", "solver.sampling.temperature=-1"), "sampling.temperature must be"),
        (("pair_team:Pair", "solver.penalty=-1"), "penalty must be a number of at least 0"),
        (("pair_team:Pair", "solver.prompt={qestion}"), "almost {question}"),
        (("pair_team:Pair", "solver.dialect=x"), "dialects are native, hermes, search-r1"),
        (("pair_team:Pair", "solver.tools=atlas:CAPITALS"), "is not a tool"),
    ],
)
def test_a_mistake_is_named(call: tuple[str, ...], said: str):
    with pytest.raises(ConfigError) as refused:
        made(*call)
    assert said in str(refused.value)
    assert str(refused.value).startswith(("--team", "--role", "--tools"))


def test_a_field_has_one_value():
    with pytest.raises(ConfigError, match=r"--role 'solver.model=b': solver\.model is given twice"):
        made("pair_team:Pair", "solver.model=a", "checker.model=a", "solver.model=b")
    with pytest.raises(ConfigError, match=r"checker\.sampling\.top_p is given twice"):
        made("pair_team:Pair", "checker.sampling.top_p=0.1", "checker.sampling.top_p = 0.1")


def test_tools_of_a_role_are_blamed_on_the_role():
    with pytest.raises(ConfigError, match=r"^--role 'solver.tools=nowhere:x': tools 'nowhere:x': cannot import"):
        made("pair_team:Pair", "solver.tools=nowhere:x")


def test_tools_that_nobody_takes_are_refused():
    with pytest.raises(ConfigError, match="Pair takes none; a role's own are --role NAME"):
        made("pair_team:Pair", tools=("atlas:lookup",))
    with pytest.raises(ConfigError, match="takes one tool, as module:attribute, and not search, visit"):
        made("pair_team:Finding", tools=("trunkline.sim.tools",))


def test_a_team_is_given_its_environment():
    team = made("search", tools=("notebook:look",), environment="notebook:Notebook")
    assert team.agent.environment is Notebook
    with pytest.raises(ConfigError, match="Team: tool 'look' works on the environment Paper, and the team has none"):
        made("search", tools=("notebook:look",))
    with pytest.raises(ConfigError, match="environment 'nowhere:x': cannot import"):
        made("pair_team:Pair", environment="nowhere:x")


@pytest.mark.parametrize("option", ["program", "system", "dialect", "malformed", "on_void_turn"])
def test_what_is_for_one_agent_is_refused(option: str):
    with pytest.raises(ConfigError, match=f"--{option.replace('_', '-')}|program"):
        made("pair_team:Pair", **{option: "x"})
