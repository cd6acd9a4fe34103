"""Tries to look at: chosen by what came of them or by an expression, counted by category, or whole."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from trunkline._internal.text import counted, printable
from trunkline.cli.output import plain, put, write_json
from trunkline.cli.tables import grid, share
from trunkline.cli.tree_view import call_text
from trunkline.errors import ConfigError, UsageError
from trunkline.scoring.notes import graded, read
from trunkline.store.stats.categories import by_category
from trunkline.store.stats.tasks import each_task, tried
from trunkline.store.stats.where import FIELDS, compiled, field_reader, fields_of, is_empty
from trunkline.tree.records import Failure
from trunkline.tree.views import Kind, message_text
from trunkline.types import FAILED, Termination

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trunkline.store.reader import RunReader
    from trunkline.store.schema import RolloutRow
    from trunkline.tree.records import ToolDecision
    from trunkline.tree.views import Node, Trajectory, Tree
    from trunkline.types import Task

_QUESTION = 60  # cells of a question that a line shows
_ANSWER = 40  # cells of an answer
_ERROR = 100  # cells of an error
_TEXT = 2_000  # characters of a message without --full
_CATEGORY = 30  # cells of a category's name


class TryFilter(NamedTuple):
    """Which tries are looked at: those for which all of these hold."""

    wrong: bool = False
    errors: bool = False
    empty: bool = False
    where: str | None = None
    by: str | None = None
    limit: int = 20

    def __bool__(self) -> bool:
        return self.wrong or self.errors or self.empty or self.where is not None or self.by is not None


def show_tries(reader: RunReader, choice: TryFilter, *, as_json: bool) -> None:
    """Print the tries that are chosen, a line each, or how they did by category."""
    tasks = reader.tasks()
    metadata = list(dict.fromkeys(name for task in tasks for name in task.metadata))
    test = None if choice.where is None else compiled(choice.where, metadata)
    found = _chosen(reader, tasks, choice, test)
    if choice.by is not None:
        _by(choice.by, metadata, found, as_json=as_json)
    elif choice.wrong and not (choice.errors or choice.empty or choice.where is not None):
        _list(_wrong_tasks(found), "task that no rollout solved", "tasks that no rollout solved", choice, as_json)
    else:
        lines = ((task, row) for task, rows in found for row in rows)
        _list((_try(task, row) for task, row in lines), "rollout", "rollouts", choice, as_json)


def _chosen(
    reader: RunReader, tasks: Sequence[Task], choice: TryFilter, test: Callable[[dict[str, Any]], bool] | None
) -> Iterator[tuple[Task, list[RolloutRow]]]:
    """Yield tasks with the rollouts that are chosen, one task after the other."""
    for number, rows in each_task(reader.rollouts()):
        task = tasks[number]
        current = [row for row in rows if row.termination != Termination.RETRIED]
        if choice.wrong:
            rewards = [given.reward for given in map(tried, current)]
            scored = [reward for reward in rewards if reward == reward]  # noqa: PLR0124 - NaN is unscored
            if not scored or max(scored) >= 1:
                continue
        rows_left = [
            row
            for row in (current if choice.wrong or choice.empty else rows)
            if (not choice.errors or row.termination in FAILED)
            and (not choice.empty or is_empty(row))
            and (test is None or test(fields_of(task, row)))
        ]
        if rows_left:
            yield task, rows_left


def question_of(task: Task) -> str:
    """The last message of a task's prompt."""
    return message_text(task.messages[-1])


Line = tuple[list[str], dict[str, Any]]


def _wrong_tasks(found: Iterator[tuple[Task, list[RolloutRow]]]) -> Iterator[Line]:
    for task, rows in found:
        answers: defaultdict[str, int] = defaultdict(int)
        for row in rows:
            answers["(empty)" if is_empty(row) else row.answer or f"({row.termination or 'growing'})"] += 1
        said = [
            printable(answer, _ANSWER) + (f" x{count}" if count > 1 else "")
            for answer, count in sorted(answers.items(), key=lambda item: -item[1])
        ]
        reference = ", ".join(printable(one, _ANSWER) for one in task.reference[:3])
        cells = [printable(task.id, _ANSWER), reference, "; ".join(said[:4]), printable(question_of(task), _QUESTION)]
        data = {"task": task.id, "question": question_of(task), "reference": task.reference, "answers": dict(answers)}
        yield cells, data


def _try(task: Task, row: RolloutRow) -> Line:
    fields = fields_of(task, row)
    came = Failure.decode(row.error).message if row.error else row.answer or ""
    reward = "-" if row.reward is None else f"{row.reward:g}"
    cells = [
        f"{printable(task.id, _ANSWER)}#{row.rollout}",
        str(fields["outcome"]),
        reward,
        counted(row.turns, "turn"),
        printable(came, _ERROR if row.error else _ANSWER),
    ]
    return cells, {name: fields[name] for name in FIELDS if name in fields} | {"metadata": task.metadata}


def _list(lines: Iterator[Line], one: str, many: str, choice: TryFilter, as_json: bool) -> None:
    """Print so many lines, and how many more there are; as JSON all of them."""
    if as_json:
        found = [data for _, data in lines]
        write_json({"found": found, "total": len(found)})
        return
    shown: list[list[str]] = []
    total = 0
    for cells, _ in lines:
        total += 1
        if choice.limit == 0 or total <= choice.limit:
            shown.append(cells)
    put(counted(total, one, many))
    if shown:
        put(grid(shown, range(len(shown[0]))))
    if total > len(shown):
        put(f"{total - len(shown):,} more: --limit 0 shows all")


def _by(field: str, metadata: Sequence[str], found: Iterator[tuple[Task, list[RolloutRow]]], *, as_json: bool) -> None:
    """Print the accuracy of one try by the values of a field, each with its interval."""
    field = field.strip()
    categories = by_category({field: field_reader(field, metadata)}, found)[field]
    if as_json:
        data = [{"value": one.value, "rollouts": one.rollouts, "accuracy": plain(one.accuracy)} for one in categories]
        write_json({"by": field, "found": data})
        return
    rows_shown = [(printable(field.removeprefix("metadata."), _CATEGORY), "tasks", "rollouts", "accuracy of one try")]
    for one in categories:
        tasks = "-" if one.accuracy is None else f"{one.accuracy.tasks:,}"
        rows_shown.append((printable(one.value, _CATEGORY), tasks, f"{one.rollouts:,}", share(one.accuracy, "-")))
    put(grid(rows_shown, (0, 3)))


def show_transcript(tree: Tree, number: int, *, full: bool, as_json: bool) -> None:
    """Print what was said in one rollout, from the prompt to its end; long texts whole where ``full``."""
    if not 0 <= number < len(tree.rollouts):
        raise UsageError(f"task {printable(tree.task.id, 80)} has no rollout {number}; it has {len(tree.rollouts)}")
    rollout = tree.rollouts[number]
    path = [tree.nodes[node] for node in tree.core.path(rollout.leaf.id) if node]
    if as_json:
        data = [{"node": node.id, "kind": node.kind.name.lower(), "message": node.message} for node in path]
        write_json({"task": tree.task.id, "rollout": number, "messages": data, "answer": rollout.answer})
        return
    put(f"task {printable(tree.task.id)} rollout {number}")
    all_decided, turn = rollout.tool_decisions, -1
    for node in path:
        turn += node.kind is Kind.TURN
        decided = [one for one in all_decided if one.turn == turn and node.kind is Kind.TURN]
        put("\n".join(_node_lines(node, decided, full=full)))
    put(f"\n── end {'─' * 40}")
    put(f"outcome    {_outcome(rollout)}")
    if rollout.answer is not None:
        put(f"answer     {printable(rollout.answer)}")
    if tree.task.reference:
        put(f"reference  {', '.join(printable(one) for one in tree.task.reference)}")
    if rollout.error:
        put(f"error      {printable(rollout.error.message)}")
        for line in rollout.error.tries:
            put(f"           {printable(line)}")
    put(f"reward     {'none' if rollout.reward != rollout.reward else f'{rollout.reward:g}'}")
    for part in graded(rollout.note):
        put(f"           {part.reward} {'-' if part.value is None else f'{part.value:g}'} {part.why}".rstrip())
    for verdict in read(rollout.note):
        put(f"verdict    {verdict.filter}: {verdict.action} {verdict.reason}".rstrip())


def _node_lines(node: Node, decided: list[ToolDecision], *, full: bool) -> Iterator[str]:
    """What a node says, and what was decided of its calls."""
    message = node.message
    role = node.agent if node.kind is Kind.TURN else ""
    who = message.get("role", "?") if role in {"", "agent"} else role
    yield f"\n── {printable(str(who), 40)} {'─' * 40}"
    if isinstance(reasoning := message.get("reasoning_content") or message.get("reasoning"), str):
        yield from ("  │ " + line for line in _lines(reasoning, full=full))
    yield from _lines(message_text(message), full=full)
    yield from ("→ " + line for line in _lines(call_text(message), full=full))
    for one in decided:
        yield from _lines(_decision_text(one), full=full)


def _decision_text(decided: ToolDecision) -> str:
    which = f"→ before_tool: call {decided.index + 1} of these"
    if decided.refusal is not None:
        return f"{which} was refused"
    return f"{which} ran with {json.dumps(decided.arguments, ensure_ascii=False)}"


def _outcome(rollout: Trajectory) -> str:
    if rollout.termination is None:
        return "growing"
    blank = rollout.termination == Termination.ANSWER and not (rollout.answer or "").strip()
    return "empty" if blank else rollout.termination.value


def _lines(text: str, *, full: bool) -> list[str]:
    """The lines of a text, safe to print, and how much more there is of a long one."""
    shown = text if full or len(text) <= _TEXT else text[:_TEXT]
    lines = [printable(line) for line in shown.splitlines()]
    return lines if len(shown) == len(text) else [*lines, f"... {len(text) - _TEXT:,} more characters: --full"]


def check_choice(given: dict[str, Any]) -> None:
    """Refuse options that do not go together."""
    if given["rollout"] is not None and given["task"] is None:
        raise ConfigError(f"--rollout {given['rollout']} is of a task: give --task ID")
    if given["full"] and given["rollout"] is None:
        raise ConfigError("--full is for one try: give --task ID --rollout N")
    chosen = [f"--{name}" for name in ("wrong", "errors", "empty", "where", "by") if given[name] not in {None, False}]
    others = [f"--{name}" for name in ("tasks", "calls", "time", "metrics", "confidence") if given[name]]
    if given["task"] is not None and chosen:
        raise ConfigError(f"{chosen[0]} looks at tries of all tasks, and --task at one: leave one of them out")
    if others and (chosen or given["rollout"] is not None):
        raise ConfigError(f"{(chosen or ['--rollout'])[0]} and {others[0]} are two different views: give one of them")
