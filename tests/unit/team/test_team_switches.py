"""Every switch of a team, off: what comes of it is the same."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from team_scripts import answers, play, play_replies, questions, rows_of, scripted, search, trees

from trunkline.team.builtin import ExpertsTeam, MathTeam, SearchTeam
from trunkline.team.projection import Reading
from trunkline.team.prompts import Context
from trunkline.team.role import Role
from trunkline.team.team import Team, TeamPlay

TEAMS = {"experts": (ExpertsTeam, {}), "math": (MathTeam, {}), "search": (SearchTeam, {"tool": search})}
TEAM = MathTeam(model="m")
ALIKE = ("parallel_agents", "preprocessing_cache", "context_fragments", "late_join", "active_only")


@pytest.mark.parametrize("name", TEAMS)
@pytest.mark.parametrize("switch", [*ALIKE, "all of them"])
def test_with_a_switch_off_the_trees_are_the_same(name: str, switch: str) -> None:
    kind, more = TEAMS[name]
    asked, script = questions(5), scripted(name, 0.4)
    off = {one: False for one in ALIKE if switch in (one, "all of them")}
    on, other = (play(kind(model="m", **more, **given), asked, script) for given in ({}, off))
    assert [tree.digest() for tree in trees(on)] == [tree.digest() for tree in trees(other)]
    assert answers(on) == answers(other)


@pytest.mark.parametrize("name", TEAMS)
@pytest.mark.parametrize("off", [("early_termination",), ("agent_skip",), ("early_termination", "agent_skip")])
def test_rows_that_a_switch_adds_are_not_active_and_the_others_are_the_same(name: str, off: tuple[str, ...]) -> None:
    kind, more = TEAMS[name]
    asked, script = questions(5), scripted(name, 0.4)
    team = kind(model="m", **more)
    on, other = play(team, asked, script), play(kind(model="m", **more, **dict.fromkeys(off, False)), asked, script)
    rows = [[row for row in rows_of(team, tree) if row.active] for tree in trees(other)]
    assert rows == [rows_of(team, tree) for tree in trees(on)]
    assert answers(on) == answers(other)


def test_each_switch_that_adds_rows_adds_those_it_says() -> None:
    early = SearchTeam(model="m", tool=search, max_steps=2, early_termination=False)
    yes, answer = "<verify>yes</verify>", "<think>t</think><answer>a</answer>"
    played = play_replies(early, yes, answer, "idle")
    assert [(row.role, row.active) for row in played.rows] == [
        ("verifier", True),
        ("answerer", True),
        ("verifier", False),
    ]
    idle = SearchTeam(model="m", tool=search, max_steps=2, agent_skip=False)
    assert [(row.role, row.active) for row in play_replies(idle, yes, "idle", answer).rows] == [
        ("verifier", True),
        ("searcher", False),
        ("answerer", True),
    ]


class Counting:
    """Whole replies, counted."""

    def __init__(self) -> None:
        self.read_so_far = 0

    def read(self, text: str, reasoning: str | None) -> Reading:
        self.read_so_far += 1
        if text == "bad":
            raise RuntimeError("what a colleague said is none of its business")
        return Reading(text)


@pytest.mark.parametrize(("active_only", "readings"), [(True, 0), (False, 2)])
def test_work_for_roles_that_are_not_asked_is_done_and_thrown_away_where_that_is_wanted(
    active_only: bool, readings: int
) -> None:
    idler = Counting()

    class Pair(Team):
        worker = Role(prompt="{question}{context}")
        idle = Role(prompt="{note}{context}", slots=("note",), reads=idler)

        async def play(self, rollout: TeamPlay) -> str:
            await rollout.ask(self.worker)
            return await rollout.ask(self.worker)

    played = play_replies(Pair(model="m", active_only=active_only), "bad", "good")
    assert (idler.read_so_far, played.answer, len(played.rows)) == (readings, "good", 2)


@pytest.mark.parametrize("context_fragments", [True, False])
def test_the_context_of_others_has_the_replies_of_active_rows_alone(context_fragments: bool) -> None:
    class Pair(Team):
        worker = Role(prompt="{question}{context}")
        idle = Role(prompt="{question}{context}")

        async def play(self, rollout: TeamPlay) -> str:
            await rollout.ask(self.idle, active=False)
            await rollout.ask(self.idle)
            return await rollout.ask(self.worker)

    played = play_replies(Pair(model="m", context_fragments=context_fragments), "unheard", "heard", "the answer")
    assert ["heard" in row.prompt for row in played.rows] == [False, False, True]
    assert not any("unheard" in row.prompt for row in played.rows)


@given(
    texts=st.lists(st.text(max_size=6), max_size=6),
    most=st.integers(0, 30),
    late_join=st.booleans(),
)
def test_a_limit_of_the_context_keeps_its_end(texts: list[str], most: int, late_join: bool) -> None:
    solver, verifier = TEAM.member("solver"), TEAM.member("verifier")

    def seen(limit: int | None) -> str:
        told = SimpleNamespace(
            members=TEAM.members, max_context_length=limit, late_join=late_join, context_tail=TEAM.context_tail
        )
        context = Context(told)
        for text in texts:
            context.add(solver, text)
        return "".join(context.seen_by(verifier))

    everything = seen(None)
    assert seen(most) == everything[max(0, len(everything) - most) :]


def test_a_limit_of_the_context_changes_what_is_sent_and_nothing_of_the_question() -> None:
    played = play_replies(
        MathTeam(model="m", max_context_length=5), "123456789", "<verify>approve</verify>", question="A long question?"
    )
    assert "problem:\nA long question?\n" in played.rows[1].prompt
    assert "so far:\n6789\n\n\nYou are" in played.rows[1].prompt
