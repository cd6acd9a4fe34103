"""Teams over HTTP and in worker processes: the same rows, and the same trees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from foreign import message, serving
from team_reference import Batch, play_math, play_search
from team_scripts import found, questions, rows_of, scripted, search, trees

from trunkline.llm.spec import EndpointSpec
from trunkline.rollout.journal import Journal
from trunkline.runtime.run import run
from trunkline.store.reader import RunReader
from trunkline.team.programs.experts import ExpertsTeam
from trunkline.team.programs.math import MathTeam
from trunkline.team.programs.search import SearchTeam
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
            llm = EndpointSpec(server.url, max_concurrency=4)
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


def test_a_server_that_returns_thoughts_apart_makes_no_action_invalid() -> None:
    def handler(body: dict[str, object]) -> dict[str, object]:
        answering = "You are the answerer" in json.dumps(body)
        reply = message("<answer>4</answer>" if answering else "<verify>yes</verify>")
        reply["choices"][0]["message"]["reasoning_content"] = "I thought"
        return reply

    with serving(handler) as server:
        made = run(TEAMS[1], [Task.ask("2 + 2?", id="q")], llm=EndpointSpec(server.url), seed=1)
    (tree,) = made
    asks = [record for record in Journal(tree.core).of(0) if record.kind == "ask"]
    assert [record.data[2][1] for record in asks] == [True, True]
    assert tree.answer == "4"
