"""Trees that end early and were begun by an earlier run, have environments, or fork inside turns: where parts meet."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import ClassVar

import pytest
from scripted import Say, Scripted, Silent, grow
from spending import MOST, Book, Clerk, spend

from trunkline import _core
from trunkline.agent import Agent, CompiledAgent
from trunkline.errors import EndpointError, LLMError
from trunkline.llm.request import Sampling
from trunkline.llm.response import read
from trunkline.llm.types import Reply, Request
from trunkline.rollout.budget import Budget, prompt_bound
from trunkline.rollout.growth import Barrier, RunningRollouts
from trunkline.rollout.rollout import Rollout
from trunkline.rollout.sampling.completions import CompletionClient
from trunkline.rollout.sampling.sampler import Sampler
from trunkline.rollout.task_budget import BudgetDenied, BudgetSources, OutOfBudget, TaskBudget
from trunkline.rollout.tree_runner import TreeRunner, TreeSettings
from trunkline.rollout.types import Finished, KeptPrefix
from trunkline.scoring.rewards import exact_match
from trunkline.strategies.chain import Chain
from trunkline.strategies.stopping import Stopping
from trunkline.tools.environment import Environment
from trunkline.tools.tool import tool
from trunkline.tree.views import Trajectory, Tree
from trunkline.types import Task, Termination

ANSWER, CENSORED = Termination.ANSWER, Termination.CENSORED


def ends(tree) -> list[str | None]:
    return [rollout.termination for rollout in tree.rollouts]


def votes(*answers: str) -> Clerk:
    """A clerk whose rollouts answer at once, in the order in which they are opened."""
    given = iter(answers)
    seen: dict[int, str] = {}

    def answer(seed: int) -> tuple[int, str]:
        if seed not in seen:
            seen[seed] = next(given)
        return 0, seen[seed]

    return Clerk(answer=answer)


async def test_an_earlier_runs_rollouts_vote_and_those_planned_now_are_still_to_come():
    earlier, _, _ = await spend(Chain(2), votes("b", "b"))
    # 2 b are there and 4 tries come: a a, a, a. After the third a it is 3 : 2 with one left, after the fourth 4 : 2.
    tree, session, _ = await spend(
        Chain(4, wave=1), votes(*"aaaa"), core=earlier.core, stopping=Stopping(stop_when="answer")
    )
    assert len(tree.rollouts) == 6
    assert (tree.answer, session.ending.word) == ("a", "finished")


async def test_a_tree_that_was_settled_before_its_run_began_gets_no_rollout():
    earlier, _, _ = await spend(Chain(2), votes("yes", "no"), reward=exact_match)
    stopping = Stopping(stop_when=1.0)
    tree, session, book = await spend(
        Chain(4, wave=1), votes(), core=earlier.core, stopping=stopping, reward=exact_match
    )
    assert (len(tree.rollouts), book.calls) == (2, 0)
    assert session.ending.why == "settled: rollout 0 has a reward of at least 1"


async def test_enough_of_a_run_that_goes_on_counts_its_own_rollouts_and_stops_before_the_next_wave():
    earlier, _, _ = await spend(Chain(8), Clerk())
    tree, session, _ = await spend(Chain(6, wave=2), Clerk(), core=earlier.core, stopping=Stopping(enough=2))
    assert len(tree.rollouts) == 10
    assert session.ending == ("enough", "enough: 2 of 6", 0)


async def test_a_tail_that_was_kept_goes_on_and_is_done_in_a_later_run():
    never = Clerk(ticks=lambda seed: None if seed % 2 else 0, answer=lambda seed: (0, "yes"))
    earlier, session, _ = await spend(Chain(6), never, stopping=Stopping(enough=3, cut_tail="keep"))
    assert session.ending.word == "enough"
    kept = earlier.core.growing
    assert len(kept) == 3
    tree, session, _ = await spend(Chain(1), Clerk(answer=never._answer), core=earlier.core)
    assert ends(tree) == [ANSWER] * 7
    whole, _, _ = await spend(Chain(7), Clerk(answer=never._answer))
    assert tree.digest() == whole.digest()


async def test_a_cut_while_an_earlier_runs_rollouts_go_on_opens_nothing():
    never = Clerk(ticks=lambda seed: None)
    core = (await spend(Chain(3), slow_first(), stopping=Stopping(enough=2, cut_tail="keep")))[0].core
    tree, session, _ = await spend(Chain(5), never, Budget(seconds=0.01), core=core)
    assert ends(tree) == [CENSORED, ANSWER, ANSWER]
    assert session.ending.word == "deadline"


def slow_first() -> Clerk:
    first: list[int] = []

    def ticks(seed: int) -> int | None:
        first.append(seed)
        return None if seed == min(first) else 0

    return Clerk(ticks=ticks, answer=lambda seed: (0, "yes"))


class Room(Environment):
    """An environment that takes its time."""

    log: ClassVar[list[str]] = []
    wait: ClassVar[str] = ""

    async def fresh(self, task) -> None:
        await self._do("fresh")

    async def final_info(self) -> None:
        await self._do("final_info")

    async def close(self) -> None:
        await self._do("close")

    async def _do(self, what: str) -> None:
        for _ in range(50 if what == self.wait else 0):
            await asyncio.sleep(0)
        Room.log.append(what)


@tool
async def enter(what: str, room: Room) -> str:
    """Enter.

    Args:
        what: What.
    """
    return what


@pytest.fixture
def room() -> Iterator[type[Room]]:
    Room.log, Room.wait = [], ""
    yield Room
    Room.wait = ""


@pytest.mark.parametrize("wait", ["", "close", "fresh"])
async def test_the_environments_of_rollouts_that_are_cut_are_closed_when_the_session_is_over(room, wait: str):
    room.wait = wait
    tree, session, _ = await spend(Chain(6), slow_first(), stopping=Stopping(enough=3), environment=Room, tools=[enter])
    assert ends(tree)[0] == CENSORED
    assert session.ending.word == "enough"
    assert room.log.count("close") == 6


@pytest.mark.parametrize("wait", ["final_info", "close"])
async def test_a_rollout_that_has_answered_is_not_cut_while_its_environment_is_asked_or_closed(room, wait: str):
    room.wait = wait
    tree, _session, _ = await spend(
        Chain(6), slow_first(), stopping=Stopping(enough=3), environment=Room, tools=[enter]
    )
    assert ends(tree) == [CENSORED, *[ANSWER] * 5]
    assert room.log.count("close") == 6


async def test_a_cut_while_a_fork_waits_to_be_paid_for_opens_nothing():
    sessions = []

    class Late:
        limits: ClassVar[dict[str, int]] = {"rollouts": 9}

        async def claim(self, most):
            sessions[0].cut("deadline", "deadline: now")
            return self

        def settle(self, spent, estimated=None) -> None: ...

    tree, session, _ = await spend(Chain(3), Clerk(), run=Late(), made=sessions.append)
    assert (tree.rollouts, session.ending.word) == ([], "deadline")


async def test_a_tool_that_swallows_its_cancellation_does_not_keep_a_rollout_that_is_cut():
    @tool
    async def look(what: str) -> str:
        """Look.

        Args:
            what: What.
        """
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            return "no"
        return "yes"

    started = []
    clerk = Clerk(answer=lambda seed: (0 if not started else 2, started.append(seed) or "yes"))
    tree, _session, _ = await spend(Chain(3), clerk, stopping=Stopping(enough=1), tools=[look])
    assert ends(tree) == [ANSWER, CENSORED, CENSORED]


@pytest.mark.parametrize("siblings", [False, True])
async def test_an_llm_that_answers_after_it_was_cancelled_neither_breaks_the_tree_nor_the_budget(siblings: bool):
    sessions = []

    class Stubborn(Clerk):
        async def complete(self, request):
            if self.asked + request.n == 3:
                asyncio.get_running_loop().call_later(0.01, sessions[0].cut, "deadline", "deadline: now")
            try:
                return await super().complete(request)
            except asyncio.CancelledError:
                return (request.take or read)(self._data(request), 0, 1, 5)

    clerk = Stubborn(ticks=lambda seed: None, siblings=siblings)
    tree, session, book = await spend(Chain(3), clerk, Budget(calls=9), made=sessions.append)
    assert (ends(tree), session.ending.word) == ([CENSORED] * 3, "deadline")
    assert book.calls == 3, "what was answered is counted"


async def test_what_is_kept_of_a_turn_counts_as_prompt():
    core = _core.CoreTree()
    leaf = core.append(_core.ROOT, _core.PROMPT, b'{"role":"user","content":"?"}')
    core.open(leaf, [0, 0])
    compiled = CompiledAgent(Agent(model="m", sampling=Sampling(max_tokens=MOST)))
    free = prompt_bound(core, leaf, compiled)
    task_budget = TaskBudget(BudgetSources(Budget(prompt=free + 7, tools=1), None, {}), core, Barrier())
    for kept, paid in ((7, True), (8, False)):
        turn = asyncio.ensure_future(task_budget.turn(0, leaf, compiled, kept))
        await asyncio.sleep(0)
        task_budget.admit()
        if paid:
            (await turn).drop()
        else:
            with pytest.raises(OutOfBudget, match=f"{free + 8} prompt wanted"):
                await turn


class Till:
    """A run's account that remembers what was settled, and denies what it is told to."""

    limits: ClassVar[dict[str, int]] = {"calls": 99, "generated": 9999}

    def __init__(self, *denied: int) -> None:
        self.settled: list[tuple[dict[str, int], dict[str, int]]] = []
        self._denied = denied
        self._asked = 0

    async def claim(self, most):
        self._asked += 1
        if self._asked in self._denied:
            raise BudgetDenied("run budget: no")
        return self

    def settle(self, spent, estimated=None) -> None:
        self.settled.append((dict(spent), dict(estimated or {})))


async def test_what_the_run_does_not_pay_for_costs_the_task_nothing():
    tree, _, _ = await spend(Chain(2, wave=1), Clerk(answer=lambda seed: (0, "yes")), Budget(calls=1), run=Till(1))
    assert ends(tree) == [CENSORED, ANSWER]
    assert tree.rollouts[0].error.message == "run budget: no"


async def test_a_request_that_is_given_up_may_have_cost_all_that_was_set_aside():
    till = Till()
    await spend(Chain(1), Clerk(ticks=lambda seed: None), Budget(seconds=0.2), run=till)
    ((spent, estimated),) = till.settled
    assert (spent["calls"], spent["generated"]) == (1, MOST)
    assert spent == estimated


async def test_a_request_that_failed_is_a_call_and_no_tokens():
    class Broken(Clerk):
        async def complete(self, request):
            error = LLMError("no")
            error.attempts = 3
            raise error

    till = Till()
    tree, _, _ = await spend(Chain(1), Broken(), run=till)
    assert ends(tree) == [Termination.LLM_ERROR]
    assert till.settled == [({"calls": 1}, {})]


async def test_a_rollout_that_is_cut_and_cancelled_is_cancelled():
    rollout = SimpleNamespace(id=0, player=None)
    running = RunningRollouts(core=_core.CoreTree(), live={0: rollout})

    async def play() -> None:
        running.enter(rollout, asyncio.current_task())
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise running.caught(0) from None

    for cancelled, kind in ((False, Finished), (True, asyncio.CancelledError)):
        running = RunningRollouts(core=_core.CoreTree(), live={0: rollout})
        task = asyncio.ensure_future(play())
        await asyncio.sleep(0)
        running.cut("deadline", "deadline: now")
        if cancelled:
            task.cancel()
        with pytest.raises(kind):
            await task


def test_rollouts_that_still_grow_may_vote():
    core = _core.CoreTree()
    point = core.append(_core.ROOT, _core.PROMPT, b'{"role":"user","content":"?"}')
    opened = [core.open(point, (0, draw), 0) for draw in range(3)]
    settled = []
    for rollout in opened:
        core.close(rollout, ANSWER.value, "yes", None)
        settled.append(Stopping(stop_when="answer").is_settled(core, 3) is not None)
    assert settled == [False, True, True], "1 ahead with 2 that grow, 2 with 1"


async def test_a_rollout_that_goes_on_inside_a_turn_pays_for_what_it_keeps():
    core, book, paid = _core.CoreTree(), Book(), []
    point = core.append(_core.ROOT, _core.PROMPT, b'{"role":"user","content":"?"}')
    number = core.open(point, (0, 0), 0)

    class Recorder:
        async def turn(self, rollout, leaf, compiled, kept):
            paid.append(kept)
            raise OutOfBudget("no")

    compiled = CompiledAgent(Agent(model="m", sampling=Sampling(max_tokens=MOST)))
    for kept in (KeptPrefix(point, 7), None):
        sampler = Sampler(core, Task.ask("?", id="q"), CompletionClient(Clerk()), book)
        rollout = Rollout.of(sampler, number, kept=kept, task_budget=Recorder())
        with pytest.raises(OutOfBudget):
            await rollout.ask(compiled)
        rollout.activity.end()
    assert paid == [7, 0]


async def test_a_single_rollout_grows_in_the_task_of_its_runner():
    during: list[int] = []

    def script(conversation: list[dict], seed: int) -> Say:
        during.append(len(asyncio.all_tasks()))
        return Say("yes", final=True)

    for strategy, more in ((Chain(1), False), (Chain(2), True)):
        during.clear()
        tree, _ = await grow(strategy, script)
        assert ends(tree) == [ANSWER] * strategy.n
        assert (max(during) > 2) is more, "the runner and a request; with more rollouts a task for each"


async def test_a_cut_that_a_model_swallowed_is_not_taken_for_a_cancellation_of_the_reward():
    begun = asyncio.Event()

    class Stubborn(Scripted):
        async def complete(self, request: Request) -> Reply:
            begun.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return await super().complete(request)

    async def reward(rollout: Trajectory) -> float:
        raise asyncio.CancelledError

    tree = Tree(Task.ask("what?", "yes", id="q"))
    llm = Stubborn(lambda conversation, seed: Say("yes", final=True))
    session = TreeRunner(
        tree, TreeSettings(CompiledAgent(Agent(model="m")), Chain(1), reward, 7, CompletionClient(llm)), Silent()
    )
    growing = asyncio.ensure_future(session.run())
    await begun.wait()
    session.cut("deadline", "deadline: now")
    await growing
    (rollout,) = tree.rollouts
    assert rollout.termination in {ANSWER, CENSORED}
    assert math.isnan(rollout.reward)


async def test_an_error_of_the_endpoint_ends_a_single_rollouts_run():
    def script(conversation: list[dict], seed: int) -> Say:
        raise EndpointError("no key")

    with pytest.raises(EndpointError, match="no key"):
        await grow(Chain(1), script)
