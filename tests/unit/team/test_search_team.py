"""The search team, rule for rule."""

from __future__ import annotations

import pytest
from team_scripts import play_replies, search

from trunkline._internal.serialization import load, pack
from trunkline.errors import ConfigError
from trunkline.rollout.programs.replay import Journal
from trunkline.team.builtin import SearchTeam
from trunkline.tools.environment import Environment
from trunkline.tools.tool import tool

TEAM = SearchTeam(model="m", tool=search)
YES, NO = "<verify>yes</verify>", "<verify>no</verify>"


def query(text: str) -> str:
    return f"<think>t</think><search>{text}</search>"


def answer(text: str) -> str:
    return f"<think>t</think><answer>{text}</answer>"


def test_the_verifier_sends_a_step_to_the_answerer_or_to_the_searcher() -> None:
    played = play_replies(TEAM, NO, query("x"), YES, answer(" Rome "))
    assert played.roles == ["verifier", "searcher", "verifier", "answerer"]
    assert [row.step for row in played.rows] == [1, 1, 2, 2]
    assert played.answer == "Rome"


@pytest.mark.parametrize(
    ("verdict", "enough", "strictly"),
    [
        (YES, True, True),
        ("<VERIFY>Yes</VERIFY>", True, True),
        (f"{NO} {YES}", True, False),
        ("<Verify>NO</Verify>", False, False),
        ("<verify> no </verify>", False, False),
        ("who knows", True, False),
    ],
)
def test_a_verdict_is_read_as_the_setting_says(verdict: str, enough: bool, strictly: bool) -> None:
    for lenient, answers in ((True, enough), (False, strictly)):
        team = SearchTeam(model="m", tool=search, lenient=lenient, max_steps=2)
        more = (answer("a"),) if answers else (query("x"), YES, answer("a"))
        assert play_replies(team, verdict, *more).roles[1] == ("answerer" if answers else "searcher")


def test_at_the_last_step_a_no_asks_nobody_and_the_answer_is_the_empty_text() -> None:
    played = play_replies(SearchTeam(model="m", tool=search, max_steps=2), NO, query("x"), NO)
    assert played.roles == ["verifier", "searcher", "verifier"]
    assert played.answer == ""


def test_an_answer_that_cannot_be_read_costs_a_step() -> None:
    played = play_replies(TEAM, YES, "I say Rome", YES, answer("Rome"))
    assert [(row.role, row.step, row.valid, row.text) for row in played.rows] == [
        ("verifier", 1, True, YES),
        ("answerer", 1, False, ""),
        ("verifier", 2, True, YES),
        ("answerer", 2, True, "<answer>Rome</answer>"),
    ]
    assert "Steps taken so far: 1. The latest:\nStep 1: \n" in played.rows[2].prompt
    last = SearchTeam(model="m", tool=search, max_steps=1)
    assert play_replies(last, YES, "I say Rome").answer == ""


def test_only_the_searcher_is_told_what_the_verifier_said_and_of_this_step_alone() -> None:
    played = play_replies(TEAM, f"one {NO}", query("x"), f"two {NO}", query("y"), f"three {YES}", answer("a"))
    told = [row for row in played.rows if "The output of" in row.prompt]
    assert [(row.role, row.step) for row in told] == [("searcher", 1), ("searcher", 2)]
    assert f'step 1:\n\nThe output of "verifier": one {NO}\n\n' in told[0].prompt
    assert f'step 2:\n\nThe output of "verifier": two {NO}\n\n' in told[1].prompt


def test_the_first_step_shows_the_question_and_later_ones_the_latest_actions_and_their_number() -> None:
    played = play_replies(TEAM, NO, query("x"), NO, query("y"), NO, query("z"), YES, answer("a"))
    first, second, third, fourth = (row.prompt for row in played.rows if row.role == "verifier")
    assert "Steps taken" not in first
    assert "taken so far: 1. The latest:\nStep 1:<search>x</search> <information>pages on x</information>\n" in second
    assert "taken so far: 2. The latest:\nStep 1:" in third
    assert (
        "taken so far: 3. The latest:\nStep 2:<search>y</search> <information>pages on y</information>\n\nStep 3:"
        in fourth
    )
    assert "Step 1:" not in fourth
    blind = play_replies(SearchTeam(model="m", tool=search, history=0), NO, query("x"), YES, answer("a"))
    assert all("Steps taken" not in row.prompt for row in blind.rows)


def test_a_query_that_cannot_be_read_searches_for_nothing_and_an_empty_one_for_the_empty_text() -> None:
    played = play_replies(TEAM, NO, "let me see", NO, "</search><think>x</think><search>", YES, answer("a"))
    records = [(record.kind, record.key) for record in Journal(played.tree.core).of(0) if record.kind != "ask"]
    assert records == [("observe", ""), ("tool", "search"), ("observe", "search")]
    assert [(row.text, row.valid) for row in played.rows if row.role == "searcher"] == [
        ("", False),
        ("<search></search>", True),
    ]


def test_what_is_found_is_shown_within_its_tag_and_nothing_where_nothing_is_found() -> None:
    played = play_replies(TEAM, NO, query("nothing"), YES, answer("a"))
    assert "Step 1:<search>nothing</search> \n" in played.rows[2].prompt
    assert "<information></information>" not in played.rows[2].prompt


def test_an_answer_within_a_query_ends_the_rollout() -> None:
    played = play_replies(TEAM, NO, query("x <answer>Rome</answer> <answer>Paris</answer>"))
    assert played.answer == "Paris"
    assert play_replies(TEAM, NO, query("</answer> x <answer>")).answer == ""


def test_actions_that_are_not_valid_are_used_all_the_same_and_cost_a_hundredth() -> None:
    played = play_replies(TEAM, NO, "<search>x</search>", "hm", "<answer>是</answer>")
    assert [row.valid for row in played.rows] == [True, False, False, False]
    assert "pages on x" in played.rows[2].prompt
    assert played.answer == "是"
    assert [member.role.penalty for member in TEAM.members.values()] == [0.01] * 3


@tool
async def find(text: str, most: int = 3) -> str:
    """Find pages."""
    if text == "bad":
        raise RuntimeError("no index")
    return f"{most} pages on {text}"


def test_a_tool_may_take_one_text_and_what_goes_wrong_in_it_is_told() -> None:
    played = play_replies(SearchTeam(model="m", tool=find), NO, query("x"), NO, query("bad"), YES, answer("a"))
    assert "<information>3 pages on x</information>" in played.rows[2].prompt
    assert "no index" in played.rows[4].prompt


@tool
def nothing() -> str:
    """Take nothing."""
    return ""


@tool
def two(query: str, where: str) -> str:
    """Take two."""
    return query + where


class Counter(Environment):
    """Somewhere to search."""


@tool
def inside(counter: Counter, query: str) -> str:
    """Search, counted."""
    return query


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "tool must be the search engine, a @tool such as search(query: str) -> str; it is missing"),
        (print, "tool must be the search engine, a @tool such as search(query: str) -> str; it is <built-in"),
        (nothing, "tool must take a query and need nothing else, but nothing takes []"),
        (two, "tool must take a query and need nothing else, but two takes ['query', 'where']"),
        (
            inside,
            "Team: tool 'inside' works on the environment Counter, and the team has none: set environment=Counter",
        ),
    ],
)
def test_without_a_search_engine_that_it_can_use_there_is_no_team(given: object, message: str) -> None:
    with pytest.raises(ConfigError) as problem:
        SearchTeam(model="m", tool=given)
    assert str(problem.value).startswith(message)


@pytest.mark.parametrize("setting", [{"max_steps": 0}, {"history": -1}, {"lenient": 1}])
def test_a_setting_that_cannot_be_is_named(setting: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        SearchTeam(model="m", tool=search, **setting)


def test_the_team_crosses_to_a_worker_with_its_tool_and_its_changes() -> None:
    team = SearchTeam(model="m", tool=search, roles={"verifier": {"model": "x", "sampling": {"temperature": 0.5}}})
    crossing = pack(team, "team")
    assert crossing.pickled is None
    assert load(crossing) == team
    assert load(crossing).settings() == team.settings()
