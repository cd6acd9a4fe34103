"""The data of the page: totals, pages of tasks, trees. Values are such as JSON holds."""

from __future__ import annotations

import threading
from collections import defaultdict
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline._core import SAMPLED
from trunkline._internal.text import redact, without_secrets
from trunkline._internal.validation import short_repr
from trunkline.errors import UsageError
from trunkline.scoring.notes import graded, read, retried
from trunkline.store.lock import is_written
from trunkline.store.reader import RunReader
from trunkline.store.stats.calls import retry_causes
from trunkline.store.stats.categories import by_category
from trunkline.store.stats.tasks import each_task
from trunkline.store.stats.where import compiled, field_reader, fields_of
from trunkline.tree.views import Kind, message_calls, message_text
from trunkline.types import FAILED, UNSCORED, Termination
from trunkline.view.texts import tasks_with

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from trunkline._internal.text import JSON
    from trunkline.store.stats.where import FieldReader
    from trunkline.tree.views import Node, Trajectory, Tree

PAGE: Final = 100
"""Rows of a page, if not said otherwise."""

_MOST_ROWS: Final = 500
_MOST_PAGES: Final = 1_000_000_000
_QUESTION: Final = 300  # characters of a question in the table
_TEXT: Final = 100_000  # characters of a text of a tree
_TEXTS: Final = 10_000_000  # characters of all of its nodes' texts, about; each has its part at least
_LEAST: Final = 500  # characters of a text of a very large tree
_TOKENS: Final = 5_000  # tokens of a turn that are drawn
_ALL_TOKENS: Final = 500_000  # tokens of all of a tree's turns, about
_VALUES: Final = 50  # values of a field of metadata that are listed
_LOOKED_AT: Final = 200  # tasks whose metadata tell which fields there are
_USES: Final = "SELECT rollout, failed, started FROM uses WHERE task = ? ORDER BY use"


def _words(terminations: Iterable[Termination]) -> str:
    return ", ".join(f"'{word.value}'" for word in sorted(terminations))


_SCORED = f"CASE WHEN r.termination NOT IN ({_words(UNSCORED)}) THEN r.reward END"
_EMPTY = "r.termination = 'answer' AND trim(coalesce(r.answer, ''), char(9, 10, 11, 12, 13, 32)) = ''"
_IS_TRY = "r.rollout NOTNULL AND r.termination IS NOT 'retried'"
# The names in these statements are our own; what is asked for is bound.
_TASKS = f"""
SELECT t.task AS task, t.id AS id, e.ended AS ended, e.error AS error,
    coalesce(sum({_IS_TRY}), 0) AS rollouts, coalesce(sum(r.termination = 'retried'), 0) AS retried,
    count({_SCORED}) AS scored, avg({_SCORED}) AS reward, min({_SCORED}) AS least,
    max({_SCORED}) AS best, coalesce(sum(r.termination IN ({_words(FAILED)})), 0) AS failed,
    coalesce(sum({_EMPTY}), 0) AS empty, avg(CASE WHEN {_IS_TRY} THEN r.turns END) AS turns,
    sum(r.prompt) AS prompt, sum(r.generated) AS generated, sum(r.tools) AS tools,
    sum(r.tool_errors) AS tool_errors, sum(r.llm_micros + r.tool_micros) / 1e6 AS seconds,
    ',' || group_concat(DISTINCT CASE WHEN r.rollout NOTNULL THEN coalesce(r.termination, 'growing') END) || ',' AS ends
FROM tasks t LEFT JOIN trees e USING (task) LEFT JOIN rollouts r USING (task) WHERE t.task BETWEEN ? AND ?
GROUP BY t.task
"""  # noqa: S608

SORTS: Final = (
    "task", "id", "rollouts", "scored", "reward", "best", "failed", "turns", "prompt", "generated", "tools", "seconds",
)  # fmt: skip
"""Columns that tasks are sorted by."""

_OUTCOMES: Final = {
    "solved": "best >= 1",
    "unsolved": "scored > 0 AND best < 1",
    "mixed": "least < best",
    "unscored": "ended IS NOT NULL AND scored = 0",
    "broken": "error IS NOT NULL OR failed > 0",
    "empty": "empty > 0",
    "unfinished": "ended IS NULL",
}
OUTCOMES: Final = (*_OUTCOMES, *(word.value for word in Termination))
"""Outcomes that tasks are chosen by; a task has that of any of its rollouts."""

_TOTALS = f"""
SELECT sum({_IS_TRY}), count({_SCORED}), avg({_SCORED}), sum(prompt), sum(generated), sum(tools), sum(tool_errors),
    sum(retries), sum({_EMPTY}), sum(termination = 'retried') FROM rollouts r
"""  # noqa: S608


class TaskQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Filters and order of the table of tasks; raises UsageError for an unknown value."""

    page: int = 0
    size: int = PAGE
    sort: str = "task"
    descending: bool = False
    outcome: str = ""
    least: float | None = None  # of the mean reward
    most: float | None = None
    field: str = ""  # of the task's metadata
    value: str = ""  # as JSON
    where: str = ""  # an expression over a try and its task's metadata, as of `trunkline show --where`
    text: str = ""  # in the task's messages or its id; letters of ASCII match in either case
    turns: bool = False  # search everything that was said, too

    def __post_init__(self) -> None:
        if not 0 <= self.page <= _MOST_PAGES or not 1 <= self.size <= _MOST_ROWS:
            raise UsageError(
                f"page must be 0 to {_MOST_PAGES} and size 1 to {_MOST_ROWS}, not {self.page} and {self.size}"
            )
        if self.sort not in SORTS:
            raise UsageError(f"sort must be one of {', '.join(SORTS)}, not {short_repr(self.sort)}")
        if self.outcome and self.outcome not in OUTCOMES:
            raise UsageError(f"outcome must be one of {', '.join(OUTCOMES)}, not {short_repr(self.outcome)}")
        if '"' in self.field or "\0" in self.field + self.value + self.text + self.where:
            raise UsageError(f"there is no such field, value or text: {short_repr(self.field or self.text)}")

    @classmethod
    def of(cls, asked: Mapping[str, str]) -> TaskQuery:
        """Read the query part of a URL."""
        try:
            return msgspec.convert({name: value for name, value in asked.items() if value}, cls, strict=False)
        except msgspec.ValidationError as problem:
            raise UsageError(f"tasks cannot be asked for like that: {problem}") from None


class RunData:
    """One run file, read for the page; its methods may be called in any thread.

    Raises:
        RunFileError: The file is no readable run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = RunReader.open(path, partial=True)
        self._lock = threading.Lock()
        self._chosen: tuple[object, set[int]] = (None, set())  # the latest search: what was asked for, and the tasks

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._reader.close()

    def version(self) -> tuple[int, bool]:
        """A number that changes with the file, and whether a process writes it now."""
        with self._lock:
            return self._version(), is_written(self.path)

    def _version(self) -> int:
        return int(self._reader.query("PRAGMA data_version")[0][0])

    def overview(self) -> dict[str, JSON]:
        """What the page shows first: cheap counts of the rows."""
        with self._lock:
            meta, settings = self._reader.meta, self._reader.settings
            ((tasks, finished, broken),) = self._reader.query(
                "SELECT (SELECT count(*) FROM tasks), count(*), count(error) FROM trees"
            )
            (totals,) = self._reader.query(_TOTALS)
            ends = self._reader.query(
                "SELECT coalesce(termination, 'growing'), count(*) FROM rollouts GROUP BY 1 ORDER BY 2 DESC"
            )
            fields = self._fields()
        names = (
            "rollouts", "scored", "reward", "prompt", "generated", "tools", "tool_errors", "retries", "empty",
            "retried",
        )  # fmt: skip
        agent = settings.get("agent")
        chosen = {name: settings.get(name) for name in ("strategy", "reward", "seed", "team", "filters")}
        return {
            "name": self.path.name,
            "state": meta.get("state", ""),
            "live": is_written(self.path),
            "loss": self._reader.loss,
            "tasks": tasks,
            "finished": finished,
            "broken": broken,
            **{name: value or (None if name == "reward" else 0) for name, value in zip(names, totals, strict=True)},
            "reward": totals[2],
            "ends": [list(row) for row in ends],
            "fields": fields,
            "model": agent.get("model") if isinstance(agent, dict) else None,
            "settings": redact(chosen),
            "retry_causes": retry_causes(meta),
            "seconds": meta.get("seconds"),
        }

    def _fields(self) -> list[str]:
        """Fields of metadata that tasks can be chosen by."""
        found: dict[str, None] = {}
        for (number,) in self._reader.query("SELECT task FROM tasks ORDER BY task LIMIT ?", _LOOKED_AT):
            metadata = self._reader.task(number).metadata
            found |= dict.fromkeys(
                name for name, value in metadata.items() if isinstance(value, str | int | bool) and '"' not in name
            )
        return list(found)[:_VALUES]

    def values(self, field: str) -> list[list[JSON]]:
        """The most frequent values of a field of metadata, as JSON, each with the number of its tasks."""
        query = TaskQuery(field=field)
        with self._lock:
            rows = self._reader.query(
                "SELECT CAST(record AS TEXT) -> ? AS value, count(*) FROM tasks WHERE value IS NOT NULL "
                "GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT ?",
                _place(query.field),
                _VALUES,
            )
        return [list(row) for row in rows]

    def summary(self) -> dict[str, JSON]:
        """The totals with intervals, and where time and tokens went; it reads all rows, in a connection of its own."""
        with closing(RunReader.open(self.path, partial=True)) as reader:
            found, spent = reader.summary(), reader.profile()
        data: dict[str, JSON] = _plain(found)
        usage = msgspec.structs.asdict(found.usage)
        tokens = {"saved": found.tokens.saved, "reuse": found.tokens.reuse}
        data |= {"usage": usage, "rate": found.rate, "prompt": found.prompt, "cached": found.cached}
        return data | {"shared": tokens, "time": _plain(spent)}

    def tasks(self, query: TaskQuery) -> dict[str, JSON]:
        """One page of tasks, and how many there are in all pages."""
        conditions, values = _conditions(query)
        chosen = sorted(self._choose(query)) if query.text or query.where else None
        if chosen is not None:
            conditions.append("task IN (SELECT value FROM json_each(?))")
            values.append(repr(chosen))
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        with self._lock:
            ((total,),) = self._reader.query("SELECT count(*) FROM tasks")
            first, last, skipped = 0, total - 1, query.page * query.size
            if chosen is not None:
                first, last = (chosen[0], chosen[-1]) if chosen else (0, -1)
            if not where and query.sort == "task":
                # The rows of a page are those of its tasks: the others are not looked at.
                first = skipped if not query.descending else total - skipped - query.size
                last, skipped = first + query.size - 1, 0
            elif where:
                ((total,),) = self._reader.query(f"SELECT count(*) FROM ({_TASKS}) found{where}", first, last, *values)  # noqa: S608
            order = f"{query.sort} {'DESC' if query.descending else 'ASC'} NULLS LAST, task"
            rows = self._reader.query(
                f"SELECT * FROM ({_TASKS}) found{where} ORDER BY {order} LIMIT ? OFFSET ?",  # noqa: S608 - known names
                *(first, last, *values, query.size, skipped),
            )
            return {"total": total, "page": query.page, "size": query.size, "rows": [self._row(row) for row in rows]}

    def _choose(self, query: TaskQuery) -> set[int]:
        """The numbers of tasks that hold a text, and of which a try fits an expression.

        It reads all of them in a connection of its own; the latest answer is kept for further pages of it.
        """
        with self._lock:
            asked = (query.text, query.turns, query.where, self._version())
            before, chosen = self._chosen
        if asked == before:
            return chosen
        with closing(RunReader.open(self.path, partial=True)) as reader:
            if query.text:
                chosen = tasks_with(reader, query.text, turns=query.turns)
            if query.where:
                tasks = reader.tasks()
                chosen = chosen if query.text else set(range(len(tasks)))
                fits = compiled(query.where, {name for task in tasks for name in task.metadata})
                chosen &= {number for number, row in reader.rollouts() if fits(fields_of(tasks[number], row))}
        with self._lock:
            self._chosen = asked, chosen
        return chosen

    def categories(self, names: Sequence[str] | None = None) -> dict[str, list[JSON]]:
        """Accuracy with its interval by the most frequent values of fields of metadata, of all that tasks have if None.

        It reads all rows, in a connection of its own.

        Raises:
            ConfigError: There is no such field.
        """
        with closing(RunReader.open(self.path, partial=True)) as reader:
            tasks = reader.tasks()
            known = {name for task in tasks for name in task.metadata}
            if names is None:
                with self._lock:
                    names = self._fields()
            fields = {name: _metadata(name) if name in known else field_reader(name, known) for name in names}
            rows = ((tasks[number], own) for number, own in each_task(reader.rollouts()))
            found = by_category(fields, rows, _VALUES)
        return {
            name: [_plain(one) | {"value": without_secrets(one.value[:_QUESTION])} for one in own]
            for name, own in found.items()
        }

    def _row(self, row: tuple[Any, ...]) -> dict[str, JSON]:
        number, name, *figures, ends = row
        task = self._reader.task(number)
        question = next((message_text(one) for one in reversed(task.messages) if one.get("role") == "user"), "")
        names = (
            "ended", "error", "rollouts", "retried", "scored", "reward", "least", "best", "failed", "empty", "turns",
            "prompt", "generated", "tools", "tool_errors", "seconds",
        )  # fmt: skip
        made = dict(zip(names, figures, strict=True))
        ended = [word for word in (ends or "").strip(",").split(",") if word]
        return {
            "task": number,
            "id": name,
            "question": without_secrets(question[:_QUESTION]),
            "metadata": _plain(redact(dict(task.metadata))),
            **made,
            "ends": ended,
        }

    def task(self, name: str, most: int = _TEXT) -> dict[str, JSON]:
        """A task's tree with its rollouts; texts are cut after ``most`` characters."""
        with self._lock:
            tree = self._reader.tree(name)
            failed: set[int] = set()
            if any(rollout.usage.tool_errors for rollout in tree.rollouts):
                failed = failed_nodes(tree, self._reader.query(_USES, self._reader.number(name)))
        return tree_data(tree, most, failed)


def _metadata(name: str) -> FieldReader:
    return lambda fields: fields["metadata"].get(name)


def _plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def _place(field: str) -> str:
    return f'$.metadata."{field}"'


def _conditions(query: TaskQuery) -> tuple[list[str], list[object]]:
    conditions: list[str] = []
    values: list[object] = []
    if query.outcome in _OUTCOMES:
        conditions.append(f"({_OUTCOMES[query.outcome]})")
    elif query.outcome:
        conditions.append("instr(ends, ?) > 0")
        values.append(f",{query.outcome},")
    for sign, bound in ((">=", query.least), ("<=", query.most)):
        if bound is not None:
            conditions.append(f"reward {sign} ?")
            values.append(bound)
    if query.field:
        conditions.append("(SELECT CAST(record AS TEXT) -> ? FROM tasks own WHERE own.task = found.task) = ?")
        values += [_place(query.field), query.value]
    return conditions, values


def failed_nodes(tree: Tree, calls: Iterable[tuple[int, int, int]]) -> set[int]:
    """Observations of tool calls that failed: calls that began together made one each, or one together.

    ``calls`` are the rollout, whether it failed and when it began, in order. Of a rollout whose observations are
    neither, as those of some programs, none is named.
    """
    by_rollout: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for of, fault, started in calls:
        by_rollout[of].append((fault, started))
    found: set[int] = set()
    for number, made in by_rollout.items():
        if not 0 <= number < len(tree.rollouts) or not any(failed for failed, _ in made):
            continue
        rollout = tree.rollouts[number]
        path = tree.core.path(rollout.leaf.id)
        own = path[path.index(rollout.point.id) + 1 :] if rollout.point.id in path else path
        seen = [node for node in own if tree.nodes[node].kind is Kind.OBSERVATION]
        together = [max(failed for failed, _ in some) for _, some in groupby(made, itemgetter(1))]
        for outcome in ([failed for failed, _ in made], together):
            if len(outcome) == len(seen):
                found.update(node for node, failed in zip(seen, outcome, strict=True) if failed)
                break
    return found


def tree_data(tree: Tree, most: int = _TEXT, failed: Collection[int] = ()) -> dict[str, JSON]:
    """A tree as the page draws it; observations that ``failed`` are marked."""
    visits, scored, means = tree.values()
    size = len(tree.nodes)
    most = min(most, max(_LEAST, _TEXTS // size))
    tokens = min(_TOKENS, max(1, _ALL_TOKENS // size))
    nodes = [_node(node, most, tokens) for node in tree.nodes if node.id]
    for node in nodes:
        number = node["id"]
        node["failed"] = number in failed
        node |= {"visits": visits[number], "scored": scored[number], "value": _number(means[number])}
    return {
        "id": tree.task.id,
        "reference": [_cut(answer, 2000) for answer in tree.task.reference[:20]],
        "metadata": _plain(redact(dict(tree.task.metadata))),
        "ended": tree.ended,
        "answer": _cut(tree.answer, most),
        "reward": _number(tree.reward),
        "tokens": _plain(tree.tokens) | {"saved": tree.tokens.saved, "reuse": tree.tokens.reuse},
        "nodes": nodes,
        "rollouts": [_rollout(rollout, most) for rollout in tree.rollouts],
    }


def _number(value: float) -> float | None:
    return value if value == value else None  # noqa: PLR0124 - NaN


def _cut(text: str | None, most: int) -> str | None:
    """A text without secrets, with a remark where the rest was left out."""
    if text is None:
        return None
    safe = without_secrets(text[:most])
    return safe if len(text) <= most else f"{safe}\n… {len(text) - most:,} more characters are in the run file"


def _node(node: Node, most: int, drawn: int) -> dict[str, Any]:
    message = node.message
    calls = [{"name": _cut(name, 200), "arguments": _cut(given, most)} for _, name, given in message_calls(message)]
    turn = node.kind is Kind.TURN
    made: dict[str, Any] = {
        "id": node.id,
        "parent": node.parent.id if node.parent is not None else None,
        "kind": node.kind.name.lower(),
        "role": _cut(str(message.get("role", "")), 40),
        "agent": _cut(node.agent, 80),
        "text": _cut(node.text, most),
        "calls": calls,
        "tool": _cut(str(message["name"]), 200) if message.get("name") else None,
        "reasoning": _cut(node.aside, most),
        "report": _cut(node.compressed_reasoning, most),
        "finish": _cut(node.finish, 40),
    }
    if turn:
        facts = node.tree.core.node(node.id)
        made |= {"prompt": node.prompt_tokens, "generated": node.generated_tokens, "weights": node.weights}
        made["entropy"] = _number(facts.entropy[2])
        tokens = node.tree.core.tokens_of(node.id)
        if tokens is not None and any(flag & SAMPLED for flag in tokens.flags):
            made["ids"] = tokens.ids[:drawn].tolist()
            made["logprobs"] = [
                _number(round(value, 4)) if flag & SAMPLED else None
                for value, flag in zip(tokens.logprobs[:drawn], tokens.flags[:drawn], strict=True)
            ]
            made["more"] = max(0, len(tokens.ids) - drawn)
    return made


def _rollout(rollout: Trajectory, most: int) -> dict[str, Any]:
    error, again = rollout.error, retried(rollout.note)
    return {
        "id": rollout.id,
        "point": rollout.point.id,
        "path": list(rollout.path),
        "subgroup": rollout.subgroup,
        "termination": None if rollout.termination is None else rollout.termination.value,
        "answer": _cut(rollout.answer, most),
        "reward": _number(rollout.reward),
        "error": None if error is None else redact(_plain(error)),
        "verdicts": [_plain(one) for one in read(rollout.note)],
        "parts": [msgspec.structs.asdict(one) for one in graded(rollout.note)],
        "retried": None if again is None else _plain(msgspec.structs.asdict(again)),
        "turns": rollout.turns,
        "usage": msgspec.structs.asdict(rollout.usage),
        "seconds": list(rollout.seconds),
        "nodes": rollout.tree.core.path(rollout.leaf.id),
    }
