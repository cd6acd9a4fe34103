"""Time by agent, role and tool."""

from __future__ import annotations

import heapq
from array import array
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from trunkline.errors import TreeError
from trunkline.store.derive import rebuilt
from trunkline.store.stats.calls import CallStats, Times, times
from trunkline.tree.records import Record, Records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from trunkline.store.schema import CallRow, RolloutRow, ToolRow


class Spans:
    """Stretches of time, each from its begin to its end, in microseconds."""

    def __init__(self) -> None:
        self.begins = array("q")
        self.ends = array("q")

    def add(self, begin: int, end: int) -> None:
        """Add one."""
        self.begins.append(begin)
        self.ends.append(end)

    @property
    def length(self) -> int:
        """How long they last together, in microseconds; where two overlap, both count."""
        return sum(self.ends) - sum(self.begins)


def union(*spans: Spans) -> int:
    """Return for how many microseconds at least one of all stretches lasts."""
    total, until = 0, -1
    begins, ends = array("q"), array("q")
    for one in spans:
        begins += one.begins
        ends += one.ends
    for place in sorted(range(len(begins)), key=begins.__getitem__):
        begin, end = begins[place], ends[place]
        if end > until:
            total += end - max(begin, until)
            until = end
    return total


_Ask: TypeAlias = "tuple[str, tuple[bool, bool] | None]"


class RoleRows(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one role of a team: a row is a turn that it took in a rollout.

    Attributes:
        active: Rows whose reply something depends on.
        inactive: Other rows: the role was asked, and nothing depends on its reply.
        valid: Active rows that are valid actions, as the role's projection reads them.
        rounds: The most times that it was asked in one rollout; the k-th time is its round k.
        whole: Rows that a loop over whole batches would carry for it: rounds times rollouts.
        active_ratio: Active rows on the paths of all rollouts, what a fork begins with included, as a share of
            ``whole``; so rows that a fork shares count for each rollout, as they would there.
        valid_share: ``valid`` as a share of ``active``; 0 without any.
    """

    active: int
    inactive: int
    valid: int
    rounds: int
    whole: int
    active_ratio: float
    valid_share: float


class _Count:
    """One role's rows."""

    def __init__(self) -> None:
        self.seen: Counter[tuple[bool, bool]] = Counter()
        self.carried = 0
        self.rounds = 0

    def rows(self, rollouts: int) -> RoleRows:
        seen, whole = self.seen, self.rounds * rollouts
        active, valid = seen[True, True] + seen[True, False], seen[True, True]
        return RoleRows(
            active=active,
            inactive=seen.total() - active,
            valid=valid,
            rounds=self.rounds,
            whole=whole,
            active_ratio=self.carried / whole if whole else 0.0,
            valid_share=valid / active if active else 0.0,
        )


class RowCounts:
    """Counts the rows of a team, tree by tree."""

    def __init__(self) -> None:
        self._counts: defaultdict[str, _Count] = defaultdict(_Count)
        self._rollouts = 0

    def add(self, deltas: Sequence[bytes], taken: int = 0) -> None:
        """Count a tree."""
        core = rebuilt(deltas[:taken])
        earlier = Records(core) if taken else None
        for data in deltas[taken:]:
            core.apply(data)
        records = Records(core)
        self._rollouts += core.rollouts
        for rollout in range(core.rollouts):
            known = len(earlier.own(rollout)) if earlier is not None else 0
            for name, note in _asks(records.own(rollout)[known:]):
                if note is not None:
                    self._counts[name].seen[note] += 1
            asked: Counter[str] = Counter()
            for name, note in _asks(records.of(rollout)):
                asked[name] += 1
                if note is not None and note[0]:
                    self._counts[name].carried += 1
            for name, asks in asked.items():
                count = self._counts[name]
                count.rounds = max(count.rounds, asks)

    def by_role(self) -> dict[str, RoleRows]:
        """Return the rows of each role that was asked."""
        return {name: count.rows(self._rollouts) for name, count in self._counts.items()}


def _asks(records: Iterable[Record]) -> Iterator[_Ask]:
    """Yield the asked role and the note of its row; None where the role got no turn."""
    for record in records:
        if record.kind == "ask":
            yield record.key, _note(record.data) if record.nodes else None


def _note(data: Sequence[Any]) -> tuple[bool, bool]:
    """Whether a row is active, and valid."""
    match data:
        case [_, _, [bool(active), bool(valid), *_]]:
            return active, valid
        case _:
            raise TreeError("what is on record of a turn is not what a team notes of a row")


_SLOWEST = 10

_AnyStretch = TypeVar("_AnyStretch", bound="Stretch")


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """The time that went into one agent's model calls, or one tool's calls.

    Attributes:
        name: The agent or the tool.
        calls: How many; replies out of a cache are in no figure.
        failed: How many of them failed.
        seconds: What they took together, waits included.
        at_once: How many ran at once, on average: ``seconds`` divided by the wall time.
        share: Their share of all time in models and tools.
        times: Percentiles of single calls, in seconds; None without any.
    """

    name: str
    calls: int
    failed: int
    seconds: float
    at_once: float
    share: float
    times: Times | None


class AgentProfile(Stretch, frozen=True, kw_only=True):
    """The calls of one agent: the agent of the run, one that a program asks, or a role of a team.

    Attributes:
        prompt: Prompt tokens, cached ones included.
        cached: Cached ones among them; None where no answer says so.
        generated: Generated tokens.
        unreported: Answered calls without usage; their tokens are in no figure.
        busy: Share of the wall time with a call in flight, from its slot to its answer.
        rows: The rows of a team's role; None for an agent that is none.
    """

    prompt: int
    cached: int | None
    generated: int
    unreported: int
    busy: float
    rows: RoleRows | None = None


class SlowRollout(msgspec.Struct, frozen=True):
    """A rollout that took long.

    Attributes:
        task: Id of its task.
        rollout: Its number in the tree.
        seconds: What it spent in models and tools.
        llm_seconds: In models.
        tool_seconds: In tools; calls that ran side by side count one by one.
        turns: Model turns on its path.
    """

    task: str
    rollout: int
    seconds: float
    llm_seconds: float
    tool_seconds: float
    turns: int


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a run went.

    Attributes:
        seconds: Wall time of the run.
        busy: The share of it with a model call in flight, which is how long engines had work.
        out: Model calls in flight, on average over it.
        agents: Model calls by agent, the longest first.
        tools: Tool calls by tool, the longest first.
        slowest: The slowest rollouts of finished tasks.
    """

    seconds: float
    busy: float
    out: float
    agents: list[AgentProfile]
    tools: list[Stretch]
    slowest: list[SlowRollout]


class _AgentCalls:
    """The model calls of one agent: totals, and when each ran."""

    def __init__(self) -> None:
        self.answered, self.failed = CallStats(), CallStats()
        self.micros = array("q")
        self.spans = Spans()

    def add(self, call: CallRow) -> None:
        (self.failed if call.failed else self.answered).add(call)
        self.micros.append(call.micros)
        self.spans.add(call.started + min(call.queue, call.micros), call.started + call.micros)


def profile(
    agent: str,
    seconds: float,
    calls: Iterable[tuple[int, CallRow]],
    tool_calls: Iterable[tuple[int, ToolRow]],
    rollouts: Iterable[tuple[int, RolloutRow]],
    names: Sequence[str],
    rows: Mapping[str, RoleRows] | None = None,
) -> Profile:
    """Add up where the time of a run went."""
    asked: dict[str, _AgentCalls] = {name: _AgentCalls() for name in rows or {}}
    for _, call in calls:
        if call.attempts:
            asked.setdefault(call.agent or agent, _AgentCalls()).add(call)
    used: defaultdict[str, array[int]] = defaultdict(lambda: array("q"))
    failed: Counter[str] = Counter()
    for _, use in tool_calls:
        used[use.tool].append(use.micros)
        failed[use.tool] += use.failed
    every = sum(map(sum, (*(one.micros for one in asked.values()), *used.values())))
    spans = [one.spans for one in asked.values()]

    def figures(name: str, micros: array[int], failed: int) -> dict[str, Any]:
        total = sum(micros)
        return {
            "name": name,
            "calls": len(micros),
            "failed": failed,
            "seconds": total / 1e6,
            "at_once": _part(total, seconds),
            "share": total / every if every else 0.0,
            "times": times(micros),
        }

    def agent_profile(name: str, asked: _AgentCalls) -> AgentProfile:
        stats = asked.answered + asked.failed
        return AgentProfile(
            **figures(name, asked.micros, asked.failed.calls),
            prompt=stats.prompt,
            cached=stats.cached_known,
            generated=stats.generated,
            unreported=asked.answered.unreported,
            busy=min(1.0, _part(union(asked.spans), seconds)),
            rows=(rows or {}).get(name),
        )

    return Profile(
        seconds=seconds,
        busy=min(1.0, _part(union(*spans), seconds)),
        out=_part(sum(one.length for one in spans), seconds),
        agents=_longest(agent_profile(name, one) for name, one in asked.items()),
        tools=_longest(Stretch(**figures(name, micros, failed[name])) for name, micros in used.items()),
        slowest=_slowest(rollouts, names),
    )


def _part(micros: int, wall: float) -> float:
    """Microseconds as a share of seconds."""
    return micros / 1e6 / wall if wall > 0 else 0.0


def _longest(stretches: Iterable[_AnyStretch]) -> list[_AnyStretch]:
    return sorted(stretches, key=lambda stretch: (-stretch.seconds, stretch.name))


def _slowest(rollouts: Iterable[tuple[int, RolloutRow]], names: Sequence[str]) -> list[SlowRollout]:
    slow = heapq.nlargest(_SLOWEST, rollouts, key=lambda one: one[1].llm_micros + one[1].tool_micros)
    return [
        SlowRollout(
            names[number],
            row.rollout,
            (row.llm_micros + row.tool_micros) / 1e6,
            row.llm_micros / 1e6,
            row.tool_micros / 1e6,
            row.turns,
        )
        for number, row in slow
    ]
