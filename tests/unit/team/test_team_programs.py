"""What programs of one's own do with their rollout, and what they cannot do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from team_scripts import play, play_replies, rows_of

from trunkline.team.projection import Reading
from trunkline.team.role import Role
from trunkline.team.team import Team, TeamPlay
from trunkline.tools.tool import tool

Program = Callable[["Writing", TeamPlay], Awaitable[object]]


class Odd:
    """Reads replies as it is told to."""

    def __init__(self, found: object) -> None:
        self.found = found

    def read(self, text: str, reasoning: str | None) -> object:
        return self.found


@tool
def echo(text: str) -> str:
    """Say it again."""
    return f"echo of {text}"


class Writing(Team):
    """A writer, and a reader who is shown a draft."""

    writer = Role(prompt="Write. {context}")
    reader = Role(prompt="Read {größe}. {context}", slots=("größe",), name="Kind Reader")
    critic = Role(prompt="Judge {context}", sees=("Kind Reader",))

    async def play(self, rollout: TeamPlay) -> str:
        draft = await rollout.ask(self.writer)
        return await rollout.ask(self.reader, größe=draft)


def broken(program: Program) -> str:
    """What a rollout of a team with that program ends with."""

    class Broken(Writing):
        async def play(self, rollout: TeamPlay) -> str | None:
            return await program(self, rollout)

    (tree,) = play(Broken(model="m"), ["What?"], lambda _prompt: "x")
    facts = tree.core.rollout(0)
    assert facts.termination == "lost"
    assert '"kind":"ProgramError"' in str(facts.error)
    return str(facts.error)


@pytest.mark.parametrize("context_fragments", [True, False])
def test_what_a_role_said_can_be_used_wherever_a_text_can(context_fragments: bool) -> None:
    class Using(Writing):
        async def play(self, rollout: TeamPlay) -> str:
            draft = await rollout.ask(self.writer)
            await rollout.ask(self.reader, größe=draft)
            assert (await rollout.observe(draft)).text == "a draft"
            assert (await rollout.observe(echo, draft)).text == "echo of a draft"
            assert (await rollout.tool(echo, text=draft)).text == "echo of a draft"
            assert await rollout.call(len, draft) == 7
            rollout.finish(draft)

    played = play_replies(Using(model="m", context_fragments=context_fragments), "a draft", "fine")
    assert played.rows[1].prompt == 'Read a draft. \nThe output of "writer": a draft\n'
    assert played.answer == "a draft"


def test_a_role_sees_those_it_names_whatever_they_are_called() -> None:
    class Judged(Writing):
        async def play(self, rollout: TeamPlay) -> str:
            await super().play(rollout)
            return await rollout.ask(self.critic)

    played = play_replies(Judged(model="m"), "a draft", "fine", "good")
    assert played.rows[2].prompt == 'Judge \nThe output of "Kind Reader": fine\n'
    assert [row.prompt for row in rows_of(Judged(model="m"), played.tree)] == [row.prompt for row in played.rows]


async def _asks_as_if(team: Writing, rollout: TeamPlay) -> object:
    return await rollout.ask(team.writer, active="no")


async def _tells_a_text_its_role(team: Writing, rollout: TeamPlay) -> object:
    return await rollout.observe("Go on.", role="system")


async def _uses_a_text(team: Writing, rollout: TeamPlay) -> object:
    return await rollout.use((await rollout.ask(team.writer)).upper())


async def _finishes_with_a_number(team: Writing, rollout: TeamPlay) -> object:
    rollout.finish(5)


async def _returns_a_number(team: Writing, rollout: TeamPlay) -> object:
    return 5


@pytest.mark.breaks_rollouts
@pytest.mark.parametrize(
    ("program", "message"),
    [
        (_asks_as_if, "active must be true or false, not 'no'"),
        (_tells_a_text_its_role, "observe takes arguments for a tool alone"),
        (_uses_a_text, "use runs the calls of what ask returned, which 'X' is not"),
        (_finishes_with_a_number, "finish takes the answer, a text, or None, not 5"),
        (_returns_a_number, "the program returned 5"),
    ],
)
def test_what_a_program_cannot_do_ends_its_rollout_with_the_reason(program: Program, message: str) -> None:
    assert message in broken(program)


@pytest.mark.breaks_rollouts
@pytest.mark.parametrize("found", ["x", ("x", True), Reading(5), Reading("x", None), Reading("x", 1)])
def test_a_projection_that_finds_no_text_and_verdict_ends_its_rollout_with_the_reason(found: object) -> None:
    class Reading(Writing):
        writer = Role(reads=Odd(found))

    (tree,) = play(Reading(model="m"), ["What?"], lambda _prompt: "x")
    assert "role 'writer': reads must return a" in str(tree.core.rollout(0).error)


def test_a_projection_and_a_setting_that_say_nothing_of_themselves_are_described_by_their_names() -> None:
    class Strange(Writing):
        writer = Role(reads=Odd(Reading("x")))
        rule: object = None

    settings = [Strange(model="m", rule=rule).settings() for rule in (broken, Odd, Odd(5))]
    assert [described["rule"] for described in settings] == ["broken", "Odd", "Odd"]
    assert {described["roles"]["writer"]["reads"] for described in settings} == {"Odd"}
    assert settings[0]["roles"]["critic"]["reads"] == "Whole()"


def test_a_team_of_a_team_replaces_and_drops_roles() -> None:
    class Shorter(Writing):
        writer = Role(prompt="Anew")
        critic = None

    assert list(Shorter(model="m").members) == ["Kind Reader", "writer"]
    assert Shorter(model="m").member(Shorter.writer).role.prompt == "Anew"
