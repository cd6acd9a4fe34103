"""What the benchmarks of teams play: teams, a scripted engine, and how a run of theirs is counted.

What a role says is told by who it is, which question it is asked about and how often it was asked about it before. So
two ways to play the same questions get the same replies, whatever their prompts look like.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import trunkline as tl
from trunkline.llm.batch.completion import Prompt
from trunkline.llm.types import Reply, ReplyChoice, Request
from trunkline.rollout.programs.replay import Journal
from trunkline.team import TEAMS
from trunkline.types import Task

BATCHES = (8, 64, 256)
APPROVALS = (0.9, 0.5, 0.2)
WORDS = "and so it goes on, step after step, until something is shown that was asked for; "
ROUNDS, STEPS = 3, 4

_ASKED = re.compile(rb"You are the (\w+)\..*?question (\d+):", re.DOTALL)


class Script:
    """Replies of roles.

    Args:
        approval: Share of the verdicts that approve.
    """

    def __init__(self, approval: float) -> None:
        self._approval = approval
        self._asked: Counter[tuple[str, int]] = Counter()

    def reply(self, role: str, question: int) -> str:
        """What a role says next of a question: about 300 characters."""
        nth = self._asked[role, question]
        self._asked[role, question] += 1
        approves = random.Random(f"{question} {nth}").random() < self._approval
        return _SAYS[role](approves, nth if role in _SOLVES else question)


_SOLVES = ("solver", "searcher")
"""Roles that say something new each time; the others, the same of a question."""

_SAYS: dict[str, Callable[[bool, int], str]] = {
    "solver": lambda _, new: f"{3 * WORDS}\\boxed{{{new}}}",
    "verifier": lambda approves, _: f"{3 * WORDS}<verify>{'approve' if approves else 'reject'}</verify>",
    "router": lambda approves, _: f"<think>{3 * WORDS}</think><verify>{'yes' if approves else 'no'}</verify>",
    "searcher": lambda _, new: f"<think>{3 * WORDS}</think><search>query {new}</search>",
    "theorist": lambda _, question: f"theory {question}: {3 * WORDS}",
    "practitioner": lambda _, question: f"practice {question}: {3 * WORDS}",
    "sceptic": lambda _, question: f"doubt {question}: {3 * WORDS}",
    "synthesiser": lambda _, question: f"<answer>{question}</answer>",
    "answerer": lambda _, question: f"<think>{3 * WORDS}</think><answer>{question}</answer>",
}


@tl.tool
async def look_up(query: str) -> str:
    """Look something up.

    Args:
        query: What.
    """
    return known_of(query)


def team(kind: str, **settings: Any) -> tl.Team:
    """A team that is shipped, whose roles say to the engine who they are."""
    if kind == "search":
        settings["tool"] = look_up
    shipped = TEAMS[kind]
    called = {"verifier": "router"} if kind == "search" else {}
    roles = {name: {"system": f"You are the {called.get(name, name)}."} for name in shipped.own_roles()}
    return shipped(model="m", roles=roles, **settings)


def known_of(query: str) -> str:
    """What is known of something: 200 characters."""
    return f"of {query} this is known: " + "x" * 200


def questions(count: int) -> list[str]:
    """Questions of about 200 characters."""
    return [f"question {number}: {2 * WORDS}what is it?" for number in range(count)]


def tasks(count: int) -> list[Task]:
    """The same as tasks."""
    return [Task.ask(text, id=f"q{number}") for number, text in enumerate(questions(count))]


class Engine:
    """A scripted batch engine; a call may take a fixed time, and some for each row.

    Args:
        script: What is said.
        call: Seconds of a call.
        row: Seconds of a row.

    Attributes:
        calls: Calls so far.
        rows: Rows of each of them.
        cpu: CPU seconds that it used itself.
    """

    def __init__(self, script: Script, call: float = 0.0, row: float = 0.0) -> None:
        self._script = script
        self._call, self._row = call, row
        self.rows: list[int] = []
        self.cpu = 0.0

    def generate(self, prompts: Sequence[Prompt]) -> list[str]:
        """Answer a batch."""
        start = time.thread_time()
        self.rows.append(len(prompts))
        said = [self._script.reply(*asked(prompt.body)) for prompt in prompts]
        self.cpu += time.thread_time() - start
        if seconds := self._call + self._row * len(prompts):
            time.sleep(seconds)
        return said


def asked(body: bytes) -> tuple[str, int]:
    """Who is asked in a request, and which question it is about."""
    found = _ASKED.search(body)
    assert found is not None
    return found[1].decode(), int(found[2])


def latency(seed: object, median: float) -> float:
    """Seconds of a reply: lognormal, with the 99th percentile ten times the median."""
    return median * random.Random(str(seed)).lognormvariate(0.0, 0.99)


class Slow:
    """An LLM whose replies take their time, each its own; and the same as a batch engine, which waits for the last.

    Args:
        script: What is said.
        median: Seconds of a reply.
        concurrency: Requests at once.
    """

    def __init__(self, script: Script, median: float, concurrency: int) -> None:
        self.max_concurrency = concurrency
        self._script = script
        self._median = median

    def _reply(self, body: bytes) -> tuple[str, float]:
        who = asked(body)
        said = self._script.reply(*who)
        return said, latency((*who, said), self._median)

    async def complete(self, request: Request) -> Reply:
        """Answer one request."""
        said, seconds = self._reply(request.body)
        await asyncio.sleep(seconds)
        return Reply([ReplyChoice(said, None, [], "stop")], 9, 0, 9, 1, int(1e6 * seconds))

    async def generate(self, prompts: Sequence[Prompt]) -> list[str]:
        """Answer a batch."""
        replies = [self._reply(prompt.body) for prompt in prompts]
        await asyncio.sleep(max(seconds for _, seconds in replies))
        return [said for said, _ in replies]

    async def close(self) -> None: ...


class Played(NamedTuple):
    """What it took to play some questions.

    Attributes:
        answers: The answer of each question.
        rows: Rows that count, by role.
        asked: Rows that the engine was asked for.
        calls: Calls of the engine.
        wall: Seconds.
        cpu: CPU seconds without the engine's.
        ms: Mean milliseconds of a call of each role, its wait for company included.
    """

    answers: list[str | None]
    rows: Counter[str]
    asked: int
    calls: int
    wall: float
    cpu: float
    ms: dict[str, float]

    @property
    def active(self) -> int:
        """Rows that count."""
        return self.rows.total()

    @property
    def us_a_row(self) -> float:
        """CPU microseconds for each row that counts."""
        return 1e6 * self.cpu / self.active

    def ratio(self, batch: int) -> float:
        """Share of the rows that count, of those that whole batches would have in as many calls."""
        return self.active / (batch * self.calls)


def play(team: tl.Team, given: Sequence[Task], engine: Engine, **settings: Any) -> Played:
    """Let a team play tasks on a batch engine, in batches of all of them, though each ask for three things at once."""
    llm = tl.BatchLLM(engine, max_batch=max(256, 3 * len(given)), **settings)
    wall, cpu = time.perf_counter(), time.process_time()
    run = tl.run(team, given, llm=llm, seed=1)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    rows: Counter[str] = Counter()
    answers = []
    for tree in run:
        answers.append(tree.answer)
        for record in Journal(tree.core).of(0):
            if record.kind == "ask" and record.data[2][0]:
                rows[record.key] += 1
    ms = {agent.name: 1e3 * agent.seconds / agent.calls for agent in run.profile().agents if agent.calls}
    return Played(answers, rows, sum(engine.rows), len(engine.rows), wall, cpu - engine.cpu, ms)
