"""Settings of a team under the names of the guide to multi-agent rollouts, and a context that is counted in tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import chat_templates
import pytest
from hypothesis import given
from hypothesis import strategies as st
from team_scripts import play_replies

import trunkline as tl
from trunkline.cli.targets import make_team
from trunkline.errors import ConfigError
from trunkline.llm.token_ids.renderers import tail_by_tokens
from trunkline.team.team import GUIDE_NAMES, performance

THEIRS = ("enable_early_termination", "enable_agent_skip", "enable_preprocessing_cache", "enable_parallel_agents")
TABLE = """
[agent.performance]
enable_early_termination = true
enable_agent_skip = false
enable_preprocessing_cache = false
enable_parallel_agents = true
max_context_length = 8192
"""
TOLD = st.fixed_dictionaries(
    {}, optional={name: st.booleans() for name in GUIDE_NAMES if name != "enable_performance_monitor"}
)


def made(team: str) -> tl.Team:
    """What the command line makes."""
    return make_team({"team": team, "role": (), "model": "m", "tools": (), "max_turns": 30}, (), tl.Sampling())


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_templates.write("chatml", tmp_path_factory.mktemp("tokenizer"))


@given(TOLD, st.none() | st.integers(0, 9))
def test_either_name_gives_the_same_team(told: dict[str, bool], most: int | None):
    assert set(THEIRS) <= set(GUIDE_NAMES)
    own = tl.teams.MathTeam(model="m", max_context_length=most, **{name[7:]: value for name, value in told.items()})
    table = {**told, "max_context_length": most}
    assert tl.teams.MathTeam(model="m", **table) == own
    assert tl.teams.MathTeam(model="m", performance=table) == own
    assert tl.teams.MathTeam(model="m", performance={"agent": {"performance": table}}) == own
    assert tl.teams.MathTeam(model="m", performance={"enable_performance_monitor": False}).profiling is False


def test_a_table_of_a_file_is_read_by_the_library_and_the_command_line(tmp_path: Path):
    (tmp_path / "config.toml").write_text(TABLE)
    team = tl.teams.MathTeam(model="m", performance=str(tmp_path / "config.toml"))
    assert team == tl.teams.MathTeam(model="m", performance=tmp_path / "config.toml")
    assert (team.early_termination, team.agent_skip, team.preprocessing_cache) == (True, False, False)
    assert (team.parallel_agents, team.max_context_length, team.tokenizer) == (True, 8192, None)
    assert made(f"math:performance={tmp_path / 'config.toml'}") == team
    ours = made("math:enable_early_termination=false, enable_agent_skip=true,rounds=2")
    assert ours == made("math:early_termination=false,agent_skip=true,rounds=2")
    assert "tokenizer" not in team.settings(), "as run files of earlier days have it"


class Own(tl.teams.MathTeam):
    """A team whose own settings have such names."""

    performance: str = "fair"
    enable_agent_skip: int = 3


def test_settings_of_its_own_that_have_such_names_stay_its_own():
    own = made("test_team_performance:Own:performance=good,enable_agent_skip=4")
    assert own == Own(model="m", performance="good", enable_agent_skip=4)
    assert (own.performance, own.enable_agent_skip, own.agent_skip) == ("good", 4, True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"enable_agent_skips": True}, "performance has 'enable_agent_skips'; it can have enable_early_termination, "),
        ({3: True}, "performance has 3; it can have"),
        ({"enable_agent_skip": 1}, "performance: enable_agent_skip must be true or false, not 1"),
        ({"enable_agent_skip": True, "agent_skip": True}, "performance has agent_skip twice"),
        ({"max_context_length": -1}, "performance: max_context_length must be a whole number of at least 0, not -1"),
        ({"agent": {"performance": 3}}, "has no table agent.performance"),
        (None, "performance: None has no table agent.performance"),
        ("nowhere.toml", "performance: 'nowhere.toml' cannot be read: .*No such file"),
        (".", "performance: '.' cannot be read"),
    ],
    ids=range(9),
)
def test_a_table_that_cannot_be_is_named(given: Any, words: str):
    with pytest.raises(ConfigError, match=words):
        performance(given)


def test_a_file_that_is_no_table_is_named(tmp_path: Path):
    path = tmp_path / "x.toml"
    deep = "a = " + "[" * 100_000
    for text, words in (
        ("[agent", "cannot be read: "),
        (deep, "cannot be read"),
        ("a = 1", "has no table agent.performance"),
    ):
        path.write_text(text)
        for make in (
            lambda: tl.teams.MathTeam(model="m", performance=str(path)),
            lambda: made(f"math:performance={path}"),
        ):
            with pytest.raises(ConfigError, match=words):
                make()
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        performance(str(path))
    words = "MathTeam is given agent_skip twice, the second time by enable_agent_skip"
    with pytest.raises(ConfigError, match=words):
        tl.teams.MathTeam(model="m", agent_skip=True, enable_agent_skip=True)
    with pytest.raises(ConfigError, match=f"--team math: {words}"):
        made("math:agent_skip=true,enable_agent_skip=true")


@given(st.text("the capital is Paris\ud800\U0001f600\n", max_size=30), st.integers(0, 12))
def test_the_end_of_a_text_has_as_many_tokens_as_there_is_room_for(tokenizer: Path, text: str, most: int):
    plain, tokens = text.replace("\ud800", "\ufffd"), chat_templates.tokenizer("chatml")
    end, count = tail_by_tokens(tokenizer)(text, most)
    assert plain.endswith(end)
    assert count == len(tokens.encode(end).ids) <= most
    assert (end == plain) == (len(tokens.encode(plain).ids) <= most)


def test_a_limit_counts_tokens_where_there_is_a_tokenizer(tokenizer: Path):
    said, found = "the capital is Paris and the capital is Rome", {}
    for limit in ({}, {"max_context_length": 9}, {"max_context_length": 9, "tokenizer": str(tokenizer)}):
        team = tl.teams.MathTeam(model="m", **limit)
        team.check([])
        found[len(limit)] = play_replies(team, said, "<verify>approve</verify>").rows[1].prompt
    assert said in found[0]
    assert f"\n{said[-8:]}\n" in found[1]
    (end, _) = tail_by_tokens(tokenizer)(f"{said}\n", 9)
    assert 9 < len(end) < len(said)
    assert f"\n{end}" in found[2]
    assert said[-len(end) :] not in found[2]


def test_a_tokenizer_that_cannot_be_used_is_named_before_anything_is_sent(tmp_path: Path):
    team = tl.teams.MathTeam(model="m", max_context_length=5, tokenizer=str(tmp_path))
    with pytest.raises(ConfigError, match=r"tokenizer: there is no file .*tokenizer\.json"):
        tl.plan(team, [tl.Task.ask("q")], llm=tl.LLM("http://127.0.0.1:9/v1"))
    for wrong in ({"tokenizer": str(tmp_path)}, {"tokenizer": "", "max_context_length": 5}):
        with pytest.raises(ConfigError, match=r"give the path of a tokenizer\.json, together with max_context"):
            tl.teams.MathTeam(model="m", **wrong)
