"""The prompt of a tree, and the moves of a strategy on it; no model is asked here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline._core import PROMPT, ROOT, TURN
from trunkline._internal.aio import current_task, raised_by_user_code
from trunkline._internal.text import describe_error
from trunkline.agent import BoundDialect
from trunkline.errors import ConfigError, StrategyError, TreeError
from trunkline.llm import messages
from trunkline.strategies.base import INSIDE, Drop, Fork, Move, Stop, View, prompt, stepwise
from trunkline.strategies.chain import Chain

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from trunkline._core import CoreTree
    from trunkline.agent import Agent
    from trunkline.rollout.sampling.sampler import Sampler
    from trunkline.strategies.base import Strategy
    from trunkline.tree.views import Tree


def write_prompt(tree: Tree, agent: Agent, dialect: BoundDialect) -> int:
    """Write system prompt, dialect and task messages into an empty tree; return the last node of the prompt."""
    core, node = tree.core, ROOT
    if len(core) > 1:
        return prompt(core)
    for message in dialect.opening(agent.system, tree.task.messages):
        node = core.append(node, PROMPT, message)
    return node


def begin(tree: Tree, agent: Agent, strategy: Strategy, seed: int) -> None:
    """Write the prompt and open the first forks of a tree that will not be grown."""
    end = write_prompt(tree, agent, BoundDialect(agent.dialect, agent.tools, agent.sampling))
    for move in moves(BoundStrategy(strategy), "start", View(tree, [], seed)):
        if isinstance(move, Fork):
            open_fork(tree.core, move, end)


class BoundStrategy:
    """A strategy, and what it says of itself, which is the same for all trees of a run."""

    def __init__(self, strategy: Strategy) -> None:
        self.name = type(strategy).__name__
        self.planned = strategy.rollouts()
        self.stepwise = stepwise(strategy)
        self.value = getattr(strategy, "value", None)
        self.hooks = {hook: getattr(strategy, hook, None) for hook in ("start", "ended", "stepped")}
        # Without these hooks nothing forks but the prompt.
        hooks = self.hooks["ended"] is not None or self.hooks["stepped"] is not None
        self.branches = bool(getattr(strategy, "branches", hooks))
        # One plain fork of the prompt, and nothing follows.
        self.single = type(strategy) is Chain and strategy.n == 1 and not strategy.temperatures


def moves(strategy: BoundStrategy, hook: str, view: View) -> list[Move]:
    """Call a strategy's hook and check its moves: ConfigError before anything was paid for, StrategyError later."""
    ask = strategy.hooks[hook]
    if ask is None:
        return []
    name, task = strategy.name, view.tree.task.id
    error = ConfigError if hook == "start" and not view.taken else StrategyError
    try:
        listed = list(ask(view))
    except BaseException as problem:
        if not raised_by_user_code(problem, current_task()):
            raise
        raise error(f"strategy {name} raised in {hook}() of task {task!r}: {describe_error(problem)}") from problem
    for move in listed:
        if not isinstance(move, Fork if hook == "start" else Move):
            raise error(f"strategy {name} yields {type(move).__name__} in {hook}() of task {task!r}")
    if hook == "start" and not listed and not view.taken:
        raise error(f"strategy {name} begins task {task!r} with no rollout; it must begin with one")
    return listed


def sort_moves(
    strategy: BoundStrategy,
    wanted: Sequence[Move],
    core: CoreTree,
    taken: int,
    waiting: Collection[int],
    sampler: Sampler,
    *,
    program: bool,
) -> tuple[list[Fork], dict[int, str], list[Drop]]:
    """Return forks, stopped rollouts with the reason, and drops; refuses impossible moves with a StrategyError.

    Forks beyond the planned rollouts are refused, so that a strategy cannot grow for ever.
    """
    forks: list[Fork] = []
    stopped: dict[int, str] = {}
    drops: list[Drop] = []
    opened = core.rollouts - taken
    asked = 0
    for move in wanted:
        match move:
            case Fork():
                forks.append(move)
                asked += move.n
            case Stop():
                stopped[move.rollout] = move.reason
            case Drop():
                drops.append(move)
    if asked and opened + asked > strategy.planned:
        error = StrategyError if opened else ConfigError
        plan = f"its rollouts() plans {strategy.planned} at most"
        raise error(f"strategy {strategy.name} has opened {opened} rollouts and wants {asked} more, but {plan}")
    for fork in forks:
        _check_fork(strategy, fork, core, sampler, program=program)
    for rollout in stopped:
        if rollout not in waiting:
            raise StrategyError(f"rollout {rollout} does not wait between two steps, so it cannot be stopped")
    for drop in drops:
        if drop.rollout >= core.rollouts:
            raise StrategyError(f"there is no rollout {drop.rollout}, so it cannot be dropped")
    return forks, stopped, drops


def _check_fork(strategy: BoundStrategy, fork: Fork, core: CoreTree, sampler: Sampler, *, program: bool) -> None:
    if fork.at is not None and program:
        raise StrategyError(f"{strategy.name} forks inside a turn, which a program and a team cannot do")
    if fork.at is not None and not sampler.inside:
        raise StrategyError(f"{strategy.name} forks inside a turn, which needs {INSIDE}")
    if fork.at is None and fork.point is not None and not program and _is_turn(core, fork.point):
        raise StrategyError(f"node {fork.point} is no fork point: it is a turn, and nothing was observed yet")


def _is_turn(core: CoreTree, point: int) -> bool:
    return point < len(core) and core.node(point).kind == TURN


def open_fork(core: CoreTree, fork: Fork, end: int) -> int:
    """Open the rollouts of a fork and return the id of the first; StrategyError where the point is no state.

    ``end`` is the last node of the prompt, where a fork without a point begins.
    """
    point = end if fork.point is None else fork.point
    group = fork.subgroup
    if fork.at is not None:
        state = _before(core, point, fork.at)
        group = _owner(core, point) if group is None else group
        point = state
    try:
        return core.fork(point, fork.n, messages.user(fork.say) if fork.say else None, group)
    except TreeError as error:
        raise StrategyError(str(error)) from None


def _before(core: CoreTree, turn: int, at: int) -> int:
    """Return the state before a turn that is continued from one of its tokens."""
    if turn >= len(core) or core.node(turn).kind != TURN:
        raise StrategyError(f"node {turn} is no model turn, so no token of it can be drawn again")
    tokens = core.tokens_of(turn)
    if tokens is None or at >= len(tokens):
        count = 0 if tokens is None else len(tokens)
        raise StrategyError(f"token {at} of turn {turn} cannot be drawn again: it has {count} tokens")
    return core.node(turn).parent


def _owner(core: CoreTree, turn: int) -> int:
    """Return the subgroup of the first rollout that passes a turn."""
    facts = map(core.rollout, range(core.rollouts))
    return next(rollout.subgroup for rollout in facts if turn in core.path(rollout.leaf))
