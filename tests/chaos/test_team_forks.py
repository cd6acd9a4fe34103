"""Teams that are forked in the middle: the record of their source up to there, and then as if they had been alone."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from plays import Grown, cuts, play
from small_teams import TEAMS, Act, Cast, acts, rows

from trunkline._core import TURN, CoreTree, fork_points
from trunkline.errors import BadRequest
from trunkline.llm.response import read
from trunkline.llm.types import Reply, Request
from trunkline.strategies.base import Fork, Strategy, View
from trunkline.strategies.mcts import MCTS
from trunkline.strategies.partial import Partial
from trunkline.strategies.tree_grpo import TreeGRPO
from trunkline.strategies.tree_search import TreeSearch
from trunkline.tree.views import Trajectory


class Everywhere:
    """A chain; two forks at each of its states; and one at each state of the second of these."""

    def rollouts(self) -> int:
        return 100

    def start(self, view: View) -> Iterator[Fork]:
        yield Fork()

    def ended(self, view: View) -> Iterator[Fork]:
        parents, kinds, _ = view.tree.core.shape()
        opened = view.tree.core.rollouts
        if opened == 1:
            leaf = view.tree.core.rollout(0).leaf
            yield from (Fork(point, n=2) for point in fork_points(parents, kinds, [leaf]))
        elif all(len(view.tree.core.rollout(number).path) < 6 for number in range(opened)):
            own = view.tree.core.rollout(4)
            points = fork_points(parents, kinds, [own.leaf])
            yield from (Fork(point) for point in points if point > own.point)


def worth(rollout: Trajectory) -> float:
    """What a rollout is worth where it stands: a number that its last turn says."""
    return sum(map(int, filter(str.isdigit, str(rollout.messages[-1]["content"])))) / 100


def length(rollout: Trajectory) -> float:
    """A reward."""
    return rollout.turns / 10


STRATEGIES: dict[str, Strategy] = {
    "everywhere": Everywhere(),
    "partial": Partial(initial=2, top_k=2, rounds=2, samples=2, budget=21, region="all"),
    "mcts": MCTS(8, parallel=2, children=2),
    "mcts with a value": MCTS(8, value=worth, parallel=2, children=2),
    "tree-grpo": TreeGRPO(trees=2, forks=2, rounds=2),
    "tree-search": TreeSearch(width=3, keep=2, depth=4, value=worth),
    "tree-search by confidence": TreeSearch(width=2, keep=2, depth=4),
}


async def grown(name: str, strategy: Strategy, llm: Cast, core: CoreTree | None = None) -> Grown:
    """Play a team under a strategy."""
    return await play(TEAMS[name], llm, core, strategy)


def source(core: CoreTree, rollout: int) -> int | None:
    """Who came first to where a rollout was forked."""
    trunk = core.rollout(rollout).path[:-2]
    return next((number for number in range(rollout) if core.rollout(number).path == trunk), None)


def asks(core: CoreTree, rollout: int) -> list[Act]:
    return [act for act in acts(core, rollout) if act.kind == "ask"]


def prompt(core: CoreTree, act: Act) -> Any:
    """What was sent for a turn, where that is not the path."""
    context = core.node(act.nodes[0]).context if act.nodes else None
    return None if context is None else json.loads(core.request_context(context, b"[", b"]"))


class Echo:
    """Says again what the roles of one rollout said, each in its order; what was never asked is refused."""

    siblings = False

    def __init__(self, core: CoreTree, rollout: int) -> None:
        self.left: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        for act in asks(core, rollout):
            if act.nodes:
                self.left[act.role].append(json.loads(core.message(act.nodes[0])))

    async def complete(self, request: Request) -> Reply:
        role = json.loads(request.body)["model"]
        if role == "absent":
            raise BadRequest("not here")
        said = {"index": 0, "message": self.left[role].pop(0), "finish_reason": "stop"}
        return (request.take or read)(json.dumps({"choices": [said]}).encode(), 0, 1, 5)

    async def close(self) -> None: ...


async def check_rollout(name: str, core: CoreTree, rollout: int) -> None:
    """A rollout that was forked is what it would have been had it been alone and had its roles said the same."""
    alone = (await play(TEAMS[name], Echo(core, rollout))).tree.core  # type: ignore[arg-type]
    here, there = asks(core, rollout), asks(alone, 0)
    assert [(act.role, act.note, act.failed) for act in here] == [(act.role, act.note, act.failed) for act in there]
    for one, other in zip(here, there, strict=True):
        assert prompt(core, one) == prompt(alone, other)
    if name != "council":  # what it weighs is by chance
        assert core.rollout(rollout).answer == alone.rollout(0).answer


@pytest.mark.parametrize("name", TEAMS)
async def test_a_fork_at_any_state_begins_with_the_record_of_its_source(name: str) -> None:
    llm = Cast()
    tree = (await grown(name, Everywhere(), llm)).tree
    core = tree.core
    parents, kinds, _ = core.shape()
    points = fork_points(parents, kinds, [core.rollout(0).leaf])
    assert len(points) == core.rollout(0).turns, "there is a state before each turn"
    assert core.rollouts > 2 * len(points)
    for rollout in range(core.rollouts):
        facts = core.rollout(rollout)
        assert facts.termination == "answer", facts.error
        mine = acts(core, rollout)
        path = set(core.path(facts.leaf))
        nodes = [node for act in mine for node in act.nodes]
        assert len(nodes) == len(set(nodes)), "no row is there twice"
        assert set(nodes) == {node for node in path if kinds[node] != 1} - {0}, "each node of the path is on record"
        if (first := source(core, rollout)) is not None:
            theirs, before = acts(core, first), set(core.path(facts.point))
            known = next(at for at, act in enumerate(theirs) if not before.issuperset(act.nodes))
            assert mine[:known] == theirs[:known]
            assert not any(before.intersection(act.nodes) for act in mine[known:])
        await check_rollout(name, core, rollout)
    seeds = [(body["model"], body["seed"]) for body in llm.bodies]
    assert len(set(seeds)) == len(seeds), "each draw has a seed of its own"


@pytest.mark.parametrize("strategy", list(STRATEGIES)[1:])
@pytest.mark.parametrize("name", ["math", "search", "loop", "council"])
async def test_strategies_fork_teams_where_they_fork_agents(name: str, strategy: str) -> None:
    llm = Cast()
    core = (await play(TEAMS[name], llm, None, STRATEGIES[strategy], reward=length)).tree.core
    forked = [number for number in range(core.rollouts) if source(core, number) is not None]
    assert forked, "it forks below the prompt"
    for rollout in range(core.rollouts):
        facts = core.rollout(rollout)
        assert facts.termination in {"answer", "censored"}, facts.error
        assert (
            len(asks(core, rollout)) == facts.turns == sum(core.node(at).kind == TURN for at in core.path(facts.leaf))
        )
        if facts.termination == "answer":
            await check_rollout(name, core, rollout)


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("council", "everywhere"),
        ("loop", "everywhere"),
        ("stubborn", "everywhere"),
        ("search", "partial"),
        ("math", "tree-search"),
        ("council", "mcts with a value"),
    ],
)
async def test_forks_of_teams_that_break_off_anywhere_go_on_to_the_same_tree(name: str, strategy: str) -> None:
    whole = await play(TEAMS[name], Cast(), None, STRATEGIES[strategy], reward=length)
    points = cuts(whole.deltas)
    for point in points[:: max(1, len(points) // 12)]:
        again = await play(TEAMS[name], Cast(), point, STRATEGIES[strategy], reward=length)
        assert again.tree.digest() == whole.tree.digest()
        for rollout in range(again.tree.core.rollouts):
            assert rows(again.tree.core, rollout) == rows(whole.tree.core, rollout)
