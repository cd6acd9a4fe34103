"""Small teams for tests, one for each way in which agents talk, and a cast that plays any of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from team_scripts import search

from trunkline._core import CoreTree
from trunkline.errors import BadRequest, LLMError
from trunkline.llm.config import LLM
from trunkline.llm.request import Sampling
from trunkline.llm.response import read
from trunkline.llm.types import Reply, Request
from trunkline.rollout.programs.replay import Journal
from trunkline.runner.run import run
from trunkline.strategies.chain import Chain
from trunkline.strategies.tree_grpo import TreeGRPO
from trunkline.team.builtin import ExpertsTeam, MathTeam, SearchTeam
from trunkline.team.projection import Tag
from trunkline.team.role import Role
from trunkline.team.team import Team, TeamPlay
from trunkline.tools.tool import tool
from trunkline.types import Task

SURE = Sampling(logprobs=True, top_logprobs=4)
"""Who looks at how sure the model was needs this of every role."""


@tool
async def weigh(what: str) -> str:
    """Weigh something.

    Args:
        what: What to weigh.
    """
    return f"{len(what)} g"


class Loop(Team):
    """A writer and a critic, by turns, until the critic is content: nothing is ever observed."""

    writer = Role(prompt="Write on {question}, draft {step}.{context}", sampling=SURE)
    critic = Role(prompt="Judge:{context}", reads=Tag("verify", keep="all"), penalty=0.5, sampling=SURE)

    async def play(self, rollout: TeamPlay) -> str:
        for _ in range(3):
            draft = await rollout.ask(self.writer)
            if "yes" in await rollout.ask(self.critic):
                break
        return draft


class Council(Team):
    """Two at once in each step, with a tool that weighs what was said; then one who hears what came last."""

    left = Role(prompt="Left of {question}, step {step}.{context}", sampling=SURE)
    right = Role(prompt="Right of {question}, step {step}.{context}", sampling=SURE)
    clerk = Role(prompt=None, tools=[weigh], sampling=SURE)
    judge = Role(prompt="Judge {question} by {context}", reads=Tag("verify"), penalty=0.25, sampling=SURE)

    async def play(self, rollout: TeamPlay) -> str:
        for _ in range(2):
            one, two = await asyncio.gather(rollout.ask(self.left), rollout.ask(self.right))
            await rollout.observe(weigh, what=one + two + str(rollout.random.randrange(100)))
        await rollout.use(await rollout.ask(self.clerk))
        await asyncio.gather(rollout.ask(self.left), rollout.ask(self.right))
        return await rollout.ask(self.judge)


class Stubborn(Team):
    """Asks somebody whose endpoint refuses, beside one who answers, and goes on with what is there."""

    absent = Role(prompt="Are you there, {question}?", sampling=SURE)
    present = Role(prompt="Say something on {question}.{context}", sampling=SURE)

    async def play(self, rollout: TeamPlay) -> str:
        said: list[str] = []
        for _ in range(2):
            heard = await asyncio.gather(
                rollout.ask(self.present), rollout.ask(self.absent), rollout.ask(self.present), return_exceptions=True
            )
            if any(isinstance(one, BaseException) and not isinstance(one, LLMError) for one in heard):
                raise next(one for one in heard if isinstance(one, BaseException) and not isinstance(one, LLMError))
            said += [one for one in heard if isinstance(one, str)]
        return await rollout.ask(self.present)


def shipped(kind: type[Team], **settings: Any) -> Team:
    """Make a team of the library whose roles are models of their own names."""
    roles = {name: {"model": name, "sampling": SURE} for name in kind.own_roles()}
    return kind(model="m", roles=roles, **settings)


TEAMS: dict[str, Team] = {
    "math": shipped(MathTeam),
    "search": shipped(SearchTeam, tool=search, max_steps=3),
    "experts": shipped(ExpertsTeam),
    "loop": shipped(Loop),
    "council": shipped(Council),
    "stubborn": shipped(Stubborn),
}


class Cast:
    """Models that say by chance what their role may say; the same to the same prompt under the same seed.

    Args:
        wait: Turns of the event loop that an answer of a model takes.
    """

    siblings = False

    def __init__(self, wait: Callable[[str], int] = lambda model: 0) -> None:
        self.wait = wait
        self.bodies: list[dict[str, Any]] = []

    @property
    def asked(self) -> list[str]:
        """Who was asked."""
        return [body["model"] for body in self.bodies]

    async def complete(self, request: Request) -> Reply:
        body = json.loads(request.body)
        self.bodies.append(body)
        for _ in range(self.wait(body["model"])):
            await asyncio.sleep(0)
        if body["model"] == "absent":
            raise BadRequest("not here")
        return (request.take or read)(json.dumps(reply(body)).encode(), 0, 1, 5)

    async def close(self) -> None: ...


def reply(body: dict[str, Any]) -> dict[str, Any]:
    """What a model of these teams says, as a server sends it."""
    chance = Random(json.dumps([body["model"], body["seed"], body["messages"]]))
    number = chance.randrange(1000)
    message: dict[str, Any] = {"role": "assistant", "content": said_by(body["model"], number, chance)}
    if body["model"] == "clerk":
        call = {"name": "weigh", "arguments": json.dumps({"what": "x" * number})}
        message["tool_calls"] = [{"id": "1", "type": "function", "function": call}]
    tokens = [_token(f"t{place}", chance) for place in range(3)]
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": {"content": tokens}}
    return {"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}


def said_by(model: str, number: int, chance: Random) -> str:
    """What a role says."""
    match model:
        case "solver":
            return chance.choice([rf"\boxed{{{number}}}", f"It is {number}."])
        case "verifier":
            return f"{number} " + chance.choice(
                [*["<verify>no</verify><verify>reject</verify>"] * 3, "<verify>yes</verify>"]
            )
        case "searcher":
            return f"<think>t</think><search>{number}</search>"
        case "answerer" | "synthesiser":
            return f"<think>t</think><answer>{number}</answer>"
        case "critic" | "judge":
            return chance.choice([f"<verify>no {number}</verify>", f"{number}", f"<verify>yes {number}</verify>"])
        case _:
            return f"{model} says {number}"


def _token(text: str, chance: Random) -> dict[str, Any]:
    likely = [{"token": f"{text}.{rank}", "logprob": -chance.random() - rank, "bytes": None} for rank in range(4)]
    return {**likely[0], "top_logprobs": likely}


class Act(NamedTuple):
    """One thing that a team did, as its record has it.

    Attributes:
        kind: Such as ``ask``.
        role: Who, or which tool.
        nodes: What it appended.
        note: What the team noted of it: active, valid, step, penalty.
        failed: Whether it failed.
    """

    kind: str
    role: str
    nodes: tuple[int, ...]
    note: Any
    failed: bool


def acts(core: CoreTree, rollout: int) -> list[Act]:
    """What the program of a rollout did, from its very beginning."""
    found = []
    for record in Journal(core).of(rollout):
        asks = record.kind == "ask" and bool(record.data)
        failed = asks and record.data[1] is not None
        note = record.data[2] if asks and len(record.data) > 2 else None
        found.append(Act(record.kind, record.key, tuple(record.nodes), note, failed))
    return found


def rows(core: CoreTree, rollout: int) -> list[tuple[Act, list[bytes]]]:
    """What a rollout's program did, with places on its path for nodes, which have other numbers in an equal tree."""
    path = core.path(core.rollout(rollout).leaf)
    found = []
    for act in acts(core, rollout):
        said = [core.message(node) for node in act.nodes]
        found.append((act._replace(nodes=tuple(map(path.index, act.nodes))), said))
    return found


def run_here(url: str, out: object, name: str, tasks: int, **options: Any) -> None:
    """Run a team over so many tasks."""
    strategy = Chain(2) if name == "search" else TreeGRPO(trees=1, forks=2, rounds=1)
    many = [Task.ask(f"What is {n}?", id=str(n)) for n in range(tasks)]
    run(TEAMS[name], many, llm=LLM(url, max_concurrency=8), strategy=strategy, seed=7, out=out, **options)
