"""What a row-step of a team costs, part by part: the calls of the live path, in a loop over a batch of live rollouts.

Four parts are its bookkeeping, which is to take at most 2 us together:

* masks: a lane asks, and runs again; once for a batch, whether it is due;
* context: what was said is kept for colleagues, and the next prompt becomes a context of the tree;
* routing: from the role to who is asked, into the queue and out of it;
* recording: how it was asked and what is noted of it, and the turn goes onto the tree with its record.

Reported apart are the coroutine body (the program's own lines, and what `ask` adds to them) and the parsing: the reply
is read, and projected. Beside them stands the whole: CPU of a run for each row, without the engine's.

Few rollouts stay in the processor's cache from one round to the next, many do not: each has a tree of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from statistics import median
from typing import Any, NamedTuple

import msgspec
import pytest

import teams
from trunkline._core import CoreTree, Transcript
from trunkline.llm.batch.batcher import Batcher
from trunkline.llm.types import ReplyChoice
from trunkline.rollout.programs.context import ContextRef, ModelTurn, ProgramContext
from trunkline.rollout.programs.replay import as_json
from trunkline.rollout.sampling.turns import PendingTurn, TurnRequest
from trunkline.team.team import Team, TeamPlay

ROUNDS = {8: 400, 256: 25}
"""Rounds in which the parts take turns, by how many rollouts there are."""
WHOLE, TARGET = 256, 2000
BOOKKEEPING = ("masks", "context", "routing", "recording")
IN_A_STEP = 5
"""Asks of a rollout before its context is cleared: a math team's, if nothing is approved."""


class Cost(NamedTuple):
    """CPU nanoseconds of one row, of some rounds.

    Attributes:
        least: In the best of them.
        median: In the one in the middle.
    """

    least: float
    median: float

    @classmethod
    def of(cls, found: Sequence[float]) -> Cost:
        """What some rounds took."""
        return cls(min(found), median(found))

    def __str__(self) -> str:
        return f"{self.least:,.0f} ({self.median:,.0f})"


class Live:
    """Rollouts that live in a run, and wait while they are measured.

    Args:
        rollouts: The rollouts.
        team: Their team.
    """

    def __init__(self, rollouts: Sequence[TeamPlay], team: Team) -> None:
        self._rollouts = rollouts
        self._plays: list[ProgramContext] = [rollout._play for rollout in rollouts]
        self._team = team
        self._roles = [team.own_roles()[name] for name in ("solver", "verifier")]
        first = self._plays[0]
        self._batcher: Batcher = first._executor._sampler.client.llm
        self._script = teams.Script(0.5)
        self._round = 0

    def measure(self) -> dict[str, Cost]:
        """What a row of each part costs, in rounds in which the parts take turns."""
        parts: dict[str, Callable[[], None]] = {
            "masks": self.masks,
            "context": self.context,
            "routing": self.routing,
            "parsing": self.parsing,
            "recording": self.recording,
            "body": self.body,
        }
        times: dict[str, list[float]] = {name: [] for name in (*parts, "bookkeeping")}
        for number in range(ROUNDS[len(self._rollouts)]):
            self._round = number
            self._prepare()
            for name, part in parts.items():
                start = time.thread_time_ns()
                part()
                times[name].append((time.thread_time_ns() - start) / len(self._rollouts))
            times["bookkeeping"].append(sum(times[name][-1] for name in BOOKKEEPING))
        return {name: Cost.of(found) for name, found in times.items()}

    def _prepare(self) -> None:
        """Make what comes from elsewhere: replies, and whom they are from."""
        self._member = self._team.members[("solver", "verifier")[self._round % 2]]
        rows = range(len(self._rollouts))
        self._said = [f"{self._script.reply(self._member.name, row)} {row}" for row in rows]
        self._data = [
            msgspec.json.encode({"choices": [{"index": 0, "message": {"content": said}, "finish_reason": "stop"}]})
            for said in self._said
        ]
        if self._round % IN_A_STEP == 0:
            for rollout in self._rollouts:
                rollout._prompts.clear()
        self._bodies: list[Coroutine[Any, Any, object]] = [
            self._team.play(Instant(self._team).rollout()) for _ in range(-(-len(rows) // IN_A_STEP))
        ]

    def masks(self) -> None:
        lanes = [play._executor._rollout.activity for play in self._plays]
        for lane in lanes:
            lane.ask()
        self._batcher._stir()
        for lane in lanes:
            lane.run()

    def context(self) -> None:
        member = self._member
        self._contexts = contexts = []
        for rollout, said in zip(self._rollouts, self._said, strict=True):
            rollout._prompts.add(member, said)
            contexts.append(rollout._play._sent(rollout._prompts.of(member, 1, {})))

    def routing(self) -> None:
        role, team = self._roles[self._round % 2], self._team
        queue: deque[object] = deque()
        for play in self._plays:
            queue.append(play._program.of(team.member(role).agent, {}))
        while queue:
            queue.popleft()

    def parsing(self) -> None:
        self._waiting = []
        member = self._member
        for play, data in zip(self._plays, self._data, strict=True):
            compiled = play._program.of(member.agent, {})
            pending = PendingTurn(compiled, TurnRequest(compiled, 0, 0, self._round), Ignored())
            pending.begin(compiled, pending.keep, None)
            pending(data, 0, 1, 5)
            member.read(pending.choice.content, None)
            self._waiting.append(pending)

    def recording(self) -> None:
        nth = self._round
        for play, pending, context in zip(self._plays, self._waiting, self._contexts, strict=True):
            executor = play._executor
            asked = nth, play._leaf, context, executor.name(pending._compiled.namespace)
            note = as_json([True, True, 1, 0.1], "what is noted of a reply")
            play._leaf = executor.land(pending, context, nth, asked, note, alone=True).node

    def body(self) -> None:
        for body in self._bodies:
            try:
                body.send(None)
            except StopIteration:
                continue
            raise AssertionError("nothing is waited for")


class Instant:
    """A rollout whose turns come at once, with nothing behind it.

    Args:
        team: Its team.
    """

    def __init__(self, team: Team) -> None:
        self.task = teams.tasks(1)[0]
        self.random = None
        self._team = team
        self._compiled: Any = None

    def rollout(self) -> TeamPlay:
        """What the program is given."""
        rollout: Any = TeamPlay(self, self._team)  # type: ignore[arg-type]
        rollout._prompts = self
        return rollout

    def transcript(self) -> Transcript:
        """Of a tree that nobody grows."""
        return Transcript(CoreTree())

    def of(self, *_: object) -> ContextRef:
        """A context that nobody sends."""
        return ContextRef(0)

    def add(self, *_: object) -> None: ...

    async def ask(self, agent: Any, messages: object, *, note: Callable[[ReplyChoice], Any]) -> ModelTurn:
        """A turn that is never approved."""
        choice = ReplyChoice("<verify>reject</verify>", None, [], "stop")
        return ModelTurn(self._compiled, choice, 1, None, None, note(choice))


class Ignored:
    """A sink that drops the calls that it is told of."""

    def called(self, _: object) -> None: ...

    def answered(self, *_: object) -> None: ...


def in_a_run(team: Team, rollouts: int) -> dict[str, Cost]:
    """Measure within a run of the team, as soon as all of its rollouts live."""
    found: dict[str, Cost] = {}
    waiting: list[TeamPlay] = []
    measured = asyncio.Event()

    class Held(type(team)):  # type: ignore[misc]
        async def play(self, rollout: TeamPlay) -> str | None:
            waiting.append(rollout)
            if len(waiting) == rollouts:
                try:
                    found.update(Live(waiting, team).measure())
                finally:
                    measured.set()
            await rollout.call(measured.wait)
            return None

    held = Held(**{name: getattr(team, name) for name in team.__struct_fields__})
    teams.play(held, teams.tasks(rollouts), teams.Engine(teams.Script(0.5)))
    assert found, "a rollout failed while it was measured"
    return found


@pytest.mark.parametrize("rollouts", list(ROUNDS))
def test_what_a_row_step_costs_part_by_part(benchmark, capsys, rollouts):
    times: list[dict[str, Cost]] = []
    benchmark.pedantic(lambda: times.append(in_a_run(teams.team("math"), rollouts)), rounds=3)
    found = min(times, key=lambda one: one["bookkeeping"].median)
    benchmark.extra_info.update({name: cost._asdict() for name, cost in found.items()})
    with capsys.disabled():
        print(f"\nCPU ns a row-step of {rollouts} rollouts, the least and (the median), of the best of three runs:")
        print("  ".join(f"{name} {cost}" for name, cost in found.items()))
        met = "met" if found["bookkeeping"].median <= TARGET else "NOT MET"
        print(f"target of the bookkeeping's median {TARGET:,}: {met}")


def test_what_a_whole_run_costs_for_each_row(benchmark, capsys):
    whole: list[float] = []

    def run() -> None:
        played = teams.play(teams.team("math"), teams.tasks(WHOLE), teams.Engine(teams.Script(0.5)))
        whole.append(played.us_a_row)

    benchmark.pedantic(run, rounds=3)
    benchmark.extra_info.update(least=min(whole), median=median(whole))
    with capsys.disabled():
        print(f"\nCPU us a row of a whole run: least {min(whole):,.0f}, median {median(whole):,.0f}")
