"""What a row-step of a team costs, part by part: the calls of the live path, in a loop over a batch of live rollouts.

Four parts are its bookkeeping, which is to take at most 2 us together:

* masks: a lane asks, and runs again; once for a batch, whether it is due;
* context: what was said is kept for colleagues, and the next prompt becomes a context of the tree;
* routing: from the role to who is asked, into the queue and out of it;
* recording: the turn on the tree, and its record.

Reported apart are the coroutine body (the program's own lines, and what `ask` adds to them) and the parsing: the reply
is read onto a tree of its own, and projected; when its turn comes, it is read again, onto the tree of the rollout.
Beside them stands the whole: CPU of a run for each row, without the engine's.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from statistics import median
from typing import Any

import msgspec
import teams

from trunkline.llm.batcher import Batcher
from trunkline.llm.messages import assistant
from trunkline.llm.protocol import Choice
from trunkline.rollout.journal import Record
from trunkline.rollout.parked import Parked
from trunkline.rollout.play import Play
from trunkline.rollout.said import Answered, Cut
from trunkline.team.play import TeamPlay
from trunkline.team.team import Team

BATCH, ROUNDS, TARGET = 256, 25, 2000
IN_A_STEP = 5
"""Asks of a rollout before its context is cleared: a math team's, if nothing is approved."""


class Live:
    """Rollouts that live in a run, and wait while they are measured.

    Args:
        rollouts: The rollouts.
        team: Their team.
    """

    def __init__(self, rollouts: Sequence[TeamPlay], team: Team) -> None:
        self._rollouts = rollouts
        self._plays: list[Play] = [rollout._play for rollout in rollouts]
        self._team = team
        self._roles = [team.own_roles()[name] for name in ("solver", "verifier")]
        first = self._plays[0]
        self._batcher: Batcher = first._errands._desk._draws._llm
        self._script = teams.Script(0.5)
        self._round = 0

    def measure(self) -> dict[str, float]:
        """CPU nanoseconds a row of each part, the median of some rounds in which the parts take turns."""
        parts: dict[str, Callable[[], None]] = {
            "masks": self.masks,
            "context": self.context,
            "routing": self.routing,
            "recording": self.recording,
            "parsing": self.parsing,
            "landing": self.landing,
            "body": self.body,
        }
        times: dict[str, list[float]] = {name: [] for name in parts}
        for self._round in range(ROUNDS):
            self._prepare()
            for name, part in parts.items():
                start = time.thread_time_ns()
                part()
                times[name].append((time.thread_time_ns() - start) / BATCH)
        return {name: median(found) for name, found in times.items()}

    def _prepare(self) -> None:
        """Make what comes from elsewhere: replies, and whom they are from."""
        self._member = self._team.members[("solver", "verifier")[self._round % 2]]
        self._said = [f"{self._script.reply(self._member.name, row)} {row}" for row in range(BATCH)]
        self._messages = [assistant(said, [], self._round) for said in self._said]
        self._data = [
            msgspec.json.encode({"choices": [{"index": 0, "message": {"content": said}, "finish_reason": "stop"}]})
            for said in self._said
        ]
        if self._round % IN_A_STEP == 0:
            for rollout in self._rollouts:
                rollout._context.clear()
        self._bodies: list[Coroutine[Any, Any, object]] = [
            self._team.play(Instant(self._team).rollout()) for _ in range(BATCH // IN_A_STEP)
        ]

    def masks(self) -> None:
        lanes = [play._errands._rollout.lane for play in self._plays]
        for lane in lanes:
            lane.ask()
        self._batcher._stir()
        for lane in lanes:
            lane.run()

    def context(self) -> None:
        member = self._member
        self._contexts = contexts = []
        for rollout, said in zip(self._rollouts, self._said, strict=True):
            rollout._context.add(member, said)
            contexts.append(rollout._play._context(rollout._prompts.of(member, rollout._context, 1, {})))

    def routing(self) -> None:
        role, team = self._roles[self._round % 2], self._team
        queue: deque[object] = deque()
        for play in self._plays:
            queue.append(play._program.of(team.member(role).agent, {}))
        while queue:
            queue.popleft()

    def recording(self) -> None:
        nth = self._round
        for play, message, context in zip(self._plays, self._messages, self._contexts, strict=True):
            errands, name = play._errands, play._errands.name
            kit = play._program.of(self._member.agent, {})
            rollout = errands._rollout.id
            agent, namespace, stop = name(kit.agent.name), name(kit.namespace), name("stop")
            node = play._core.turn(rollout, message, agent, namespace, stop, 9, 0, 9, 0, 5, None, context)
            asked = [nth, node, context, namespace]
            data = (asked, None, [True, True, 1, 0.1])
            play._journal.write(Record(rollout, "ask", kit.agent.name, nth, data, [node], "alone"))

    def parsing(self) -> None:
        self._parked = []
        member = self._member
        for play, data in zip(self._plays, self._data, strict=True):
            parked = Parked(play._program.of(member.agent, {}), self._round, _ignore)
            parked(data, 0, 1, 5)
            member.read(parked.choice.content, None)
            self._parked.append(parked)

    def landing(self) -> None:
        for play, parked in zip(self._plays, self._parked, strict=True):
            parked.land(play._core, play._errands._rollout.id, self._round, play._errands.name, None)

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
        self._kit: Any = None

    def rollout(self) -> TeamPlay:
        """What the program is given."""
        rollout: Any = TeamPlay(self, self._team)  # type: ignore[arg-type]
        rollout._prompts = self
        rollout._context = self
        return rollout

    def cut(self, pieces: Sequence[bytes]) -> Cut:
        """A message that nobody sends."""
        return Cut(tuple(range(len(pieces))))

    def of(self, *_: object) -> None: ...

    def add(self, *_: object) -> None: ...

    async def ask(self, agent: Any, messages: object, *, note: Callable[[Choice], Any]) -> Answered:
        """A turn that is never approved."""
        choice = Choice("<verify>reject</verify>", None, [], "stop")
        return Answered(self._kit, choice, 1, None, None, note(choice))


def _ignore(_: object) -> None: ...


def in_a_run(team: Team) -> dict[str, float]:
    """Measure within a run of the team, as soon as all of its rollouts live."""
    found: dict[str, float] = {}
    waiting: list[TeamPlay] = []
    measured = asyncio.Event()

    class Held(type(team)):  # type: ignore[misc]
        async def play(self, rollout: TeamPlay) -> str | None:
            waiting.append(rollout)
            if len(waiting) == BATCH:
                try:
                    found.update(Live(waiting, team).measure())
                finally:
                    measured.set()
            await measured.wait()
            return None

    held = Held(**{name: getattr(team, name) for name in team.__struct_fields__})
    teams.play(held, teams.tasks(BATCH), teams.Engine(teams.Script(0.5)))
    assert found, "a rollout failed while it was measured"
    return found


def test_what_a_row_step_costs_part_by_part(benchmark, capsys):
    parts: list[dict[str, float]] = []
    whole: list[float] = []

    def run() -> None:
        team, engine = teams.team("math"), teams.Engine(teams.Script(0.5))
        whole.append(teams.play(team, teams.tasks(BATCH), engine).us_a_row)

    benchmark.pedantic(lambda: parts.append(in_a_run(teams.team("math"))), setup=run, rounds=3)
    found = {name: median(one[name] for one in parts) for name in parts[0]}
    bookkeeping = sum(found[name] for name in ("masks", "context", "routing", "recording"))
    benchmark.extra_info.update(found, bookkeeping=bookkeeping, whole_us=median(whole))
    with capsys.disabled():
        print("\nCPU ns a row-step: " + "  ".join(f"{name} {value:,.0f}" for name, value in found.items()))
        met = "met" if bookkeeping <= TARGET else "NOT MET"
        print(f"bookkeeping {bookkeeping:,.0f} ns, target {TARGET:,}: {met}; a whole run {median(whole):,.0f} us a row")
