"""Calls that are in flight together: which one came first counts for nothing."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from external_agents import Walker
from toy_model import ToyServer

import trunkline as tl
from trunkline.rollout.external.session import AgentSession

TASKS = [tl.Task.ask("Walk.", id="q")]
ROUNDS = 3
SIDES = [
    [{"role": "user", "content": "Look left."}],
    [{"role": "user", "content": "Look right."}, {"role": "user", "content": "Now."}],
    [{"role": "user", "content": "Look left."}],  # equal calls are equal draws
    [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Look up."}],
]


class Meeting:
    """Holds up the replies of a round until all its calls are there, and says how many are."""

    def __init__(self, monkeypatch):
        self.there = 0
        self.changed = asyncio.Event()
        self.over = asyncio.Event()
        prepare, send = AgentSession._prepare, AgentSession._send

        def prepared(session, exchange):
            prepare(session, exchange)
            self.there += 1
            self.changed.set()

        async def sent(session, *given, **named):
            await send(session, *given, **named)
            await self.over.wait()

        monkeypatch.setattr(AgentSession, "_prepare", prepared)
        monkeypatch.setattr(AgentSession, "_send", sent)

    async def gather(self, calls):
        """Make calls one after the other, each once the one before it is in flight; return their replies."""
        self.there = 0
        self.over.clear()
        going = []
        for number, call in enumerate(calls, 1):
            going.append(asyncio.ensure_future(call))
            while self.there < number and not going[-1].done():
                self.changed.clear()
                waiting = asyncio.ensure_future(self.changed.wait())
                await asyncio.wait((waiting, going[-1]), return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
        self.over.set()
        return await asyncio.gather(*going)


async def play(meeting, orders, llm, **options):
    """Play an agent that asks several things at once in each round, each start of it in the next of some orders."""
    orders = itertools.cycle(orders)

    async def agent(client, task):
        async def ask(messages):
            reply = await client.chat.completions.create(model="m", messages=messages)
            return reply.choices[0].message.content

        messages, order = [*task.messages], next(orders)
        for _ in range(ROUNDS):
            (said,) = await meeting.gather([ask(messages)])
            messages = [*messages, {"role": "assistant", "content": said}]
            sides = [[*messages, *SIDES[place]] for place in order]
            replies = await meeting.gather([ask(side) for side in sides])
            chosen = order.index(1)  # which of two equal calls got which draw is not controlled
            messages = [*sides[chosen], {"role": "assistant", "content": replies[chosen]}]
        return "done"

    program = tl.External(agent=agent, effects="none")
    who = tl.Agent(model="toy", max_turns=100, sampling=tl.Sampling(max_tokens=300))
    given = {"strategy": tl.Chain(1), "seed": 3, "workers": 0, **options}
    return await tl.arun(who, TASKS, llm=llm, program=program, **given)


class Talker(Walker):
    """A model that says a number of its seed."""

    async def complete(self, request):
        reply = await super().complete(request)
        reply.choices[0].tool_calls, reply.choices[0].finish = [], "stop"
        return reply


@pytest.mark.parametrize("exact", [False, True], ids=["texts", "token ids"])
async def test_trees_do_not_depend_on_which_call_came_first(exact, tmp_path, monkeypatch):
    meeting, server = Meeting(monkeypatch), ToyServer(tmp_path)
    with server.serving():
        llm = tl.LLM(server.url, tokens=server.tokens) if exact else Talker()
        digests, orders = set(), [*itertools.permutations(range(3))]
        for order in [*orders[:: 2 if exact else 1], (0, 1, 2, 3), (3, 2, 1, 0)]:
            run = await play(meeting, [order], llm)
            (tree,), summary = run, run.summary()
            assert summary.terminations == {"answer": 1}, summary.failures
            assert summary.agent_calls.beside == ROUNDS * len(order)
            assert not exact or tree.tokens.exact
            tree.core.check()
            digests.add((len(order), tree.digest()))
        assert len(digests) == 2


async def test_a_replay_may_ask_in_another_order(monkeypatch):
    meeting, strategy = Meeting(monkeypatch), tl.TreeGRPO(trees=1, forks=1, rounds=3)
    digests = set()
    for orders in ([(0, 1, 3)], [(3, 0, 1), (1, 3, 0), (1, 0, 3)]):
        run = await play(meeting, orders, Talker(), strategy=strategy, reward=lambda rollout: 1.0)
        (tree,), summary = run, run.summary()
        assert summary.terminations == {"answer": 4}, summary.failures
        assert summary.agent_calls.replayed > 0
        digests.add(tree.digest())
    assert len(digests) == 1


async def test_a_draw_that_fails_leaves_none_of_its_call_in_flight(monkeypatch):
    going = []

    async def sent(session, exchange, draw, **_):
        going.append(draw)
        if draw is exchange.draws[0]:
            await asyncio.sleep(0)
            raise tl.errors.RolloutError("the budget is spent")
        try:
            await asyncio.Event().wait()
        finally:
            going.clear()

    async def agent(client, task):
        await client.chat.completions.create(model="m", messages=[*task.messages], n=3)

    monkeypatch.setattr(AgentSession, "_send", sent)
    program = tl.External(agent=agent, effects="none")
    with pytest.warns(tl.errors.BrokenRolloutsWarning, match="the budget is spent"):
        await tl.arun(tl.Agent(model="toy"), TASKS, llm=Talker(), program=program, workers=0)
    assert not going
