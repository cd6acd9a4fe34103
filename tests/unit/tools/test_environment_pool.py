"""Pools of environments: order, bounds, reuse and replacement against a naive model; cuts, barriers and mistakes."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import Any

import msgspec
import pytest
from forking import Late, words
from hypothesis import given, settings
from hypothesis import strategies as st
from notebook import Notebook, Paper, forget, look
from scripted import Say, Scripted, Silent, grow
from slates import PaperSlate, Slate

from trunkline._core import CoreTree
from trunkline.agent import Agent, CompiledAgent
from trunkline.errors import ConfigError, EnvironmentFailed
from trunkline.llm.config import LLM
from trunkline.observability.live import ProgressLine
from trunkline.observability.observers import Progress, explain
from trunkline.observability.prometheus import PrometheusServer
from trunkline.protocol.job import Job, pack_job, unpack_job
from trunkline.protocol.job import settings as settings_of
from trunkline.protocol.messages import WorkerState
from trunkline.rollout.budget import Budget
from trunkline.rollout.programs.context import ProgramContext
from trunkline.rollout.programs.resources import Program
from trunkline.rollout.sampling.completions import CompletionClient
from trunkline.rollout.task_budget import BudgetSources
from trunkline.rollout.tree_runner import TreeRunner, TreeSettings
from trunkline.strategies.base import Fork, Strategy, View
from trunkline.strategies.chain import Chain
from trunkline.strategies.stopping import Stopping
from trunkline.strategies.tree_grpo import TreeGRPO
from trunkline.strategies.tree_search import TreeSearch
from trunkline.tools.environment import Environment, kind_of
from trunkline.tools.environment_pool import EnvironmentPool, PoolCounts, PoolKeeper, PoolPlace
from trunkline.tools.tool import tool
from trunkline.tools.toolbox import Toolbox
from trunkline.tree.views import Trajectory, Tree
from trunkline.types import Task, Termination

TASK = Task.ask("what?", "yes", id="q")


@pytest.fixture(autouse=True)
def count() -> None:
    """Begin a new count: tests that close no toolbox leave environments that wait for the next rollout."""
    Slate.live = Slate.most = 0


class Cell(Environment):
    """Counts its uses; one that is poisoned cannot be reset."""

    def __init__(self) -> None:
        self.uses = 0
        self.poisoned = False

    async def fresh(self, task: Task) -> None:
        self.uses += 1

    async def reset(self, task: Task) -> None:
        """Begin again."""
        await asyncio.sleep(0)
        if self.poisoned:
            raise OSError("poisoned")
        self.uses += 1


class Model:
    """A pool as a list of waiting rollouts, a table of holders, and a line of free environments."""

    def __init__(self, pool: EnvironmentPool) -> None:
        self.pool = pool
        self.waiting: list[int] = []
        self.holding: dict[int, list[Any]] = {}  # uses and whether it is poisoned
        self.free: deque[list[Any]] = deque()
        self.made = self.reused = self.replaced = 0

    def ask(self, rollout: int) -> None:
        self.waiting.append(rollout)
        self.serve()

    def end(self, rollout: int, *, broken: bool) -> None:
        cell = self.holding.pop(rollout)
        worn = broken or (self.pool.max_uses is not None and cell[0] >= self.pool.max_uses)
        self.replaced += worn
        if self.pool.reset and not worn:
            self.free.append(cell)
        self.serve()

    def serve(self) -> None:
        while self.waiting and (self.free or len(self.holding) < self.pool.size):
            rollout = self.waiting.pop(0)
            cell = self.free.popleft() if self.free else [0, False]
            if cell[1]:
                self.replaced += 1
                cell = [0, False]
            if cell[0]:
                self.reused += 1
            else:
                self.made += 1
            cell[0] += 1
            self.holding[rollout] = cell


pools = st.builds(
    lambda size, reset, uses: EnvironmentPool(Cell, size=size, reset=reset, max_uses=uses if reset else None),
    st.integers(1, 3),
    st.sampled_from([None, True, "reset"]),
    st.none() | st.integers(1, 3),
)
moves = st.lists(
    st.tuples(st.sampled_from(["ask", "ask", "end", "end", "break", "poison", "give up"]), st.integers(0, 9)),
    max_size=30,
)


@given(pools, moves)
@settings(deadline=None)
def test_a_pool_serves_in_order_and_reuses_and_replaces_as_a_naive_one_does(pool: EnvironmentPool, script: Any):
    asyncio.run(compare(pool, script))


async def compare(pool: EnvironmentPool, script: list[tuple[str, int]]) -> None:
    toolbox, model = Toolbox(), Model(pool)
    keeper = toolbox.pool = PoolKeeper(pool, toolbox.manage)
    places: dict[int, PoolPlace] = {}
    opening: dict[int, asyncio.Task[None]] = {}
    for number, (move, which) in enumerate(script):
        held = list(model.holding)
        if move == "ask":
            places[number] = PoolPlace(pool)
            opening[number] = asyncio.create_task(keeper.open(places[number], "fresh", TASK))
            model.ask(number)
        elif move == "give up" and model.waiting:
            rollout = model.waiting.pop(which % len(model.waiting))
            opening.pop(rollout).cancel()
        elif held and move in {"end", "break"}:
            rollout = held[which % len(held)]
            if move == "break":
                with pytest.raises(ZeroDivisionError):
                    async with places[rollout].using():
                        raise ZeroDivisionError
            await keeper.leave(places[rollout])
            model.end(rollout, broken=move == "break")
        elif held and move == "poison":
            rollout = held[which % len(held)]
            places[rollout].environment.poisoned = model.holding[rollout][1] = True  # type: ignore[attr-defined]
        for _ in range(60):
            await asyncio.sleep(0)
        there = {rollout: place.live for rollout, place in places.items() if place.live is not None}
        assert there.keys() == model.holding.keys()
        assert {rollout: live.uses for rollout, live in there.items()} == {
            rollout: uses for rollout, (uses, _) in model.holding.items()
        }
        assert keeper.counts == (
            len(model.holding) + len(model.free),
            len(model.waiting),
            model.made,
            model.reused,
            model.replaced,
        )
    await toolbox.close()
    ended = await asyncio.gather(*opening.values(), return_exceptions=True)
    assert sum(isinstance(one, EnvironmentFailed) for one in ended) == len(model.waiting)
    assert keeper.counts.live == 0


class Together:
    """Chains that wait for each other after each step, each with its environment."""

    stepwise = True

    def __init__(self, n: int) -> None:
        self.n = n

    def rollouts(self) -> int:
        return self.n

    def start(self, view: View) -> list[Fork]:
        return [Fork(n=self.n)]


def talk(conversation: list[dict], seed: int) -> Say:
    """Writes words drawn by the seed, and answers after some turns."""
    turn = sum(message["role"] == "assistant" for message in conversation)
    return Say("yes" if seed % 2 else "no", final=True) if turn > 2 + seed % 3 else Say("abcdef"[seed % 6])


async def grown(
    strategy: Strategy, environment: Any, *, reward: Any = None, budget: Budget | None = None, **changes: Any
) -> tuple[str, Tree]:
    core = CoreTree()
    tree = Tree(TASK, core)
    compiled = CompiledAgent(Agent(model="scripted", tools=changes.pop("tools", [look]), environment=environment))
    if "program" in changes:
        changes["program"] = Program(changes["program"], compiled)
    sources = None if budget is None else BudgetSources(budget, None, {})
    runner = TreeRunner(
        tree,
        TreeSettings(compiled, strategy, reward, 7, CompletionClient(Scripted(talk)), sources=sources, **changes),
        Silent(),
    )
    async with asyncio.timeout(30):
        await runner.run()
    core.check()
    await compiled.toolbox.close()
    return tree.digest(), tree


def length(trajectory: Trajectory) -> float:
    """Prefers what is longer."""
    return float(sum(len(node.text) for node in trajectory.nodes))


strategies = st.sampled_from(
    [
        Chain(5),
        Together(5),
        TreeGRPO(trees=2, forks=2, rounds=2),
        TreeSearch(width=3, keep=2, depth=3, value=length),
        Chain(4, avoid=True),
    ]
)


@given(
    strategies,
    st.builds(
        lambda size, warm, reset, uses: EnvironmentPool(
            Slate, size=size, warm=min(size, warm), reset=reset, max_uses=uses if reset else None
        ),
        st.integers(1, 3),
        st.integers(0, 2),
        st.sampled_from([None, True]),
        st.none() | st.integers(1, 4),
    ),
    st.sampled_from([None, Budget(calls=9), Budget(rollouts=3), Budget(tools=5)]),
)
@settings(deadline=None, max_examples=15)
def test_trees_are_those_of_environments_without_a_pool(
    strategy: Strategy, pool: EnvironmentPool, budget: Budget | None
):
    async def score(trajectory: Any, environment: Notebook) -> float:
        assert type(environment) in {Notebook, Slate}
        await asyncio.sleep(0)
        return float(len(environment.words))

    plain, tree = asyncio.run(grown(strategy, Notebook, reward=score, budget=budget))
    assert not any(math.isnan(one.reward) for one in tree.rollouts if one.termination is Termination.ANSWER)
    Slate.most = 0
    assert asyncio.run(grown(strategy, pool, reward=score, budget=budget))[0] == plain
    assert (Slate.live, Slate.most <= pool.size) == (0, True)


async def test_a_start_ahead_that_fails_is_tried_again_with_the_next_rollout_alone(caplog):
    tries = 0

    class Failing(Slate):
        async def start(self) -> None:
            nonlocal tries
            tries += 1
            raise OSError("no room")

    _, tree = await grown(Chain(3), EnvironmentPool(Failing, size=2, warm=1))
    assert {rollout.error.message for rollout in tree.rollouts} == {
        "start() of the environment Failing raised OSError: no room"
    }
    assert tries <= 9
    assert len([one for one in caplog.records if one.name.endswith("environment_pool")]) == 1


async def meddle(rollout: ProgramContext) -> str:
    """Asks and looks at the same time, so that a rollout that waits between two steps uses its environment."""
    seen = await rollout.tool(look, what="s")
    said = [{"role": "user", "content": seen.text}]

    async def observe(what: str) -> str:
        return (await rollout.tool(look, what=what)).text

    turn, first, second = await asyncio.gather(rollout.ask(messages=said), observe("x"), observe("y"))
    other, _ = await asyncio.gather(rollout.ask(messages=[*said, {"role": "user", "content": second}]), observe("z"))
    return f"{first} {second} {turn.text} {other.text} {await observe('e')}"


@given(
    st.sampled_from([Chain(4), Together(4), TreeGRPO(trees=2, forks=2, rounds=1)]),
    st.integers(1, 2),
    st.sampled_from([None, Budget(calls=5), Budget(calls=100), Budget(tools=9)]),
)
@settings(deadline=None, max_examples=10)
def test_trees_of_programs_are_those_without_a_pool(strategy: Strategy, size: int, budget: Budget | None):
    plain, tree = asyncio.run(grown(strategy, Notebook, budget=budget, program=meddle))
    ended = {rollout.termination for rollout in tree.rollouts}
    assert ended <= {Termination.ANSWER, Termination.CENSORED}
    assert (
        asyncio.run(grown(strategy, EnvironmentPool(Slate, size=size, reset=True), budget=budget, program=meddle))[0]
        == plain
    )
    assert Slate.live == 0


@pytest.mark.parametrize("size", [1, 2])
async def test_rollouts_that_are_cut_while_they_wait_hold_no_place(size: int):
    _, tree = await grown(Chain(6), EnvironmentPool(Slate, size=size, reset=True), stopping=Stopping(enough=2))
    assert Slate.live == 0
    assert sum(rollout.termination is Termination.ANSWER for rollout in tree.rollouts) >= 2


@given(
    st.integers(0, 120),
    st.sampled_from([Chain(4), Together(4), TreeGRPO(trees=2, forks=2, rounds=1)]),
    st.sampled_from([None, True]),
    st.integers(0, 2),
)
@settings(deadline=None, max_examples=20)
def test_a_run_that_is_cancelled_anywhere_closes_all(passes: int, strategy: Strategy, reset: bool | None, warm: int):
    async def play() -> None:
        pool = EnvironmentPool(Slate, size=2, warm=warm, reset=reset)
        compiled = CompiledAgent(Agent(model="scripted", tools=[look], environment=pool))
        tree = Tree(TASK, CoreTree())
        runner = TreeRunner(tree, TreeSettings(compiled, strategy, None, 7, CompletionClient(Scripted(talk))), Silent())
        running = asyncio.create_task(runner.run())
        for _ in range(passes):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        await compiled.toolbox.close()
        for _ in range(20):  # closing is not interrupted, and goes on beside
            await asyncio.sleep(0)
        assert Slate.live == 0
        assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    asyncio.run(play())


@pytest.mark.parametrize("method", ["fresh", "reset", "restore", "snapshot", "close"])
@pytest.mark.parametrize("hang", [False, True], ids=["raises", "hangs"])
async def test_an_environment_that_fails_is_replaced_and_the_others_go_on(method: str, hang: bool):
    class Failing(Slate):
        timeout = 0.05
        calls = 0

    plain = getattr(Slate, method)

    async def fail(self: Slate, *given: Any) -> Any:
        Failing.calls += 1
        if Failing.calls == 1:
            if hang:
                await asyncio.Event().wait()
            raise RuntimeError("no")
        return await plain(self, *given)

    setattr(Failing, method, fail)
    pool = EnvironmentPool(Failing, size=1, reset=None if method == "close" else True)
    tree, _ = await grow(Chain(3) if method == "fresh" else Late(1, 2, chains=2), words, tools=[look], environment=pool)
    failed = [rollout.error.message for rollout in tree.rollouts if rollout.error]
    what = "took longer than 0.05 s" if hang else "raised RuntimeError: no"
    assert failed == ([f"fresh() of the environment Failing {what}"] if method == "fresh" else [])
    assert Failing.calls


@tool(name="look", timeout=0.05)
async def look_for_ever(what: str, notes: Slate) -> str:
    """Look.

    Args:
        what: The word.
    """
    await asyncio.Event().wait()
    return notes.write(what)


async def test_an_environment_whose_call_was_stopped_is_not_used_again():
    forget()
    await grow(Chain(3), words, tools=[look_for_ever], environment=EnvironmentPool(Slate, size=1, reset=True))
    assert "reset" not in Paper.done
    assert Paper.done.count("fresh") == 3


async def test_a_rollout_between_steps_whose_environment_gives_no_snapshot_keeps_it(caplog):
    class Mute(Slate):
        async def snapshot(self) -> Any:
            return None

    plain, _ = await grown(Together(4), Notebook)
    pooled, _ = await grown(Together(4), EnvironmentPool(Mute, size=2))
    assert pooled == plain
    (record,) = caplog.records
    assert record.getMessage() == (
        f"pool of environments, {Mute.__qualname__}: more than size are live: "
        "one that is held between two steps gave no snapshot (said once)"
    )


def job(environment: Any, **options: Any) -> Job:
    agent = Agent(model="m", tools=[look], environment=environment)
    return Job(
        agent=agent, strategy=options.pop("strategy", Chain(2)), reward=None, llm=LLM("http://a/v1"), seed=1, **options
    )


def test_a_pool_crosses_to_workers_and_is_no_part_of_what_a_result_means():
    pool = EnvironmentPool("slates:Slate", size=3, warm=1, reset="reset", max_uses=5)
    there = unpack_job(pack_job(job(pool))).agent.environment
    assert (there, there.cls) == (pool, Slate)
    assert settings_of(job(pool)) == settings_of(job(Slate))


class Childless(Environment):
    def __init_subclass__(cls, **options: Any) -> None:
        raise TypeError("it has no children")


class Odd(Slate):
    """Has names that a pool uses, too, and no attributes but those."""

    _kind, _place, place, environment, keeper = 1, 2, 3, 4, 5

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"\x1b[31m{name}")

    def __eq__(self, other: object) -> bool:
        raise TypeError("never")

    __hash__ = None  # type: ignore[assignment]


async def test_a_class_with_names_and_habits_of_its_own_is_kept_as_any_other():
    plain, _ = await grown(Chain(3), Notebook)
    assert (await grown(Chain(3), EnvironmentPool(Odd, size=2, reset=True)))[0] == plain
    assert Slate.live == 0
    assert kind_of(Odd) is kind_of(EnvironmentPool(Odd)) is Odd


def made(**changes: Any) -> EnvironmentPool:
    return EnvironmentPool(**{"cls": Slate} | changes)


def test_its_counts_are_in_the_state_of_a_worker_and_say_why_a_run_stands_still():
    counts = PoolCounts(2, 3, 5, 0, 1)
    state = WorkerState(0.0, 1, 5, 0, 0.0, 0, "", 0.0, environments=counts)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=WorkerState) == state
    assert explain(Progress(1, 1, quiet=999.0, workers=1, engines={0: state})) == (
        "no progress for 999 s: 3 rollouts wait for an environment of the pool"
    )
    assert ProgressLine.workers(Progress(1, 1, engines={0: state})).endswith(" 0 requests 2 environments")
    metrics = PrometheusServer()
    metrics.look(Progress(1, 1, engines={0: state, 1: state}))
    metrics.look(Progress(1, 1, engines={0: msgspec.structs.replace(state, environments=None)}))
    metrics.look(Progress(1, 1, engines={1: state}))
    shown = {
        one: metrics.registry.get_sample_value("trunkline_pool_environments", {"worker": "1", "count": one})
        for one in counts._fields
    }
    assert shown == counts._asdict()
    assert metrics.registry.get_sample_value("trunkline_pool_environments", {"worker": "0", "count": "live"}) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"size": 0}, "size must be a whole number of at least 1, not 0"),
        ({"warm": 9}, "warm must be a whole number from 0 to 8, not 9"),
        ({"reset": 3}, "reset must be the name of a method, not 3"),
        ({"reset": "wipe"}, "reset= needs Slate.wipe to be a method written with `async def`"),
        ({"cls": Notebook, "warm": 1}, "warm= needs Notebook.start to be a method written with `async def`"),
        ({"max_uses": 3}, "max_uses counts uses of one environment: set reset=, or drop it"),
        ({"cls": 3}, "cls must be a class derived from Environment, or a function that returns one, not 3"),
        (
            {"cls": dict},
            "cls must be a class derived from Environment, or a function that returns one; dict returns {}",
        ),
        ({"cls": lambda: 1 / 0}, "cannot be made without arguments"),
        ({"cls": Childless}, "no class can be derived from Childless: TypeError: it has no children"),
        ({"cls": EnvironmentPool(Slate)}, "EnvironmentPool returns <"),
    ],
)
def test_a_mistake_is_named(changes: dict[str, Any], words: str):
    with pytest.raises(ConfigError) as refused:
        made(**changes)
    assert words in str(refused.value)


@pytest.mark.parametrize("options", [{"strategy": Together(2)}, {"task_budget": Budget(calls=3)}])
def test_environments_without_snapshots_are_refused_where_rollouts_wait_between_steps(options: dict[str, Any]):
    with pytest.raises(ConfigError, match="environment PaperSlate is kept in an EnvironmentPool and has no snapshots"):
        job(EnvironmentPool(PaperSlate, reset=True), **options)
    job(EnvironmentPool(Slate, reset=True), **options)
