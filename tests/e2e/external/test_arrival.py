"""Calls that are in flight together: which one came first counts for nothing."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json

import openai
import pytest
from external_agents import TOOLS, Walker
from toy_model import ToyLLM, ToyServer

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
        async with asyncio.TaskGroup() as group:
            going = []
            for number, call in enumerate(calls, 1):
                going.append(group.create_task(call))
                while self.there < number and not going[-1].done():
                    self.changed.clear()
                    waiting = group.create_task(self.changed.wait())
                    await asyncio.wait((waiting, going[-1]), return_when=asyncio.FIRST_COMPLETED)
                    waiting.cancel()
            self.over.set()
        return [one.result() for one in going]


def results(said, place):
    """A result for each call of a reply; those of places 0 and 2 are equal."""
    calls = said.get("tool_calls", ())
    return [{"role": "tool", "tool_call_id": call["id"], "content": f"There is {place % 2}"} for call in calls]


async def play(meeting, orders, llm, *, follows=1, clock=0, **options):
    """Play an agent that asks several things at once in each round, each start of it in the next of some orders.

    It continues from one side, and says in its first round what a clock shows, which a mask covers.
    """
    orders = itertools.cycle(orders)

    async def agent(client, task):
        async def ask(messages):
            reply = await client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
            return reply.choices[0].message.model_dump(exclude_none=True)

        messages, order = [*task.messages], next(orders)
        for _ in range(ROUNDS):
            (said,) = await meeting.gather([ask(messages)])
            messages = [*messages, said]
            sides = [[*messages, *results(said, place), *SIDES[place]] for place in order]
            for side in sides if len(messages) == 2 else ():
                side.append({"role": "user", "content": f"It is {clock}."})
            replies = await meeting.gather([ask(side) for side in sides])
            chosen = order.index(follows)  # which of two equal calls got which draw is not controlled
            messages = [*sides[chosen], replies[chosen], *results(replies[chosen], follows)]
        return "done"

    program = tl.External(agent=agent, effects="none", masks=[r"It is \d+"])
    who = tl.Agent(model="toy", max_turns=100, sampling=tl.Sampling(max_tokens=300))
    given = {"strategy": tl.Chain(1), "seed": 3, "workers": 0, **options}
    return await tl.arun(who, TASKS, llm=llm, program=program, **given)


class Stopping(Walker):
    """Ends the run when so many calls came, once those that have landed are in its file."""

    run = None

    def __init__(self, at, landed, out):
        super().__init__()
        self.at, self.landed, self.out = at, landed, out

    async def complete(self, request):
        if len(self.bodies) == self.at:
            while self.written() < self.landed:
                await asyncio.sleep(0.01)
            self.run.cancel()
        return await super().complete(request)

    def written(self):
        with tl.RunReader.open(self.out) as reader:
            core = reader.tree("q").core
            return sum(bool(core.node(node).finish) for node in range(1, len(core)))


@pytest.mark.parametrize("mode", ["texts", "completions", "chat"])
async def test_trees_do_not_depend_on_which_call_came_first(mode, tmp_path, monkeypatch):
    meeting, server = Meeting(monkeypatch), ToyServer(tmp_path)
    with server.serving():
        llm = {
            "texts": Walker(),
            "completions": tl.LLM(server.url, tokens=server.tokens),
            "chat": ToyLLM(tmp_path, "chat"),
        }[mode]
        digests, orders = set(), [*itertools.permutations(range(3))]
        for order in [*orders[:: 1 if mode == "texts" else 2], (0, 1, 2, 3), (3, 2, 1, 0)]:
            run = await play(meeting, [order], llm)
            (tree,), summary = run, run.summary()
            assert summary.terminations == {"answer": 1}, summary.failures
            assert summary.agent_calls.beside == ROUNDS * len(order)
            assert mode == "texts" or tree.tokens.exact
            tree.core.check()
            turns = [facts for facts in map(tree.core.node, range(1, len(tree.core))) if facts.finish]
            context = turns[1].context
            assert context is None or not tree.core.has_messages(context), "the first one continues the path"
            digests.add((len(order), tree.digest()))
        assert len(digests) == 2


async def test_a_replay_may_ask_in_another_order(monkeypatch):
    meeting, strategy = Meeting(monkeypatch), tl.TreeGRPO(trees=1, forks=1, rounds=3)
    digests = set()
    for orders in ([(0, 1, 3)], [(3, 0, 1), (1, 3, 0), (1, 0, 3)]):
        run = await play(meeting, orders, Walker(), strategy=strategy, reward=lambda rollout: 1.0)
        (tree,), summary = run, run.summary()
        assert summary.terminations == {"answer": 4}, summary.failures
        assert summary.agent_calls.replayed > 0
        digests.add(tree.digest())
    assert len(digests) == 1


@pytest.mark.parametrize(("at", "landed", "follows"), [(2, 1, 1), (4, 4, 1), (4, 4, 3), (10, 9, 3)])
async def test_a_run_that_was_broken_off_may_ask_in_another_order(at, landed, follows, tmp_path, monkeypatch):
    meeting, out = Meeting(monkeypatch), tmp_path / "run"
    (whole,) = await play(meeting, [(0, 1, 3)], Walker(), follows=follows)
    stopping = Stopping(at, landed, out)
    stopping.run = asyncio.ensure_future(play(meeting, [(0, 1, 3)], stopping, follows=follows, out=out))
    with pytest.raises(asyncio.CancelledError):
        await stopping.run
    again, clock = Stopping(-1, 0, out), int(landed > 1)
    run = await play(meeting, [(3, 1, 0)], again, follows=follows, clock=clock, out=out, resume=True)
    assert run.summary().agent_calls.replayed == landed
    assert run.summary().agent_calls.masked == landed - 1, "all but the first say the time"
    assert [tree.digest() for tree in run] == [whole.digest()]


class Refusing(Walker):
    """Refuses a request that ends with some words."""

    async def complete(self, request):
        reply = await super().complete(request)
        if "nothing" in self.bodies[-1]["messages"][-1]["content"]:
            raise tl.errors.BadRequest("no reply to this")
        return reply


@pytest.mark.parametrize("words", ["One.", "Two.", "Three.", "Four."])  # the order of the two follows from their words
async def test_beside_a_call_that_failed_a_turn_has_what_it_was_sent(words, monkeypatch):
    meeting, model, digests = Meeting(monkeypatch), Refusing(), set()
    sides = [["It took 5 ms.", "Say nothing."], ["It took 7 ms.", words]]
    for order in sides, sides[::-1]:

        async def agent(client, task, order=order):
            async def ask(side):
                messages = [*task.messages, *({"role": "user", "content": text} for text in side)]
                with contextlib.suppress(openai.APIStatusError):
                    await client.chat.completions.create(model="m", messages=messages)

            await meeting.gather([ask(side) for side in order])
            return "done"

        program = tl.External(agent=agent, effects="none", masks=[r"took \d+ ms"])
        (tree,) = await tl.arun(tl.Agent(model="toy"), TASKS, llm=model, program=program, workers=0, seed=3)
        digests.add(tree.digest())
        core = tree.core
        (turn,) = (node for node in range(1, len(core)) if core.node(node).finish)
        facts = core.node(turn)
        held = core.messages(facts.parent)
        if facts.context is not None:
            held = core.request_context(facts.context, b"[", b"]")
        said = [message["content"] for message in json.loads(held)]
        assert said == ["Walk.", *sides[1]]
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
        await tl.arun(tl.Agent(model="toy"), TASKS, llm=Walker(), program=program, workers=0)
    assert not going
