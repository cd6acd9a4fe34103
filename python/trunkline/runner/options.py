"""Options of a run and their defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict, cast

from trunkline._internal.old_names import warn_renamed
from trunkline._internal.registry import load_named
from trunkline._internal.validation import did_you_mean
from trunkline.rollout.budget import Budget, read_budget
from trunkline.scoring.filters import FILTERS
from trunkline.scoring.rewards.reading import read_reward
from trunkline.strategies import STRATEGIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from trunkline.observability.event_stream import EventListener
    from trunkline.observability.events import RunEvent
    from trunkline.observability.observers import Observer, Progress
    from trunkline.observability.opentelemetry import Tracing
    from trunkline.observability.prometheus import PrometheusServer
    from trunkline.runner.result import Run
    from trunkline.scoring.filters.base import Filter
    from trunkline.scoring.rewards import Reward
    from trunkline.strategies.base import Strategy
    from trunkline.types import Task


TaskSource: TypeAlias = "Iterable[Task] | str | Path"
"""Tasks, or the path of a data set as ``trunkline.load_tasks`` takes it."""


class Options(TypedDict, total=False):
    """What a run can be told, beside its agent and tasks.

    ``strategy``, ``reward``, ``filters``, ``program`` and budgets may be texts as on the command line, such as
    ``"tree-grpo:trees=2"``, ``["f1@0.5", "exact_match@0.5"]``, ``"mymodule:program"`` or ``"tokens=1e6,money=5"``.

    Attributes:
        llm: Endpoints as ``trunkline.LLM`` (the default reads ``OPENAI_BASE_URL``), or an ``openai.AsyncOpenAI``
            client, a batch engine as ``trunkline.BatchLLM``, or any object with ``complete(request)``. All
            but endpoints stay in this process. Or several of these by their names, which agents and roles give as
            ``llm``: ``{"": tl.LLM(url), "judge": tl.LLM(other)}``; agents that give no name use the empty one.
        strategy: Where rollouts start; one chain a task when None.
        reward: Scores each finished rollout; nothing is scored when None.
        workers: Worker processes; 0 stays in this process, whose garbage collector looks less often meanwhile; when
            None, two where the LLM can cross, else 0.
        seed: Seed of the run: every draw's seed derives from it. Drawn at random, and recorded, when None.
        cache: Path of a file of answers: a draw that was answered once, in this run or an earlier one of the same
            seed, is not asked for again. None for none.
        continue_from: An earlier run, or the path of its file: its trees are copied and continued, unfinished ones
            included; for strategies that continue, such as ``trunkline.strategies.Partial``. System prompt,
            dialect and tools must be the same; tasks are the earlier run's, all of them when none are
            given; the seed is its seed when None.
        budget: The most that the run may spend, ``trunkline.Budget``. Near its limit what is refused depends on
            timing.
        task_budget: The most that each task may spend. But for ``seconds``, what is refused does not depend on timing;
            for that, the rollouts of a task take their turns together.
        enough: So many rollouts of a task that ended and did not fail: the others are cut at once. Depends on timing.
        cut_tail: What becomes of those that ``enough`` cuts: ``"censor"``, the default, or ``"keep"``.
        stop_when: ``"answer"`` or a reward: no rollout of a task starts or continues once its answer can no longer
            change, or one has that reward. Checked between rounds.
        out: Path of the run file, which must not exist unless it is resumed; a temporary file that lives as long as
            the result when None.
        filters: Filters that judge each complete group; see ``trunkline.filters``.
        groups: Take tasks in their order until so many groups were kept, and leave the others; run all when None.
        max_tasks: The most tasks that ``groups`` may take; all when None.
        pool: A ``trunkline.Pool`` to run on, which outlives the run; one of ``workers`` processes when None.
        durable: Whether what is acknowledged also survives a loss of power: every commit is synced to the disk.
        resume: Resume the run at ``out``, if there is one: finished tasks are not run again, and unfinished ones
            continue from their last turns. Settings that give results their meaning must be the same, and so must
            tasks; the seed is that of the run when None. ``"force"`` resumes with other settings, too.
        retry: Tries of finished tasks that a resumed run asks again, each by the next draw where it began:
            ``"broken"``, ``"cut"`` (by the run's budget or a deadline), ``"empty"`` (no answer was in it), ids of tasks
            (``"q7"``) or of tries (``"q7#2"``), between commas or in a list; ``"id:..."`` is one id, whatever it holds.
            The old ones stay on record, unscored.
            With another ``budget``, ``"cut"`` when None.
        grace: Seconds that requests and tool calls in flight have to return when the run is asked to stop; no new ones
            are started meanwhile.
        worker_memory: Bytes that each worker process may hold; one that holds more gets no new tasks and is replaced.
            Four fifths of the machine's memory, or the container's, divided by the workers, when None.
        policy_version: The version of the model's weights, kept with every turn: turns of two versions never merge.
        program: What plays a rollout, ``async def program(rollout)``; the agent's tool-calling loop when None.
        labels: Anything JSON holds, kept with the settings.
        metrics: A ``trunkline.observability.PrometheusServer``: counters of the run (extra: metrics).
        tracing: True, or a ``trunkline.observability.Tracing``: spans of OpenTelemetry for rollouts,
            turns and tool calls (extra: otel).
        observers: Objects of ``trunkline.observability.Observer``, which are told of the run's events, such as
            ``trunkline.observability.ServerMetrics``, or sinks, also as texts such as ``"wandb:PROJECT"``.
        on_event: Called, in a thread, with each event of the run (``trunkline.events``), one after the other; or a
            ``trunkline.observability.EventListener``, which says what happens where the function is slow.
        watch: Called with a ``trunkline.observability.Progress`` while the run is executed.
        progress: ``"auto"`` shows how far the run is: a live line on standard error where that is a terminal, an output
            of the cell in a notebook, nothing elsewhere. Nothing when None or False. A function is called as ``watch``.
        fail_on_error: Whether rollouts that broke make the call raise ``trunkline.errors.RunFailed``, with the run
            in it: True if any broke, a share below 1 or a count if more broke than that. False warns with a
            ``trunkline.errors.BrokenRolloutsWarning``, as others do where no more broke than allowed.
    """

    llm: Any
    strategy: Strategy | str | None
    reward: Reward | str | Sequence[str] | None
    workers: int | None
    seed: int | None
    cache: str | Path | None
    continue_from: str | Path | Run | None
    budget: Budget | str | None
    task_budget: Budget | str | None
    enough: int | None
    cut_tail: str
    stop_when: str | float | None
    out: str | Path | None
    filters: Sequence[Filter | str] | str
    groups: int | None
    max_tasks: int | None
    pool: Any
    durable: bool
    resume: bool | Literal["force"]
    retry: str | Sequence[str] | None
    grace: float
    worker_memory: int | None
    policy_version: str | None
    program: Any
    labels: Mapping[str, Any] | None
    metrics: PrometheusServer | None
    tracing: bool | Tracing
    observers: Sequence[Observer | str]
    on_event: EventListener | Callable[[RunEvent], object] | None
    watch: Callable[[Progress], None] | None
    progress: Literal["auto", False] | Callable[[Progress], None] | None
    fail_on_error: float


_DEFAULTS: Final[Options] = {
    **dict.fromkeys(Options.__annotations__, None),  # type: ignore[typeddict-item]
    "cut_tail": "censor",
    "filters": (),
    "durable": False,
    "resume": False,
    "grace": 10.0,
    "tracing": False,
    "observers": (),
    "fail_on_error": False,
}


FORMER: Final = {
    "weights": "policy_version",
    "tail": "cut_tail",
    "settled": "stop_when",
    "start_from": "continue_from",
}
"""Names of options before 0.1.0, which are taken until 0.2."""


def with_defaults(options: Options) -> Options:
    """Return options, with defaults for those that are absent; raise TypeError for an unknown name."""
    given: dict[str, Any] = {}
    for name, value in options.items():
        if (new := FORMER.get(name)) is not None:
            warn_renamed(f"the option {name} is called {new} now")
            if new in options:
                raise TypeError(f"{name} is the old name of {new}: give {new} alone")
        given[new or name] = value
    options = cast("Options", given)
    unknown = [name for name in options if name not in _DEFAULTS]
    if unknown:
        near = did_you_mean(unknown[0], _DEFAULTS)
        raise TypeError(f"a run has no option {unknown[0]!r}{near}; it has {', '.join(_DEFAULTS)}")
    return {**_DEFAULTS, **read_texts(options)}


def read_texts(options: Options) -> Options:
    """Return options with what texts name in their place, as on the command line; ConfigError for unknown names."""
    read: dict[str, Any] = dict(options)
    for name, value in options.items():
        if name == "filters" and isinstance(value, str | list | tuple):
            listed = [value] if isinstance(value, str) else value
            read[name] = [FILTERS.make(one, "filters") if isinstance(one, str) else one for one in listed]
        elif name == "reward":
            read[name] = read_reward(value)
        elif name in _READERS and isinstance(value, str):
            read[name] = _READERS[name](value)
    return cast("Options", read)


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "strategy": lambda text: STRATEGIES.make(text, "strategy"),
    "program": lambda text: load_named(text, "program"),
    "budget": read_budget,
    "task_budget": read_budget,
}
