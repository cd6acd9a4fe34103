"""The totals of a run, recomputed from its rows."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from trunkline.errors import ForkRefused
from trunkline.score.metrics import Estimate, accuracy, best_of_n, majority_at_n
from trunkline.store.calls import EndpointSummary, Spending, by_endpoint, total
from trunkline.tree.failure import Failure
from trunkline.tree.replays import replays
from trunkline.tree.tokens import Tokens
from trunkline.types import FAILED, UNSCORED, Termination, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from trunkline.llm.price import Price
    from trunkline.store.schema import CallRow, RolloutRow, TreeRow

__all__ = ["Summary", "summarise"]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to. Only finished tasks are in it, but for ``endpoints`` and what follows from them.

    Attributes:
        state: How the run ended; ``running`` while it goes on or after it was killed.
        tasks: Tasks of the run.
        finished: Tasks that are done.
        broken: Finished tasks that broke as a whole.
        rollouts: Rollouts of finished tasks.
        scored: Rollouts with a reward.
        tries: The largest number of rollouts of one task.
        short: Finished tasks with fewer scored rollouts than that.
        accuracy: Accuracy of one try; None if nothing is scored.
        best_of_n: The best reward of each task; None if nothing is scored.
        majority: The reward of each task's most frequent answer; None if nothing is scored.
        tokens: Tokens, flat and as a tree, as the server reported them.
        usage: Calls, tokens, retries and tool calls.
        terminations: How many rollouts ended for each reason; ``growing`` for those that never ended.
        failed: Rollouts that broke.
        failures: Why: the most frequent messages among them, at most three, each with how many rollouts it broke.
            They are safe to print.
        forks_refused: Rollouts that could not begin where they were to fork, as their tools' state was not to be had.
        refusals: Why, like ``failures``.
        replayed: Tool calls that ran again to bring environments to fork points; they are in no other count.
        llm_seconds: Seconds in model calls, summed over rollouts that ran side by side.
        tool_seconds: Seconds in tool calls, likewise.
        seconds: Wall time of the run, up to its last write.
        endpoints: What each endpoint answered, for tasks that were not finished too.
        spent: What that cost; None without a price.
        called: Tasks that it was spent on.
        solved: Finished tasks of which a rollout has a reward of 1 or more.
    """

    state: str
    tasks: int
    finished: int
    broken: int
    rollouts: int
    scored: int
    tries: int
    short: int
    accuracy: Estimate | None
    best_of_n: Estimate | None
    majority: Estimate | None
    tokens: Tokens
    usage: Usage
    terminations: dict[str, int]
    failed: int
    failures: list[tuple[str, int]]
    forks_refused: int
    refusals: list[tuple[str, int]]
    replayed: int
    llm_seconds: float
    tool_seconds: float
    seconds: float
    endpoints: list[EndpointSummary] = []
    spent: Spending | None = None
    called: int = 0
    solved: int = 0

    @property
    def per_task(self) -> float | None:
        """What a task cost in the mean; None if that is not known."""
        return self.spent.money / self.called if self.spent and self.spent.known and self.called else None

    @property
    def per_solved(self) -> float | None:
        """What the run cost for each task that it solved; None if that is not known, or it solved none."""
        return self.spent.money / self.solved if self.spent and self.spent.known and self.solved else None

    @property
    def rate(self) -> float:
        """Rollouts per second of wall time; 0 where no time was measured."""
        return self.rollouts / self.seconds if self.seconds > 0 else 0.0


def _seconds(meta: Mapping[str, str]) -> float:
    try:
        return max(0.0, float(meta.get("finished") or meta["updated"]) - float(meta["created"]))
    except (KeyError, ValueError):
        return 0.0


def _frequent(messages: Counter[str]) -> list[tuple[str, int]]:
    return sorted(messages.items(), key=lambda item: (-item[1], item[0]))[:3]


def _noting(calls: Iterable[tuple[int, CallRow]], tasks: set[int]) -> Iterator[CallRow]:
    """Pass calls on, and note whose they are."""
    for task, call in calls:
        tasks.add(task)
        yield call


def summarise(
    meta: Mapping[str, str],
    tasks: int,
    trees: Iterable[TreeRow],
    rollouts: Iterable[tuple[int, RolloutRow]],
    calls: Iterable[tuple[int, CallRow]] = (),
    prices: Mapping[str, Price] | None = None,
) -> Summary:
    """Compute the totals.

    Args:
        meta: The run file's table of that name.
        tasks: How many tasks the run has.
        trees: The rows of finished tasks.
        rollouts: The rows of their rollouts with the number of the task.
        calls: The rows of all calls with the number of the task.
        prices: Prices by base URL.

    Returns:
        The summary.
    """
    trees = list(trees)
    rewards: dict[int, list[float]] = {}
    answers: dict[int, list[str | None]] = {}
    terminations: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    usage = Usage()
    llm_micros = tool_micros = replayed = 0
    for task, row in rollouts:
        ended = "growing" if row.termination is None else row.termination
        terminations[ended] += 1
        if row.termination in FAILED and row.error:
            failures[Failure.decode(row.error).message] += 1
        if row.termination == Termination.CANCELLED and row.error:
            failure = Failure.decode(row.error)
            refusals.update([failure.message] if failure.kind == ForkRefused.__name__ else [])
        counts = row.termination is not None and row.termination not in UNSCORED
        rewards.setdefault(task, []).append(row.reward if counts and row.reward is not None else math.nan)
        answers.setdefault(task, []).append(row.answer if counts else None)
        usage += row.usage
        llm_micros += row.llm_micros
        tool_micros += row.tool_micros
        replayed += replays(row.note)
    called: set[int] = set()
    endpoints = by_endpoint(_noting(calls, called), prices or {})
    order = sorted(rewards)
    worth: Sequence[Sequence[float]] = [rewards[task] for task in order]
    tries = max(map(len, worth), default=0)
    return Summary(
        state=meta.get("state", "unknown"),
        tasks=tasks,
        finished=len(trees),
        broken=sum(tree.error is not None for tree in trees),
        rollouts=terminations.total(),
        scored=sum(not math.isnan(reward) for task in worth for reward in task),
        tries=tries,
        short=len(trees) - sum(sum(not math.isnan(reward) for reward in task) == tries for task in worth),
        accuracy=accuracy(worth),
        best_of_n=best_of_n(worth),
        majority=majority_at_n([answers[task] for task in order], worth),
        tokens=Tokens(
            flat=sum(tree.flat for tree in trees),
            tree=sum(tree.tree for tree in trees),
            flat_generated=sum(tree.flat_generated for tree in trees),
            tree_generated=sum(tree.tree_generated for tree in trees),
            longest=max((tree.longest for tree in trees), default=0),
            unreported=sum(tree.unreported for tree in trees),
            exact=bool(trees) and all(tree.exact == 1 for tree in trees),
        ),
        usage=usage,
        terminations=dict(sorted(terminations.items(), key=lambda item: (-item[1], item[0]))),
        failed=sum(count for word, count in terminations.items() if word in FAILED),
        failures=_frequent(failures),
        forks_refused=refusals.total(),
        refusals=_frequent(refusals),
        replayed=replayed,
        llm_seconds=llm_micros / 1e6,
        tool_seconds=tool_micros / 1e6,
        seconds=_seconds(meta),
        endpoints=endpoints,
        spent=total(endpoints),
        called=len(called),
        solved=sum(any(reward >= 1 for reward in task) for task in worth),
    )
