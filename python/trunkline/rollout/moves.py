"""The prompt of a tree, and the moves of a strategy on it; no model is asked here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline._core import MESSAGE, PROMPT, ROOT, TURN
from trunkline._internal.aio import current_task, raised_by_user_code
from trunkline._internal.text import describe_error
from trunkline.agent import BoundDialect
from trunkline.errors import ConfigError, StrategyError, TreeError
from trunkline.llm import messages
from trunkline.strategies.base import INSIDE, Drop, Fork, Move, Stop, View, prompt

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from trunkline._core import CoreTree
    from trunkline.agent import Agent
    from trunkline.strategies.base import Strategy
    from trunkline.tree.views import Tree


def write_prompt(tree: Tree, agent: Agent) -> None:
    """Write system prompt, dialect and task messages into an empty tree."""
    core, node = tree.core, ROOT
    if len(core) > 1:
        return
    dialect = BoundDialect(agent.dialect, agent.tools, agent.sampling)
    for message in dialect.opening(agent.system, tree.task.messages):
        node = core.append(node, PROMPT, message)


def begin(tree: Tree, agent: Agent, strategy: Strategy, seed: int) -> None:
    """Write the prompt and open the first forks of a tree that will not be grown."""
    write_prompt(tree, agent)
    for move in moves(strategy, "start", View(tree, [], seed)):
        if isinstance(move, Fork):
            open_fork(tree.core, move)


def moves(strategy: Strategy, hook: str, view: View) -> list[Move]:
    """Call a strategy's hook and check its moves: ConfigError before anything was paid for, StrategyError later."""
    name, task = type(strategy).__name__, view.tree.task.id
    error = ConfigError if hook == "start" and not view.taken else StrategyError
    ask = getattr(strategy, hook, None)
    if ask is None:
        return []
    own = current_task()
    try:
        listed = list(ask(view))
    except BaseException as problem:
        if not raised_by_user_code(problem, own):
            raise
        raise error(f"strategy {name} raised in {hook}() of task {task!r}: {describe_error(problem)}") from problem
    for move in listed:
        if not isinstance(move, Fork if hook == "start" else Move):
            raise error(f"strategy {name} yields {type(move).__name__} in {hook}() of task {task!r}")
    if hook == "start" and not listed and not view.taken:
        raise error(f"strategy {name} begins task {task!r} with no rollout; it must begin with one")
    return listed


def check_size(strategy: Strategy, wanted: Sequence[Move], opened: int) -> None:
    """Refuse forks beyond the planned rollouts, so that a strategy cannot grow for ever."""
    asked, planned = sum(move.n for move in wanted if isinstance(move, Fork)), strategy.rollouts()
    if opened + asked > planned:
        error = StrategyError if opened else ConfigError
        state = f"has opened {opened} rollouts and wants {asked} more, but its rollouts() plans {planned} at most"
        raise error(f"strategy {type(strategy).__name__} {state}")


def check_moves(
    strategy: Strategy, wanted: Sequence[Move], core: CoreTree, waiting: Collection[int], *, inside: bool, program: bool
) -> None:
    """Refuse impossible moves with a StrategyError before any of them is made."""
    for move in wanted:
        if isinstance(move, Drop) and move.rollout >= core.rollouts:
            raise StrategyError(f"there is no rollout {move.rollout}, so it cannot be dropped")
        if isinstance(move, Stop) and move.rollout not in waiting:
            raise StrategyError(f"rollout {move.rollout} does not wait between two steps, so it cannot be stopped")
        if isinstance(move, Fork) and move.at is not None and not inside:
            raise StrategyError(f"{type(strategy).__name__} forks inside a turn, which needs {INSIDE}")
        if isinstance(move, Fork) and move.at is None and not program and _is_turn(core, move.point):
            raise StrategyError(f"node {move.point} is no fork point: it is a turn, and nothing was observed yet")


def _is_turn(core: CoreTree, point: int | None) -> bool:
    return point is not None and point < len(core) and core.node(point).kind == TURN


def open_fork(core: CoreTree, fork: Fork) -> list[int]:
    """Open the rollouts of a fork and return their ids in draw order; StrategyError where the point is no state."""
    point = prompt(core) if fork.point is None else fork.point
    group = fork.subgroup
    if fork.at is not None:
        state = _before(core, point, fork.at)
        group = _owner(core, point) if group is None else group
        point = state
    try:
        path, turn, first, subgroup = core.state(point)
        if fork.say:
            point = core.append(point, MESSAGE, messages.encode({"role": "user", "content": fork.say}))
    except TreeError as error:
        raise StrategyError(str(error)) from None
    draws: Sequence[int] = range(first, first + fork.n)
    group = subgroup if group is None else group
    return [core.open(point, (*path, turn, draw), draw if group is None else group) for draw in draws]


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
