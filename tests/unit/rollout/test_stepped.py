"""Environments that give rewards, end rollouts and leave facts; rewards that reach them; what breaks off goes on."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from breaking import Setting, check
from hypothesis import given, settings
from hypothesis import strategies as st
from notebook import Notebook, account, forget
from notebook import look as write
from recorder import replayed
from scripted import Say, Scripted, Silent, grow
from walking import SnappedWalk, Walk, expected_rewards, length_walked, look, step_of, steps_walked
from worlds import Model, World

import trunkline as tl
from trunkline.agent import CompiledAgent
from trunkline.errors import ConfigError
from trunkline.rollout.sampling.completions import CompletionClient
from trunkline.rollout.tree_runner import TreeRunner, TreeSettings
from trunkline.scoring.filters.base import Group
from trunkline.scoring.notes import Verdict, read, why_unscored
from trunkline.scoring.rewards.base import step_sum
from trunkline.scoring.rewards.grading import Grader
from trunkline.strategies.chain import Chain
from trunkline.strategies.mcts import MCTS
from trunkline.strategies.tree_grpo import TreeGRPO
from trunkline.tools.environment import Environment
from trunkline.tree.views import Trajectory, Tree
from trunkline.types import UNSCORED, Task, Termination

STRATEGIES = [Chain(1), Chain(4, wave=2), TreeGRPO(trees=2, forks=2, rounds=1), MCTS(6)]


class Far:
    """A filter that masks rollouts by the facts that their environments left."""

    def judge(self, group: Group) -> Iterator[tuple[int, Verdict]]:
        for rollout in group.rollouts:
            if rollout.final_info is not None and len(rollout.final_info["words"]) > 1:
                yield (
                    rollout.id,
                    Verdict("Far", "mask", f"{sum(map(math.isnan, rollout.step_rewards))} without a reward"),
                )


def setting(strategy: Any, environment: type[Walk], world: World, order: int | None, reward: Any) -> Setting:
    agent = {"max_turns": world.depth, "environment": environment}
    return Setting(strategy, partial(Model, world, order), [look], agent, reward=reward, filters=[Far()])


def said(deltas: list[bytes]) -> list[tuple[str, Any]]:
    """What the environments said; as text, since NaN is not equal to itself."""
    tree = Tree(Task.ask("what?", "1", id="q"), replayed(deltas))
    return [(repr(rollout.step_rewards), rollout.final_info) for rollout in tree.rollouts]


def by_the_conversation(deltas: list[bytes], reward: Any) -> None:
    """Compare a tree with what its conversations lead to."""
    for rollout in Tree(Task.ask("what?", "1", id="q"), replayed(deltas)).rollouts:
        walked = steps_walked(rollout)
        assert repr(rollout.step_rewards) == repr(expected_rewards(rollout))
        last = step_of(walked[-1]) if walked else None
        over = [step_of(words) for words in walked[:-1]]
        assert not any(one and (one[1] or one[2]) for one in over), "nothing follows the last step"
        if rollout.termination is Termination.ANSWER and rollout.answer is None:
            assert last is not None
            assert last[1]
        elif last is not None and last[2]:
            assert rollout.termination is Termination.MAX_TURNS
        if rollout.termination in UNSCORED:
            continue
        assert rollout.final_info == {"words": walked[-1] if walked else []}
        reasons = [f"{sum(map(math.isnan, rollout.step_rewards))} without a reward"] if len(walked) > 1 else []
        assert [verdict.reason for verdict in read(rollout.note)] == reasons
        sums = [given for given in rollout.step_rewards if not math.isnan(given)]
        whole = math.fsum(sums) if sums else math.nan
        own = len(walked[-1] if walked else []) + (rollout.answer == "1") / 2
        assert rollout.reward == pytest.approx(own if reward is length_walked else whole, nan_ok=True)


@pytest.mark.parametrize("reward", [step_sum, length_walked])
@pytest.mark.parametrize("environment", [Walk, SnappedWalk])
@pytest.mark.parametrize(
    "strategy", STRATEGIES, ids=lambda strategy: type(strategy).__name__ + str(strategy.rollouts())
)
@settings(max_examples=2)
@given(seed=st.integers(0, 10**6), order=st.none() | st.integers(1, 9))
def test_what_an_environment_says_is_on_record_wherever_it_broke_off(strategy, environment, reward, seed, order):
    grows = setting(strategy, environment, World(seed, words=4, depth=4, stop=0.2), order, reward)
    whole = grows.grow()
    by_the_conversation(whole.deltas, reward)
    for kept in range(0, len(whole.deltas) + 1, 1 + seed % 3):
        again = grows.grow(whole.deltas[:kept])
        check(whole, whole.deltas[:kept], again)
        assert said(again.deltas) == said(whole.deltas), f"broken off after {kept} deltas"


def one_step(conversation: list[dict], seed: int) -> Say:
    return Say("yes", final=True) if len(conversation) > 1 else Say("a")


def saying(name: str, what: Any) -> type[Notebook]:
    """A notebook, one of whose methods returns this, or what it leads to if it can be called."""

    async def method(self: Notebook) -> Any:
        return await what() if callable(what) else what

    return type("Odd", (Notebook,), {name: method, "timeout": 0.05})


async def raises() -> None:
    raise RuntimeError("\x1b[31m sk-abcdefghijklmnopqrstuvwx")


async def hangs() -> None:
    await asyncio.Event().wait()


def nested(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(levels):
        found = {"": found}
    return found


BROKEN = [raises, hangs]
STEPS = [(math.nan, False, False), (1e101, False, False), (-math.inf, True, False), (10**400, False, False), (1, False)]
STEPS += [5, "abc", (1, "no", False), ("1", False, False), (1, False, None), {}, (1, 2, False), [[], True, False]]
FACTS = [[1], "facts", {"a": object()}, {"a": "\ud800"}, {"a": "x" * 70_000}, nested(65), nested(5000), {(1, 2): 3}]


@pytest.mark.parametrize("value", STEPS + BROKEN, ids=lambda value: type(value).__name__)
async def test_a_step_that_says_what_cannot_be_ends_its_rollout_with_a_typed_failure(value):
    forget()
    tree, _ = await grow(Chain(2), one_step, tools=[write], environment=saying("stepped", value))
    account()
    for rollout in tree.rollouts:
        assert (rollout.termination, rollout.error.kind) == (Termination.TOOL_ERROR, "EnvironmentFailed")
        assert rollout.error.message.startswith("stepped() of the environment Odd ")
        assert rollout.error.message.isprintable()
        assert "sk-abc" not in rollout.error.message
        assert [node.text for node in rollout.nodes][-1] == "q a", "the call was made, and is on record"
        assert math.isnan(rollout.reward)


@pytest.mark.parametrize("value", FACTS + BROKEN, ids=lambda value: type(value).__name__)
async def test_facts_that_cannot_be_kept_end_their_rollout_with_a_typed_failure(value):
    forget()
    tree, _ = await grow(Chain(2), one_step, tools=[write], environment=saying("final_info", value))
    account()
    for rollout in tree.rollouts:
        assert (rollout.termination, rollout.error.kind) == (Termination.TOOL_ERROR, "EnvironmentFailed")
        assert rollout.error.message.startswith("final_info() of the environment Odd ")
        assert rollout.error.message.isprintable()
        assert rollout.final_info is None


class Flag:
    """A flag as NumPy's are: equal to True, and no bool."""

    def __eq__(self, other: object) -> bool:
        return other is True

    __hash__ = None


async def test_flags_and_numbers_of_other_libraries_will_do():
    odd = saying("stepped", [True, False, Flag()])
    tree, _ = await grow(Chain(1), one_step, tools=[write], environment=odd, reward=step_sum)
    (rollout,) = tree.rollouts
    assert (rollout.termination, rollout.reward, rollout.step_rewards) == (Termination.MAX_TURNS, 1.0, [1.0])
    tree, _ = await grow(
        Chain(1), one_step, tools=[write], environment=saying("final_info", {"a": math.inf, "b": (1,)})
    )
    assert tree.rollouts[0].final_info == {"a": None, "b": [1]}


def test_a_replay_that_is_rewarded_otherwise_is_refused(caplog):
    class Moody(Walk):
        times = 0

        async def stepped(self) -> tuple[float, bool, bool]:
            Moody.times += 1
            return float(Moody.times), False, False

    whole = setting(Chain(1), Moody, World(5, words=4, depth=4, stop=0.0), None, None).grow()
    again = setting(Chain(1), Moody, World(5, words=4, depth=4, stop=0.0), None, None).grow(whole.deltas[:-4])
    assert again.rollouts[0][0] == "cancelled"
    assert (
        "stepped() of the environment Moody says (4.0, '') of turn 0, run again, where the record says" in caplog.text
    )


async def parts(trajectory: Trajectory) -> float:
    return 1.0


async def test_a_part_of_a_weighted_reward_reaches_the_environment():
    reward = tl.rewards.weighted({"walked": (length_walked, 2.0), "parts": parts})
    tree, _ = await grow(Chain(1), one_step, tools=[look], environment=Walk, reward=reward)
    assert tree.rollouts[0].reward == 3.0
    async with Grader(reward) as grader:
        later = await grader.score(tree.rollouts[0])
    assert math.isnan(later.value)
    assert "length_walked takes the rollout's environment, which is there only while" in str(later.problem)


def test_rewards_that_cannot_have_an_environment_are_refused_before_the_run():
    @tl.reward(batch=4)
    def many(trajectories: list[Trajectory], environment: Walk) -> list[float]:
        return []

    with pytest.raises(
        ConfigError, match="reward length_walked takes the rollout's environment, and agent 'agent' has"
    ):
        tl.plan(tl.Agent(model="m"), [Task.ask("q")], llm="http://localhost:1", reward=length_walked)
    agent = tl.Agent(model="m", tools=[look], environment=Walk)
    with pytest.raises(ConfigError, match="reward many has a parameter environment, and batch"):
        tl.plan(agent, [Task.ask("q")], llm="http://localhost:1", reward=many)

    def turned(environment: Walk, trajectory: Trajectory) -> float:
        return 0.0

    def unnamed(trajectory: Trajectory, environment: Walk, /) -> float:
        return 0.0

    for wrong in (turned, unnamed):
        with pytest.raises(ConfigError, match=r"cannot be asked with a trajectory and environment=\.\.\."):
            tl.plan(agent, [Task.ask("q")], llm="http://localhost:1", reward=wrong)


def test_a_reward_whose_environment_cannot_be_had_again_leaves_its_rollout_unscored():
    class Once(Walk):
        replay = False

    grows = setting(Chain(2, wave=1), Once, World(5, words=4, depth=3, stop=0.0), None, waits_and_looks)
    whole = grows.grow()
    found = set()
    for kept in range(len(whole.deltas)):
        again = grows.grow(whole.deltas[:kept])
        core = replayed(again.deltas)
        found |= {why_unscored(core.rollout(number).note)[:42] for number in range(core.rollouts)}
    assert "waits_and_looks takes the rollout's enviro" in found


async def waits_and_looks(trajectory: Trajectory, environment: Walk) -> float:
    await asyncio.sleep(0)
    return length_walked(trajectory, environment)


def test_methods_must_be_coroutines():
    for name in ("stepped", "final_info"):
        with pytest.raises(ConfigError, match=rf"{name} must be a method written with `async def`"):
            type("Plain", (Environment,), {name: lambda self: None})


@pytest.mark.parametrize("cut", [False, True])
async def test_an_environment_is_closed_however_its_reward_is_left(cut: bool):
    reached, let = asyncio.Event(), asyncio.Event()

    async def looks(trajectory: Trajectory, environment: Notebook) -> float:
        reached.set()
        await let.wait()
        return float(len(environment.words))

    forget()
    tree = Tree(Task.ask("what?", "yes", id="q"))
    compiled = CompiledAgent(tl.Agent(model="scripted", tools=[write], environment=Notebook))
    settings = TreeSettings(compiled, Chain(2), looks, 7, CompletionClient(Scripted(one_step)))
    session = TreeRunner(tree, settings, Silent())
    running = asyncio.create_task(session.run())
    await asyncio.wait_for(reached.wait(), 5)
    if cut:
        session.cut("deadline", "now")
        let.set()
        await asyncio.wait_for(running, 5)
        assert tree.rollouts[0].reward == 2.0, "what has ended is scored"
    else:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, 5)
        assert tree.rollouts[0].termination is Termination.ANSWER
        assert math.isnan(tree.rollouts[0].reward)
    account()


async def test_under_any_other_reward_the_environment_is_closed_before_the_reward_is_asked():
    async def plain(trajectory: Trajectory) -> float:
        Notebook.done.append("reward")
        return 1.0

    forget()
    await grow(Chain(1), one_step, tools=[write], environment=Notebook, reward=plain)
    assert account()[-2:] == ["close", "reward"]
