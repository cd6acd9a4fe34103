"""Teams over HTTP and in worker processes: the same rows, and the same trees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from foreign import message, serving
from team_reference import Batch, play_math, play_search
from team_scripts import found, questions, rows_of, scripted, search, trees

from trunkline.errors import CrossingError
from trunkline.llm.config import LLM
from trunkline.llm.request import Sampling
from trunkline.rollout.programs.replay import Journal
from trunkline.runner.run import run
from trunkline.store.reader import RunReader
from trunkline.team.builtin import ExpertsTeam, MathTeam, SearchTeam
from trunkline.team.projection import Reading
from trunkline.team.role import Role
from trunkline.team.team import Team, TeamPlay
from trunkline.tools.tool import tool
from trunkline.types import Task

TEAMS = [MathTeam(model="m"), SearchTeam(model="m", tool=search), ExpertsTeam(model="m")]


@pytest.mark.parametrize("team", TEAMS, ids=lambda team: type(team).__name__)
def test_a_team_has_the_rows_of_a_batch_whatever_the_processes(team: object, tmp_path: Path) -> None:
    asked, script = questions(6), scripted("http", 0.4)
    batch = Batch({name: member.role.prompt for name, member in team.members.items()}, asked, script)
    tasks = [Task.ask(question, id=str(number)) for number, question in enumerate(asked)]
    digests = []
    for workers in (0, 2):
        with serving(lambda body: message(script(body["messages"][-1]["content"]))) as server:
            llm = LLM(server.url, max_concurrency=4)
            made = run(team, tasks, llm=llm, seed=5, workers=workers, out=tmp_path / str(workers))
            rows = [rows_of(team, tree) for tree in trees(made)]
            assert len(server.bodies) == sum(map(len, rows))
        digests.append([tree.digest() for tree in trees(made)])
        with RunReader.open(tmp_path / str(workers)) as reader:
            assert reader.check() == []
    assert digests[0] == digests[1]
    if isinstance(team, MathTeam):
        play_math(batch)
        assert rows == batch.rows
    elif isinstance(team, SearchTeam):
        play_search(batch, found)
        assert rows == batch.rows


def test_a_team_of_a_closure_crosses_with_its_projection_and_tools_and_one_with_settings_is_refused() -> None:
    class Loud:
        def read(self, text: str, reasoning: str | None) -> Reading:
            return Reading(text.upper(), False)

    @tool
    def look(where: str) -> str:
        """Look."""
        return f"dust {where}"

    class Pair(Team):
        scout = Role(prompt="Scout {question}", reads=Loud(), tools=[look])
        clerk = Role(prompt="Write {context}")

        async def play(self, rollout: TeamPlay) -> str:
            said = await rollout.ask(self.scout)
            await rollout.observe(look, said)
            return await rollout.ask(self.clerk)

    class Optioned(Pair):
        rounds: int = 1

    tasks = [Task.ask("What?", id=str(number)) for number in range(3)]
    changed = {"clerk": {"tools": [look], "sampling": Sampling(temperature=0.5)}}
    with serving(lambda body: message(f"{len(body.get('tools', []))} {body.get('temperature')}")) as server:
        llm = LLM(server.url)
        digests = []
        for workers in (0, 2):
            made = run(Pair(model="m", roles=changed), tasks, llm=llm, seed=1, workers=workers)
            digests.append([tree.digest() for tree in trees(made)])
            assert {tree.answer for tree in made} == {"1 0.5"}
        assert digests[0] == digests[1]
        asked = len(server.bodies)
        with pytest.raises(CrossingError, match=r"program Optioned: its class has settings.*or run with workers=0"):
            run(Optioned(model="m"), tasks, llm=llm, workers=2)
        assert len(server.bodies) == asked


def test_a_server_that_returns_thoughts_apart_makes_no_action_invalid() -> None:
    def handler(body: dict[str, object]) -> dict[str, object]:
        answering = "You are the answerer" in json.dumps(body)
        reply = message("<answer>4</answer>" if answering else "<verify>yes</verify>")
        reply["choices"][0]["message"]["reasoning_content"] = "I thought"
        return reply

    with serving(handler) as server:
        made = run(TEAMS[1], [Task.ask("2 + 2?", id="q")], llm=LLM(server.url), seed=1)
    (tree,) = made
    asks = [record for record in Journal(tree.core).of(0) if record.kind == "ask"]
    assert [record.data[2][1] for record in asks] == [True, True]
    assert tree.answer == "4"
