"""The totals of a run, recomputed from its rows."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Final

import msgspec

from trunkline._internal.text import JSON
from trunkline.errors import ForkRefused
from trunkline.scoring.diversity import Diversity, DiversityCounter
from trunkline.scoring.metrics import Estimate
from trunkline.scoring.metrics.at_k import majority_of
from trunkline.scoring.metrics.intervals import RewardCounter, estimate
from trunkline.scoring.notes import ExternalCalls, agent_calls, replays, retried
from trunkline.store.schema import meta_entry
from trunkline.store.stats.calls import (
    EndpointSummary,
    Spending,
    batches,
    by_endpoint,
    estimated_usage,
    probes,
    retry_causes,
    total,
)
from trunkline.store.stats.tasks import (
    VOID,
    Filtered,
    FilterStats,
    Length,
    LengthCounter,
    TokenCounter,
    each_task,
    some_tasks,
    tried,
    usage_of,
)
from trunkline.tree.answers import normalise
from trunkline.tree.records import Failure
from trunkline.tree.tokens import Tokens
from trunkline.types import FAILED, Termination, Usage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from trunkline.llm.pricing import Price
    from trunkline.store.schema import CallRow, RolloutRow, TakenRow, TreeRow


BUDGET: Final = "budget"
"""Key of the report of the run's budget in the table ``meta``."""

ESTIMATED: Final = "estimated"
"""Key of the estimated part of what was spent: it is in no row, and must survive the controller."""

RESOURCES: Final = "resources"
"""Key of the run's memory and its servers' load in the table ``meta``."""

_MILLION: Final = 1_000_000


class BudgetReport(msgspec.Struct, frozen=True):
    """The ledger of a run at its end. Money is in millionths, as ``micro_dollars``.

    Attributes:
        limits: What was limited.
        spent: What was spent of it.
        estimated: Its estimated part: calls that were given up, that came without usage, or that a dead worker had in
            flight.
        overshoot: Costs beyond their reservations.
        refused: How often a reservation was refused.
        closed: The reason of the first refusal.
    """

    limits: dict[str, int]
    spent: dict[str, int]
    estimated: dict[str, int]
    overshoot: dict[str, int]
    refused: int
    closed: str | None

    def lines(self, mark: str = "") -> list[str]:
        """Each currency for people: ``calls 12 of 20``; with a mark before figures of generated tokens and money."""
        return [self._line(name, limit, mark) for name, limit in self.limits.items()]

    def _line(self, name: str, limit: int, mark: str) -> str:
        estimated = self.estimated.get(name, 0)
        beside = f" ({_amount(name, estimated)} estimated)" if estimated else ""
        word = "money" if name == "micro_dollars" else name
        about = mark if name in {"generated", "tokens", "micro_dollars"} else ""
        return f"{word} {about}{_amount(name, self.spent.get(name, 0))} of {_amount(name, limit)}{beside}"


class ServerLoad(msgspec.Struct, frozen=True):
    """What a model server said of itself at one moment.

    Attributes:
        running: Requests that it works on.
        waiting: Requests in its queue.
        cache: How full its cache of keys and values is, from 0 to 1; None where it does not say.
    """

    running: int
    waiting: int
    cache: float | None = None


class ServerUse(msgspec.Struct, frozen=True):
    """What a model server said of itself during a run.

    Attributes:
        samples: How often it was asked.
        now: The last answer; None before the first.
        running: Requests that it worked on, in the mean.
        waiting: Requests in its queue, in the mean.
        cache: How full its cache of keys and values was, in the mean; None where it does not say.
        longest: The most requests in its queue.
    """

    samples: int = 0
    now: ServerLoad | None = None
    running: float = 0.0
    waiting: float = 0.0
    cache: float | None = None
    longest: int = 0

    def after(self, load: ServerLoad) -> ServerUse:
        """The same with one more answer."""
        samples = self.samples + 1

        def mean(old: float, new: float) -> float:
            return old + (new - old) / samples

        cache = load.cache if self.cache is None or load.cache is None else mean(self.cache, load.cache)
        running, waiting = mean(self.running, load.running), mean(self.waiting, load.waiting)
        return ServerUse(samples, load, running, waiting, cache, max(self.longest, load.waiting))


class Resources(msgspec.Struct, frozen=True):
    """What a run took beside tokens and time, since it was last resumed.

    Attributes:
        memory: The most bytes that its processes held together, looked at once a second; 0 where the run was shorter.
        servers: What model servers said of themselves, by their URLs; empty unless they were asked.
    """

    memory: int
    servers: dict[str, ServerUse] = {}


def resources(meta: Mapping[str, str]) -> Resources | None:
    """Read what a run took; None before it ends, or where the entry is damaged."""
    return meta_entry(meta, RESOURCES, Resources, None)


def _amount(name: str, amount: int) -> str:
    return f"{amount / _MILLION:,g}" if name == "micro_dollars" else f"{amount:,}"


def budget_report(meta: Mapping[str, str]) -> BudgetReport | None:
    """Read the report of the run's budget; None without one, or where it is damaged."""
    return meta_entry(meta, BUDGET, BudgetReport, None)


def estimated(meta: Mapping[str, str]) -> dict[str, int]:
    """Read the estimated part of what was spent; nothing where the entry is damaged."""
    return meta_entry(meta, ESTIMATED, dict[str, int], {})


class TakenOver(msgspec.Struct, frozen=True):
    """What a run took over of an earlier one, which had paid for it.

    Attributes:
        run: The earlier run's file.
        trees: Tasks that had begun.
        rollouts: Rollouts of these.
        growing: Of these, rollouts that had not ended and went on.
        ended: Of these, rollouts that had ended, in tasks that are finished: they are in the run's count of rollouts.
        failed: Of these, rollouts that had broken.
    """

    run: str
    trees: int
    rollouts: int
    growing: int
    ended: int
    failed: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of a run's finished tasks; ``endpoints`` and what follows from them count all tasks.

    Attributes:
        state: How the run ended; ``running`` meanwhile or after it was killed, ``exhausted`` if its tasks ran out
            before enough groups were kept, ``budget`` or ``deadline`` if that kept tasks from being begun or cut tries.
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
        usage: Calls, tokens, retries and tool calls; those of an earlier run that this one continues are left out, as
            they are in all times, in ``replayed`` and in ``paths``.
        terminations: How many rollouts ended for each reason; ``growing`` for those that never ended.
        model: The agent's model; of a team its name. Not safe to print, and neither is the reward.
        reward: What the rewards come from; empty where nothing is scored.
        tool_failures: Tool calls that failed by the tool's name, the most frequent first; ``(unknown)`` for names that
            no tool has.
        resources: The run's memory, and what model servers said of themselves; None before the run ends.
        empty: Of those that answered, rollouts whose answer has no text: they count as wrong, and have no vote.
        failed: Rollouts that broke.
        failures: Why: the most frequent messages among them, at most three, each with how many rollouts it broke. They
            are safe to print.
        forks_refused: Rollouts that could not begin where they were to fork, as their tools' state was not to be had.
        refusals: Why, like ``failures``.
        replayed: Tool calls that ran again to bring environments to fork points; they are in no other count. Those of
            an earlier run are left out.
        llm_seconds: Seconds in model calls, summed over rollouts that ran side by side.
        tool_seconds: Seconds in tool calls, likewise.
        seconds: Wall time of the run, up to its last write; pauses between resumptions do not count.
        endpoints: What each endpoint answered, for tasks that were not finished too.
        spent: What that cost; None without a price.
        called: Tasks that it was spent on.
        solved: Finished tasks of which a rollout has a reward of 1 or more.
        filters: What each filter did.
        groups: Groups that were wanted, of as many tasks as it takes; None where all tasks were run.
        groups_kept: Finished groups that can be trained on.
        strategy: What started the rollouts, with its options; empty where the run does not say. Not safe to print.
        ids: The part of ``tokens`` that is counted from token ids; the rest is as the servers reported it.
        paths: Model turns on the paths of all rollouts: the calls that as many chains would have made.
        kept: How long rollouts are that ended by themselves; None if there are none.
        cut: How long those are that were cut (``censored``, or left growing), likewise.
        diversity: How much the tries of a task differ; None if there are none.
        taken: What was taken over of an earlier run; its rollouts are in all counts of rollouts and in every score.
        ended: How many trees ended in each way, see ``TreeEnding``.
        refused: Rollouts that were to start and that no budget paid for; they are in no other figure.
        budget: The run's budget at its end; None without one, and before the run ends.
        timing: Options of the run that make its trees depend on timing.
        events: How often each kind of event was recorded, such as workers that ``died``.
        retried: Rollouts that were asked again; their tokens, calls and money count, their answers and rewards do not.
        chosen: Of these, rollouts that were chosen by their result.
        first_try: Accuracy of one try with the rewards that these had, and without those in their place; None unless
            there are any.
        retry_causes: Retries by what the attempt before came to: a status such as ``429``, ``timeout``,
            ``no connection``, ``connection lost``, ``unusable reply``. Those of an LLM of one's own and of judges are
            not in it; those of tasks that are not finished, and of requests for several draws that were given up, are.
        agent_calls: What is known of the model calls of an agent of another framework; None for other runs.
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
    filters: list[Filtered] = []
    groups: int | None = None
    groups_kept: int = 0
    strategy: str = ""
    ids: Tokens = Tokens(0, 0, 0, 0, 0, 0)
    paths: int = 0
    kept: Length | None = None
    cut: Length | None = None
    diversity: Diversity | None = None

    @property
    def prompt(self) -> int:
        """Prompt tokens of all requests, cached ones included; one with several draws sends its prompt once."""
        return sum(endpoint.prompt for endpoint in self.endpoints)

    @property
    def cached(self) -> int | None:
        """Those among them that the servers had cached; None where no server said so."""
        told = [endpoint.cached for endpoint in self.endpoints if endpoint.cached is not None]
        return sum(told) if any(told) or not self.silent else None

    @property
    def uncached(self) -> int | None:
        """Those among them that the servers did not have cached, or did not say so; None where no server said so."""
        return None if self.cached is None else self.prompt - self.cached

    @property
    def silent(self) -> int:
        """Requests with usage that does not say what was cached."""
        return sum(endpoint.silent for endpoint in self.endpoints)

    @property
    def estimated(self) -> int:
        """Generated tokens that are estimated: some servers count the first of several completions alone."""
        return sum(endpoint.estimated for endpoint in self.endpoints)

    taken: TakenOver | None = None
    ended: dict[str, int] = {}
    refused: int = 0
    budget: BudgetReport | None = None
    timing: list[str] = []
    events: dict[str, int] = {}
    model: str = ""
    reward: str = ""
    tool_failures: dict[str, int] = {}
    resources: Resources | None = None
    empty: int = 0
    retried: int = 0
    chosen: int = 0
    first_try: Estimate | None = None
    retry_causes: dict[str, int] = {}
    agent_calls: ExternalCalls | None = None

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
        before = 0 if self.taken is None else self.taken.ended
        return (self.rollouts - before) / self.seconds if self.seconds > 0 else 0.0


class _SummarySettings(msgspec.Struct):
    """What of a run's settings its summary depends on."""

    reward: str | None = None
    refill: dict[str, int] | None = None
    timing_dependent: list[str] = []
    agent: dict[str, JSON] = {}
    team: dict[str, JSON] | None = None
    program: str | None = None


def wall_seconds(meta: Mapping[str, str]) -> float:
    """Return the wall time of a run, up to its last write; 0 where its file does not say."""
    try:
        return max(0.0, float(meta["seconds"]))
    except (KeyError, ValueError):
        return 0.0


def _frequent(messages: Counter[str]) -> list[tuple[str, int]]:
    return sorted(messages.items(), key=lambda item: (-item[1], item[0]))[:3]


def _strategy(meta: Mapping[str, str]) -> str:
    """Return a strategy as it is written in a program, as far as its options are data."""
    try:
        known = msgspec.json.decode(meta.get("settings", ""))["strategy"]
        name, options = str(known["kind"]), known["options"]
    except (msgspec.MsgspecError, TypeError, KeyError):
        return ""
    if not isinstance(options, dict):
        return name
    # Empty options and those that are off are defaults.
    told = (f"{option}={value!r}" for option, value in options.items() if value not in (None, False, [], ""))
    return f"{name}({', '.join(told)})"


def _player(settings: _SummarySettings) -> str:
    """The model of a run, or the class of its team."""
    if settings.team is not None and settings.program:
        return settings.program.rpartition(":")[2]
    return str(settings.agent.get("model", ""))


def sum_up(run: str, rows: Sequence[TakenRow], carried: Sequence[TakenRow] = ()) -> TakenOver:
    """Sum up the rows taken over of an earlier run; ``carried`` are those of tasks that are finished by now."""
    return TakenOver(
        run=run,
        trees=len(rows),
        rollouts=sum(row.rollouts for row in rows),
        growing=sum(row.growing for row in rows),
        ended=sum(row.rollouts - row.growing for row in carried),
        failed=sum(row.failed for row in carried),
    )


class _TreeTotals:
    """Totals of the trees of a run."""

    def __init__(self, trees: Iterable[TreeRow]) -> None:
        self.count = self.broken = self.refused = 0
        self.ended: Counter[str] = Counter()
        self.tokens, self.ids = TokenCounter(), TokenCounter()
        for some in batches(trees):
            self.count += len(some)
            self.broken += sum([tree.error is not None for tree in some])
            self.refused += sum([tree.refused for tree in some])
            self.ended.update([tree.ended for tree in some])
            self.tokens.add(some)
            self.ids.add([tree for tree in some if tree.exact == 1])


class _RolloutTotals:
    """Totals of the rollouts of a run."""

    def __init__(self, *, scored: bool) -> None:
        self.rewards = RewardCounter()
        self.scored: Counter[int] = Counter()
        self.majorities = array("d")
        self.terminations: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.filters = FilterStats(scored=scored)
        self.diversity = DiversityCounter()
        self.kept, self.cut = LengthCounter(cut=False), LengthCounter(cut=True)
        self.chosen = self.empty = 0
        self.agent_calls: ExternalCalls | None = None
        self.most = self.solved = self.turns = self.replayed = self.llm_micros = self.tool_micros = 0
        self.usage = Usage()

    def add(self, tasks: Sequence[tuple[int, Sequence[RolloutRow]]]) -> None:
        """Add some tasks, each with all of its rollouts."""
        rollouts = [row for _, rows in tasks for row in rows]
        known = self.terminations[Termination.RETRIED]
        self._count(rollouts)
        if self.terminations[Termination.RETRIED] > known:
            tasks = [(task, [row for row in rows if not self._is_retried(row)]) for task, rows in tasks]
        self._add_single([rows[0] for _, rows in tasks if rows and not rows[1:]])
        for _, rows in tasks:
            if rows[1:]:
                self._add_group(rows)
        self.filters.add(tasks)

    def _is_retried(self, row: RolloutRow) -> bool:
        """Count a rollout that was asked again: its successor is the try."""
        if row.termination != Termination.RETRIED:
            return False
        note = retried(row.note)
        self.chosen += note is not None and note.chosen
        return True

    def _add_single(self, rows: Sequence[RolloutRow]) -> None:
        """Add the rollouts of tasks that have one each: a try that answers is the majority of its task."""
        if not rows:
            return
        ended = [row for row in rows if row.termination not in VOID]
        rewards = [row.reward for row in ended if row.reward is not None]
        answers = [row for row in ended if row.answer and normalise(row.answer)]
        worth = [row.reward for row in answers if row.reward is not None]
        self.rewards.add_single(len(rows), rewards)
        self.scored.update({0: len(rows) - len(rewards), 1: len(rewards)})
        self.most = max(self.most, 1)
        self.solved += sum([reward >= 1 for reward in rewards])
        self.majorities.extend([*worth, *[0.0] * (len(rewards) - len(worth))])
        self.diversity.add_single(len(rows), sum([bool(row.action) for row in rows]), len(answers), rewards)

    def _add_group(self, rows: Sequence[RolloutRow]) -> None:
        """Add the rollouts of one task."""
        tries = [tried(row) for row in rows]
        rewards = [given.reward for given in tries]
        self.scored[self.rewards.add(rewards)] += 1
        self.most = max(self.most, len(rows))
        self.solved += any(reward >= 1 for reward in rewards)
        if (worth := majority_of([given.answer for given in tries], rewards)) is not None:
            self.majorities.append(worth)
        self.diversity.add(tries)

    def _count(self, rows: Sequence[RolloutRow]) -> None:
        """Add what does not depend on which task a rollout is of."""
        self.kept.add(rows)
        self.cut.add(rows)
        self.turns += sum([row.turns for row in rows])
        self.llm_micros += sum([row.llm_micros for row in rows])
        self.tool_micros += sum([row.tool_micros for row in rows])
        self.usage += usage_of(rows)
        answers = [row.answer or "" for row in rows if row.termination == Termination.ANSWER]
        self.empty += answers.count("") + sum([answer.isspace() for answer in answers if not "!" <= answer[:1] <= "~"])
        self.terminations.update(["growing" if row.termination is None else row.termination for row in rows])
        for row in rows:
            if row.note:
                self.replayed += replays(row.note)
                if '"agent"' in row.note and (calls := agent_calls(row.note)) is not None:
                    self.agent_calls = (self.agent_calls or ExternalCalls()) + calls
            if row.error and row.termination in FAILED:
                self.failures[Failure.decode(row.error).message] += 1
            elif row.error and row.termination == Termination.CANCELLED:
                failure = Failure.decode(row.error)
                self.refusals.update([failure.message] if failure.kind == ForkRefused.__name__ else [])


def summarise(
    meta: Mapping[str, str],
    tasks: int,
    trees: Iterable[TreeRow],
    rollouts: Iterable[tuple[int, RolloutRow]],
    calls: Iterable[tuple[int, CallRow]] = (),
    prices: Mapping[str, Price] | None = None,
    taken: Sequence[tuple[int, TakenRow]] = (),
    broken: Collection[int] = (),
    events: Iterable[str] = (),
) -> Summary:
    """Compute the totals of a run; rollouts of one task must be adjacent."""
    settings = meta_entry(meta, "settings", _SummarySettings, _SummarySettings())
    known, continued = dict(taken), meta_entry(meta, "continues", str, "a run")
    grown = _TreeTotals(trees)
    found = _RolloutTotals(scored=settings.reward is not None)
    carried: list[TakenRow] = []
    for tasks_of_some in some_tasks(rollouts):
        found.add(tasks_of_some)
        if known:
            carried += [known[task] for task, _ in tasks_of_some if task in known]
    usage = found.usage - usage_of(carried)
    called: set[int] = set()

    def noted() -> Iterator[list[CallRow]]:
        for some in batches(calls):
            called.update([task for task, _ in some])
            yield [call for _, call in some]

    each_call = chain.from_iterable(noted())
    endpoints = by_endpoint(each_call, prices or {}, estimated_usage(meta), probes(meta))
    rewards, terminations = found.rewards, found.terminations
    return Summary(
        state=meta.get("state", "unknown"),
        tasks=tasks,
        finished=grown.count,
        broken=grown.broken,
        rollouts=terminations.total(),
        scored=sum(scored * tasks for scored, tasks in found.scored.items()),
        tries=found.most,
        short=grown.count - found.scored[found.most],
        accuracy=rewards.accuracy(),
        best_of_n=rewards.best_of_n(),
        majority=estimate(
            found.majorities,
            len(found.majorities),
            terminations.total() - terminations[Termination.RETRIED],
            bounded=rewards.bounded,
        ),
        tokens=grown.tokens.tokens(),
        usage=usage,
        terminations=dict(sorted(terminations.items(), key=lambda item: (-item[1], item[0]))),
        failed=sum(count for word, count in terminations.items() if word in FAILED),
        failures=_frequent(found.failures),
        forks_refused=found.refusals.total(),
        refusals=_frequent(found.refusals),
        replayed=max(0, found.replayed - sum(row.replayed for row in carried)),
        llm_seconds=(found.llm_micros - sum(row.llm_micros for row in carried)) / 1e6,
        tool_seconds=(found.tool_micros - sum(row.tool_micros for row in carried)) / 1e6,
        seconds=wall_seconds(meta),
        endpoints=endpoints,
        events=dict(Counter(events)),
        spent=total(endpoints),
        called=len(called),
        solved=found.solved,
        filters=found.filters.filtered(),
        groups=settings.refill.get("groups") if settings.refill else None,
        groups_kept=len(found.filters.kept.difference(broken)),
        strategy=_strategy(meta),
        ids=grown.ids.tokens(),
        paths=found.turns - sum(row.paths for row in carried),
        kept=found.kept.length(),
        cut=found.cut.length(),
        diversity=found.diversity.diversity(),
        taken=sum_up(continued, list(known.values()), carried) if "continues" in meta else None,
        ended=dict(sorted(grown.ended.items())),
        refused=grown.refused,
        budget=budget_report(meta),
        timing=settings.timing_dependent,
        model=_player(settings),
        reward=settings.reward or "",
        resources=resources(meta),
        empty=found.empty,
        retried=terminations[Termination.RETRIED],
        chosen=found.chosen,
        retry_causes=retry_causes(meta),
        agent_calls=found.agent_calls,
    )


def first_try(rollouts: Iterable[tuple[int, RolloutRow]]) -> Estimate | None:
    """Accuracy of one try as it was before tries were asked again because of their result."""
    counter = RewardCounter()
    for _, rows in each_task(rollouts):
        later: set[int] = set()  # tries that stand in the place of chosen ones
        rewards = []
        for row in rows:
            note = retried(row.note) if row.termination == Termination.RETRIED else None
            if note is not None and (note.chosen or row.rollout in later):
                later.add(note.by)
            if row.rollout not in later and (note is None or note.chosen):
                reward = tried(row).reward if note is None else note.reward
                rewards.append(math.nan if reward is None else reward)
        counter.add(rewards)
    return counter.accuracy()
