"""Continue an earlier run in a new one: compare settings and prompts, and copy its trees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import msgspec

from trunkline._core import top_turns
from trunkline._internal.text import from_difference, printable, quoted, redact
from trunkline.agent import BoundDialect
from trunkline.errors import ConfigError
from trunkline.llm.dialects import builtin as dialects
from trunkline.protocol.job import region_of
from trunkline.scoring.notes import clear
from trunkline.scoring.rewards.base import full_name
from trunkline.store.derive import taken
from trunkline.store.lock import is_written
from trunkline.store.reader import RunReader
from trunkline.store.state import under_way
from trunkline.store.stats.summary import sum_up
from trunkline.strategies.base import prompt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from trunkline._core import CoreTree
    from trunkline.protocol.job import Job
    from trunkline.store.schema import TakenRow
    from trunkline.store.stats.summary import TakenOver
    from trunkline.store.writer import RunWriter
    from trunkline.types import Task

_BEFORE, _SHOWN = 20, 60


class SourceRun:
    """An earlier run to continue, as a context manager; ConfigError while it is written or half scored."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = printable(str(path))
        # First: it may not look while this process has the file open.
        if is_written(path):
            raise ConfigError(f"continue_from: {self._name} is still running: wait for its end, or stop it first")
        self._reader = RunReader.open(path)
        self.settings, self.seed = self._reader.settings, self._reader.seed
        if (scoring := under_way(self._reader.meta)) is not None:
            self._reader.close()
            raise ConfigError(
                f"continue_from: {self._name} is scored by {printable(scoring.reward, 80)} in part: finish that first, "
                "with `trunkline score` (rescore)"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self._reader.close()

    def tasks(self, named: Iterable[Task] | None) -> list[Task]:
        """Return the tasks to continue, all of the run when None; ConfigError for unknown or changed ones."""
        known = {task.id: task for task in self._reader.tasks()}
        if named is None:
            return list(known.values())
        listed = list(named)
        for task in listed:
            there = known.get(task.id)
            if there is None:
                raise ConfigError(
                    f"continue_from: task {quoted(task.id)} is not in {self._name}; name tasks that it has"
                )
            for field in ("messages", "reference"):
                if getattr(task, field) != getattr(there, field):
                    raise ConfigError(
                        f"continue_from: task {quoted(task.id)} has other {field} than in {self._name}; leave the "
                        "tasks out to continue those of the run, or begin a new run"
                    )
        return listed

    def check(self, job: Job) -> None:
        """Refuse a job whose strategy, tools, dialect or reward cannot continue this run."""
        if not getattr(job.strategy, "continues", False):
            raise ConfigError(
                f"continue_from: strategy {type(job.strategy).__name__} begins every task anew; Chain and Partial "
                "continue an earlier run, and so does any strategy with continues = True"
            )
        there, agent = self.settings.get("agent"), job.agent
        there = there if isinstance(there, dict) else {}
        tools = redact([tool.definition for tool in agent.tools])
        if there.get("tools") != msgspec.to_builtins(tools):
            raise self._changed("tools", _tool_change(there.get("tools"), tools))
        dialect = redact(msgspec.to_builtins(dialects.describe(dialects.find(agent.dialect)), enc_hook=str))
        if there.get("dialect") != dialect:
            raise self._changed("dialect", f"{_shown(there.get('dialect'))} there, {_shown(dialect)} here")
        reward, before = None if job.reward is None else full_name(job.reward), self.settings.get("reward")
        if before is not None and reward != before:
            raise self._changed("reward", f"{_shown(before)} there, {_shown(reward)} here")

    def look(self, job: Job, tasks: Sequence[Task]) -> TakenOver:
        """Return the sums of ``take_over``, without writing anything."""
        return sum_up(str(self.path), [taken(core, len(deltas)) for _, core, deltas in self._trees(job, tasks)])

    def take_over(self, job: Job, tasks: Sequence[Task], writer: RunWriter) -> dict[int, TakenRow]:
        """Write this run's trees into the new run's file and return their rows by the new run's task number."""
        begun: dict[int, TakenRow] = {}
        for number, core, deltas in self._trees(job, tasks):
            row = begun[number] = taken(core, len(deltas))
            writer.take_over(number, [*deltas, *_unjudged(core)], row)
        return begun

    def _trees(self, job: Job, tasks: Sequence[Task]) -> Iterator[tuple[int, CoreTree, list[bytes]]]:
        """Yield new task number, tree and deltas of each tree that has begun; ConfigError if it cannot continue."""
        dialect = BoundDialect(job.agent.dialect, job.agent.tools, job.agent.sampling)
        numbers = {name: number for number, name in enumerate(self._reader.task_ids())}
        region = region_of(job.strategy)
        turns = known = False
        for number, task in enumerate(tasks):
            deltas = self._reader.deltas(numbers[task.id])
            if not deltas:
                continue
            core = self._reader.tree(task.id).core
            self._same_prompt(task, core, dialect.opening(job.agent.system, task.messages))
            yield number, core, deltas
            turns |= any(core.rollout(rollout).turns for rollout in range(core.rollouts))
            known = known or _known(core, region)
        if turns and not known:
            raise ConfigError(
                f"continue_from: strategy {type(job.strategy).__name__} chooses turns by log-probabilities of the "
                f"region {region!r}, and no turn in {self._name} has any: "
                "make a run with Sampling(logprobs=True, top_logprobs=16), or choose another region"
            )

    def _same_prompt(self, task: Task, core: CoreTree, here: Sequence[bytes]) -> None:
        there = [core.message(node) for node in core.path(prompt(core))]
        if there == list(here):
            return
        what = f"{len(there)} messages there, {len(here)} here"
        pair = next((pair for pair in zip(there, here, strict=False) if pair[0] != pair[1]), None)
        if pair is not None:
            _, old, new = from_difference(*pair, _BEFORE)
            what = f"{quoted(old, _SHOWN)} there, {quoted(new, _SHOWN)} here"
        raise self._changed(f"the prompt of task {quoted(task.id)}", what)

    def _changed(self, what: str, how: str) -> ConfigError:
        return ConfigError(
            f"continue_from: {what} must be as in {self._name}: {how}; what has grown there would mean something else"
        )


def _unjudged(core: CoreTree) -> list[bytes]:
    """Remove verdicts by one more delta: they were given on a complete group, which this one no longer is."""
    for number in range(core.rollouts):
        clear(core, number)
    delta = core.delta()
    return [] if delta is None else [delta]


def _known(core: CoreTree, region: str | None) -> bool:
    """Whether a turn has a perplexity in a region, or none is needed."""
    if region is None:
        return True
    found = [value for node in range(len(core)) for value in core.node(node).perplexity]
    return bool(top_turns(found, 2, region=region))  # two, as mixed takes the second by another region


def _tool_change(there: Any, here: Any) -> str:
    old = {_tool_name(tool): tool for tool in there} if isinstance(there, list) else {}
    new = {_tool_name(tool): tool for tool in here}
    if old.keys() == new.keys():
        changed = [name for name in new if new[name] != old[name]]
        return f"{', '.join(map(_shown, changed))} is defined otherwise" if changed else "they are in another order"
    return f"{', '.join(map(_shown, old)) or 'none'} there, {', '.join(map(_shown, new)) or 'none'} here"


def _tool_name(tool: Any) -> str:
    function = tool.get("function") if isinstance(tool, dict) else None
    return str(function.get("name")) if isinstance(function, dict) else "?"


def _shown(value: object) -> str:
    return printable(str(value), _SHOWN)
