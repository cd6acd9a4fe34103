"""Teams that were changed between a kill and a resume: what changes no result goes on, and what does is shown."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from foreign import serving
from plays import cuts, play, turns
from resuming import digests, undo
from small_teams import TEAMS, Cast, Council, reply, rows

from trunkline.agent import Agent
from trunkline.errors import ConfigError
from trunkline.llm.config import LLM
from trunkline.llm.request import Sampling
from trunkline.protocol.job import Job
from trunkline.runner.run import run
from trunkline.strategies.adaptive import Adaptive
from trunkline.strategies.partial import Partial
from trunkline.team.builtin import MathTeam
from trunkline.team.role import Role
from trunkline.team.team import ALIKE, Team, TeamPlay
from trunkline.types import Task

TASKS = [Task.ask(f"What is {number}?", id=str(number)) for number in range(3)]
MODELS = {name: {"model": name} for name in ("left", "right", "clerk", "judge")}


def go(team: Team, url: str, out: Path, **options: object) -> dict[str, str]:
    """Begin a run, or go on with it; returns the digests of its trees."""
    made = run(team, TASKS, llm=LLM(url), seed=5, out=out, workers=0, resume=True, **options)
    assert made.state == "done"
    return digests(out)


@pytest.mark.parametrize("switch", ALIKE)
def test_a_switch_that_changes_no_result_may_change_between_two_sittings(switch: str, tmp_path: Path) -> None:
    out = tmp_path / "r"
    with serving(reply) as server:
        there = go(Council(model="m", roles=MODELS), server.url, out)
        undo(out, "1", "2")
        asked = len(server.bodies)
        assert go(Council(model="m", roles=MODELS, **{switch: False}), server.url, out) == there
        assert len(server.bodies) == asked + 2 * asked // 3


@pytest.mark.parametrize(
    "other",
    [
        Council(model="m", roles=MODELS, max_context_length=5),
        Council(model="m", roles=MODELS, agent_skip=False),
        Council(model="m", roles={**MODELS, "left": {"model": "left", "prompt": "Another {question}"}}),
        Council(model="m", roles={**MODELS, "judge": {"model": "judge", "penalty": 0.5}}),
    ],
    ids=["context", "skip", "prompt", "penalty"],
)
def test_what_changes_results_is_refused_and_named(other: Team, tmp_path: Path) -> None:
    out = tmp_path / "r"
    with serving(reply) as server:
        go(Council(model="m", roles=MODELS), server.url, out)
        undo(out, "2")
        with pytest.raises(ConfigError, match=r"was begun with other settings: team\."):
            go(other, server.url, out)


class Before(Team):
    """Asks twice."""

    writer = Role(prompt="Write about {question}.{context}")

    async def play(self, rollout: TeamPlay) -> str:
        return await rollout.ask(self.writer) + await rollout.ask(self.writer)


class After(Before):
    """The same with another prompt."""

    writer = Role(prompt="Sing about {question}.{context}")


async def test_another_prompt_on_the_way_is_a_divergence_that_shows_both() -> None:
    whole = await play(Before(model="m"), Cast())
    half = next(core for core in cuts(whole.deltas) if turns(core) == 1)
    again = await play(After(model="m"), Cast(), half)
    assert again.llm.asked == [], "nothing is asked that differs"
    termination, _, error = again.end
    assert termination == "lost"
    assert all(said in (error or "") for said in ("ReplayDiverged", "asks 'writer'", "Sing about", "Write about"))


@pytest.mark.parametrize("switch", ALIKE)
@pytest.mark.parametrize("name", ["council", "search"])
async def test_a_switch_that_changes_no_result_is_no_divergence_in_the_middle(name: str, switch: str) -> None:
    team = TEAMS[name]
    other = msgspec.structs.replace(team, **{switch: False})
    whole = await play(team, Cast())
    for core in cuts(whole.deltas)[::3]:
        again = await play(other, Cast(), core)
        assert again.tree.digest() == whole.tree.digest()
        assert rows(again.tree.core, 0) == rows(whole.tree.core, 0)


def test_strategies_that_look_at_how_sure_models_are_ask_it_of_every_role() -> None:
    def job(team: Team, strategy: object) -> Job:
        return Job(agent=team.agent, program=team, strategy=strategy, reward=None, llm=LLM("http://x/v1"), seed=1)

    partial = Partial(region="all")
    assert job(TEAMS["math"], partial).askers[0].sampling.top_logprobs == 4
    with pytest.raises(ConfigError, match=r"top_logprobs of 'solver'"):
        job(MathTeam(model="m"), partial)
    sure = {"solver": {"sampling": Sampling(logprobs=True, top_logprobs=20)}}
    with pytest.raises(ConfigError, match="top_logprobs of 'verifier'"):
        job(MathTeam(model="m", roles=sure), Adaptive(total=4, initial=2, likeliest=20))
    assert job(TEAMS["council"], Partial(tools=["weigh"])).strategy.tools == ["weigh"]
    with pytest.raises(ConfigError, match="'dig', which the agent lacks; it has weigh"):
        job(TEAMS["council"], Partial(tools=["dig"]))


@pytest.mark.parametrize(("field", "value"), [("max_tool_calls", 3), ("on_void_turn", "stop")])
def test_limits_of_the_agents_own_loop_are_refused_in_programs(field: str, value: object) -> None:
    agent = Agent(model="m", **{field: value})
    with pytest.raises(ConfigError, match=f"program and an agent with {field}.* do not go together"):
        Job(
            agent=agent,
            program=TEAMS["math"],
            strategy=Partial(region="all"),
            reward=None,
            llm=LLM("http://x/v1"),
            seed=1,
        )
