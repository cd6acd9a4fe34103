"""Replays that diverge and go on as branches, and the points at which nothing is drawn."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random

import msgspec
import openai
import pytest
from external_agents import TOOLS, Walker, walk, walker

import trunkline as tl
from trunkline.errors import BrokenRolloutsWarning, ConfigError
from trunkline.rollout.external import driver
from trunkline.runner.broken import judge
from trunkline.strategies.base import Fork
from trunkline.strategies.mcts import MCTS
from trunkline.strategies.tree_search import TreeSearch
from trunkline.tree.records import Records

TASKS = [tl.Task.ask(f"Walk {number}.", id=f"q{number}") for number in range(2)]
TREES = tl.TreeGRPO(trees=1, forks=3, rounds=2)


async def play(agent, llm=None, *, out=None, on_divergence="branch", tasks=TASKS, **options):
    program = tl.External(agent=agent, effects="none", on_divergence=on_divergence)
    given = {"strategy": TREES, "seed": 3, "workers": 0, "reward": lambda rollout: float(len(rollout.answer or ""))}
    who, llm = tl.Agent(model="m", max_turns=12), Walker() if llm is None else llm
    return await tl.arun(who, tasks, llm=llm, program=program, out=out, **given | options)


def digests(run):
    return [tree.digest() for tree in run]


def changing(walks):
    """An agent that says something else once it was at the end of a task; so forks differ, each in the same way."""
    over = set()

    def read(path):
        """Remember only the ends that are in a file, after a run that was broken off."""
        over.clear()
        if not path.exists():
            return
        with tl.RunReader.open(path) as reader:
            known = map(reader.tree, reader.task_ids())
            over.update(tree.task.id for tree in known if any(one.termination for one in tree.rollouts))

    async def agent(client, task):
        again = task.id in over
        answer = await walks(client, task, again)
        over.add(task.id)
        return answer

    agent.read = read
    return agent


class Rewriting:
    """A client that changes what the second tool says."""

    def __init__(self, client, said):
        self._client, self._said = client, said
        self.chat = self.completions = self

    async def create(self, **given):
        tools = [message for message in given["messages"] if message["role"] == "tool"]
        for message in tools[1:2]:
            message["content"] = self._said()
        return await self._client.chat.completions.create(**given)


async def at_a_tool(client, task, again):
    return await walk(Rewriting(client, lambda: "Again there is 4") if again else client, task)


async def at_the_beginning(client, task, again):
    return await walk(client, task, lambda: " Again." if again else "")


async def early_end(client, task, again):
    if not again:
        return await walk(client, task)
    messages = [{"role": "system", "content": "Walk."}, *task.messages]
    reply = await client.chat.completions.create(model="any", messages=messages, tools=TOOLS)
    return reply.choices[0].message.content


async def anything(client, task, again):
    chance = random.SystemRandom().random
    return await walk(Rewriting(client, lambda: f"There is {chance()} 4"), task)


def diverged(tree):
    """The rollouts of a tree that diverged, with their branches."""
    return {of: number for number, of in Records(tree.core).branches.items()}


@pytest.mark.breaks_rollouts
@pytest.mark.parametrize("walks", [at_a_tool, at_the_beginning, early_end, anything], ids=lambda one: one.__name__)
async def test_a_replay_that_diverges_goes_on_as_a_branch_from_what_was_equal(walks, tmp_path):
    with pytest.warns(BrokenRolloutsWarning, match="the groups are selected"):
        run = await play(changing(walks), out=tmp_path / "run")
    summary, planned = run.summary(), TREES.rollouts()
    calls = summary.agent_calls
    assert calls.branched >= calls.diverged / 2 > 0
    assert judge(summary, 1.0) == 1
    for tree in run:
        core, found = tree.core, diverged(tree)
        assert core.rollouts == planned + len(found)
        for of, number in found.items():
            was, branch = core.rollout(of), core.rollout(number)
            known, records = Records(core).of(number), Records(core).of(of)
            assert branch.point in core.path(was.leaf), "it hangs where all was equal"
            equal = [record for record in known if record in records]
            assert branch.point == (equal[-1].nodes[0] if equal else core.rollout(0).point)
            assert branch.subgroup not in {core.rollout(one).subgroup for one in range(planned)}
            for one in was, branch:
                assert one.termination == "filtered"
                assert math.isnan(one.reward)
        left_out = {one.id for one in tree.rollouts if one.termination != "answer"}
        samples = tl.train.turns([tree], estimator="tree_grpo", shared="repeat")
        assert left_out.isdisjoint(sample.rollout for sample in samples if sample.trained)
    assert summary.scored == summary.terminations["answer"], "no metric counts a branch"
    with tl.RunReader.open(tmp_path / "run") as reader:
        assert reader.check() == []
    if walks is anything:
        return
    counted = await play(changing(walks), on_divergence="count")
    for tree, same in zip(run, counted, strict=True):
        for of, number in diverged(same).items():
            assert diverged(tree)[of] == number
            branch, was = same.core.rollout(number), tree.core.rollout(number)
            assert (branch.termination, branch.answer) == ("answer", was.answer)
            assert branch.reward == len(was.answer)


class Stopping(Walker):
    """Ends the run when so many requests came."""

    def __init__(self, at):
        super().__init__()
        self.at, self.run = at, None

    async def complete(self, request):
        if len(self.bodies) == self.at:
            self.run.cancel()
        return await super().complete(request)


@pytest.mark.breaks_rollouts
async def test_a_run_that_was_broken_off_anywhere_has_the_same_branches(tmp_path):
    model = Walker()
    whole = await play(changing(at_a_tool), model, tasks=TASKS[:1])
    for at in range(3, len(model.bodies), 2):
        agent, stopping, out = changing(at_a_tool), Stopping(at), tmp_path / f"{at}.run"
        stopping.run = asyncio.ensure_future(play(agent, stopping, out=out, tasks=TASKS[:1]))
        with pytest.raises(asyncio.CancelledError):
            await stopping.run
        agent.read(out)
        again = await play(agent, Stopping(math.inf), out=out, tasks=TASKS[:1], resume=True)
        assert digests(again) == digests(whole)


class Watching(msgspec.Struct, frozen=True):
    """Forks as Tree-GRPO does, and is shown no branch."""

    strategy: tl.TreeGRPO = TREES

    def rollouts(self):
        return self.strategy.rollouts()

    def start(self, view):
        return self.strategy.start(view)

    def ended(self, view):
        assert not Records(view.tree.core).branches
        return self.strategy.ended(view)


@pytest.mark.breaks_rollouts
async def test_no_strategy_is_shown_a_branch_and_a_limit_of_rollouts_holds():
    run = await play(changing(at_a_tool), strategy=Watching(), task_budget=tl.Budget(rollouts=8))
    planned = TREES.rollouts()
    for tree in run:
        assert planned < tree.core.rollouts == 8
        assert tree.ended == "budget"


@pytest.mark.parametrize("effects", ["external", "none", ["none"]])
def test_values_that_cannot_be(effects):
    with pytest.raises(ConfigError, match="effects must be" if isinstance(effects, list) else "on_divergence"):
        tl.External(agent=walker, effects=effects, on_divergence="branch" if effects == "external" else "go on")


@pytest.mark.breaks_rollouts
async def test_branches_that_diverge_again_come_to_an_end(monkeypatch):
    monkeypatch.setattr(driver, "_MOST_BRANCHES", 2)
    starts = itertools.count()

    async def agent(client, task):
        messages, changed = [{"role": "user", "content": "Walk."}], 7 - next(starts)  # one message earlier each time
        for number in range(8):
            reply = await client.chat.completions.create(model="m", messages=messages)
            messages.append({"role": "assistant", "content": reply.choices[0].message.content})
            messages.append({"role": "user", "content": f"On, {number}" + " again" * (number == changed)})
        return "done"

    (tree,) = run = await play(agent, strategy=Everywhere(1), tasks=TASKS[:1])
    records, rows = Records(tree.core), []
    for number in records.branches:
        row = [number]
        while row[-1] in records.branches:
            row.append(records.branches[row[-1]])
        rows.append(len(row))
        known = [len(records.of(one)) - len(records.own(one)) for one in row[:-1]]
        assert known == sorted(set(known)), "each begins with fewer records"
    assert max(rows) == 3
    assert set(run.summary().terminations) <= {"answer", "filtered"}


@pytest.mark.breaks_rollouts
async def test_a_branch_and_what_diverged_can_be_asked_again(tmp_path):
    agent, out = changing(at_a_tool), tmp_path / "run"
    (tree,) = await play(agent, out=out, tasks=TASKS[:1])
    pairs = diverged(tree)
    of, branch = next(iter(pairs.items()))
    (tree,) = await play(agent, out=out, tasks=TASKS[:1], resume=True, retry=[f"q0#{of}", f"q0#{branch}"])
    first = TREES.rollouts() + len(pairs)
    again, other, last = (tree.core.rollout(number) for number in range(first, tree.core.rollouts))
    assert [tree.core.rollout(number).termination for number in (of, branch)] == ["retried", "retried"]
    assert again.point == tree.core.rollout(of).point
    assert other.point == last.point == tree.core.rollout(branch).point, "the one asked again diverges as well"
    with tl.RunReader.open(out) as reader:
        assert reader.check() == []


@pytest.mark.breaks_rollouts
async def test_rollouts_that_step_together_may_branch():
    strategy = TreeSearch(width=2, keep=2, value=lambda rollout: rollout.turns)
    run = await play(changing(at_a_tool), strategy=strategy)
    assert set(run.summary().terminations) <= {"answer", "censored", "filtered"}
    assert digests(run) == digests(await play(changing(at_a_tool), strategy=strategy))


class Together(Walker):
    """A model that is asked three things at once by a rollout; it answers once all are there."""

    def __init__(self):
        super().__init__()
        self.waiting = {}

    async def complete(self, request):
        if b'"part ' in request.body:
            beside = self.waiting.setdefault((request.task, *request.rollouts), [])
            beside.append(own := asyncio.Event())
            if len(beside) == 3:
                for one in beside:
                    one.set()
                beside.clear()
            await own.wait()
        return await super().complete(request)


async def side_walker(client, task):
    """Asks three things at once, walks, and asks three things at once again."""

    async def ask(text):
        messages = [{"role": "user", "content": text}]
        reply = await client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
        return reply.choices[0].message.content

    first = await ask(f"begin {task.id}")
    said = await asyncio.gather(*(ask(f"part {number} of {first}") for number in range(3)))
    answer = await walk(client, task, lambda: f" {said}")
    await asyncio.gather(*(ask(f"part {number} of {answer}") for number in range(3)))
    return answer


class Filtering(Walker):
    """A model whose server withholds a reply."""

    async def complete(self, request):
        reply = await super().complete(request)
        if b"withheld" in request.body:
            reply.choices[0].finish = "content_filter"
        return reply


async def test_no_draw_is_taken_where_a_reply_was_not_whole():
    async def agent(client, task):
        for text in ("begin", "withheld"):
            with contextlib.suppress(openai.BadRequestError):
                messages = [{"role": "user", "content": text}]
                await client.chat.completions.create(model="m", messages=messages)
        return await walk(client, task)

    run = await play(agent, Filtering(), strategy=Everywhere(), tasks=TASKS[:1], on_divergence="fail")
    assert run.summary().forks_refused == run.summary().terminations["cancelled"] == 1


class Everywhere(msgspec.Struct, frozen=True):
    """Forks wherever a turn followed, whether a draw can be taken there or not, or before the last turns alone."""

    last: int = 12

    def rollouts(self):
        return 12

    def start(self, view):
        yield Fork()

    def ended(self, view):
        core = view.tree.core
        if core.rollouts == 1:
            nodes = [view.tree.node(number) for number in core.path(core.rollout(0).leaf)]
            turns = [node for node in nodes if node.kind.name == "TURN"]
            yield from (Fork(turn.parent.id) for turn in turns[-self.last :])


@pytest.mark.parametrize(
    "strategy",
    [
        tl.TreeGRPO(trees=2, forks=3, rounds=2),
        MCTS(simulations=10, children=2, parallel=2),
        TreeSearch(width=2, keep=2, value=lambda rollout: rollout.turns),
        Everywhere(),
    ],
    ids=lambda one: type(one).__name__,
)
async def test_strategies_draw_where_a_call_was_alone(strategy):
    starts = itertools.count()

    async def agent(client, task):
        next(starts)
        return await side_walker(client, task)

    run = await play(agent, Together(), strategy=strategy, tasks=TASKS[:1], on_divergence="fail")
    (tree,), summary = run, run.summary()
    refused = summary.terminations.pop("cancelled", 0)
    assert set(summary.terminations) <= {"answer", "censored"}, summary.failures
    assert summary.agent_calls.beside > 0
    assert next(starts) == tree.core.rollouts - refused, "a fork that is refused is not paid for"
    if isinstance(strategy, Everywhere):
        assert refused == summary.forks_refused == 6 < tree.core.rollouts - 1
        facts = [tree.core.rollout(number) for number in range(tree.core.rollouts)]
        assert all(one.leaf == one.point for one in facts if one.termination == "cancelled")
    else:
        assert refused == 0
