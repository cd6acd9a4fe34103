"""Expressions that choose rollouts: ``outcome == 'max_turns' and turns > 5 and category != 'algebra'``."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from trunkline._internal.text import printable
from trunkline._internal.validation import did_you_mean, short_repr
from trunkline.errors import ConfigError
from trunkline.types import Termination

if TYPE_CHECKING:
    from trunkline.store.schema import RolloutRow
    from trunkline.types import Task

Fields = Mapping[str, Any]
FieldReader = Callable[[Fields], Any]

FIELDS: Final = {
    "task": "the task's id",
    "rollout": "its number",
    "outcome": "why it ended: a termination, or empty for an answer without text, or growing",
    "answer": "what it answered",
    "reward": "its reward",
    "right": "whether its reward is 1 or more",
    "error": "what went wrong",
    "turns": "model turns on its path",
    "calls": "model calls of its own",
    "prompt": "their prompt tokens",
    "generated": "their generated tokens",
    "tokens": "both together",
    "retries": "their attempts beyond the first",
    "tools": "its tool calls",
    "tool_errors": "of these, those that failed",
    "seconds": "seconds in model and tool calls",
    "action": "what its first turn does",
    "reference": "the task's reference answers",
}
"""Names of a rollout; others are of the task's metadata, also written ``metadata.name`` or ``metadata["any name"]``."""

_LONGEST: Final = 2_000
_DEEPEST: Final = 40
_COMPARISONS: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}


def outcome_of(row: RolloutRow) -> str:
    """Why a rollout ended; ``empty`` for an answer without text, ``growing`` where it has not ended."""
    if row.termination is None:
        return "growing"
    return "empty" if is_empty(row) else row.termination


def is_empty(row: RolloutRow) -> bool:
    """Whether a rollout ended with an answer that has no text."""
    return row.termination == Termination.ANSWER and not (row.answer or "").strip()


def fields_of(task: Task, row: RolloutRow) -> dict[str, Any]:
    """The values that an expression can name: the task's metadata, and the fields of a rollout."""
    return {
        **task.metadata,
        "metadata": task.metadata,
        "task": task.id,
        "rollout": row.rollout,
        "outcome": outcome_of(row),
        "answer": row.answer,
        "reward": row.reward,
        "right": None if row.reward is None else row.reward >= 1,
        "error": row.error,
        "turns": row.turns,
        "calls": row.calls,
        "prompt": row.prompt,
        "generated": row.generated,
        "tokens": row.prompt + row.generated,
        "retries": row.retries,
        "tools": row.tools,
        "tool_errors": row.tool_errors,
        "seconds": (row.llm_micros + row.tool_micros) / 1e6,
        "action": row.action,
        "reference": list(task.reference),
    }


def compiled(text: str, metadata: Collection[str]) -> Callable[[Fields], bool]:
    """Read an expression into a test of a rollout's fields.

    There are comparisons (also ``in`` and ``not in``), ``and``, ``or``, ``not``, names, numbers, texts, True, False,
    None, and lists of these. What cannot be compared, such as None with a number, is false.

    Args:
        text: The expression.
        metadata: Names that tasks have in their metadata.

    Raises:
        ConfigError: It is no such expression, or names nothing that there is.
    """
    value = _Reader(text, metadata).value(_parsed(text), 0)
    return lambda fields: bool(value(fields))


def _parsed(text: str) -> ast.expr:
    if not text.strip():
        raise ConfigError("the expression is empty; write one such as \"outcome == 'max_turns' and turns > 5\"")
    if len(text) > _LONGEST:
        raise ConfigError(f"an expression of {len(text):,} characters is too long; the most are {_LONGEST:,}")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as problem:
        why = problem.msg if isinstance(problem, SyntaxError) else str(problem)
        raise ConfigError(f"{short_repr(text)} is no expression: {printable(why, 80)}") from None


def field_reader(text: str, metadata: Collection[str]) -> FieldReader:
    """Return the function that reads one field, named as in an expression or, of the metadata, by its bare name.

    Raises:
        ConfigError: There is no such field.
    """
    for name in (text, text.strip()):
        if name in FIELDS:
            return lambda fields: fields.get(name)
        for own in (name, name.removeprefix("metadata.")):
            if own in metadata:
                return lambda fields: fields["metadata"].get(own)
    if text.strip().startswith("metadata[") and isinstance(node := _parsed(text), ast.Subscript):
        return _Reader(text, metadata).value(node, 0)
    raise _unknown(text, text.strip(), [*FIELDS, *metadata])


def _unknown(text: str, name: str, known: Collection[str]) -> ConfigError:
    listed = ", ".join(printable(one, 40) for one in known) or "nothing"
    near = printable(did_you_mean(name, known), 80)
    return ConfigError(f"{short_repr(text)}: there is no field {printable(name, 40)}{near}; there is {listed}")


class _Reader:
    """Makes functions of the nodes of one expression."""

    def __init__(self, text: str, metadata: Collection[str]) -> None:
        self._text = text
        self._metadata = metadata

    def value(self, node: ast.expr, depth: int) -> FieldReader:  # noqa: PLR0911 - one for each kind of node
        if depth > _DEEPEST:
            raise ConfigError(f"{short_repr(self._text)} is nested too deeply")
        below = depth + 1
        match node:
            case ast.BoolOp(op=op, values=parts):
                tests = [self.value(part, below) for part in parts]
                every = isinstance(op, ast.And)
                return lambda fields: all(t(fields) for t in tests) if every else any(t(fields) for t in tests)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                test = self.value(operand, below)
                return lambda fields: not test(fields)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return lambda _fields: -number
            case ast.Compare(left=left, ops=ops, comparators=rest):
                values = [self.value(part, below) for part in (left, *rest)]
                known = [_COMPARISONS.get(type(op)) for op in ops]
                if None in known:
                    raise self._foreign(node)
                return _comparison(values, [one for one in known if one is not None])
            case ast.Constant(value=str() | int() | float() | bool() | None as constant):
                return lambda _fields: constant
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                several = [self.value(part, below) for part in parts]
                return lambda fields: [part(fields) for part in several]
            case ast.Name(id=name):
                return self._named(name)
            case (
                ast.Attribute(value=ast.Name(id="metadata"), attr=name)
                | ast.Subscript(value=ast.Name(id="metadata"), slice=ast.Constant(value=str(name)))
            ):
                if name not in self._metadata:
                    raise _unknown(self._text, name, self._metadata)
                return lambda fields: fields["metadata"].get(name)
        raise self._foreign(node)

    def _named(self, name: str) -> FieldReader:
        if name not in FIELDS and name not in self._metadata:
            raise _unknown(self._text, name, [*FIELDS, *self._metadata])
        return lambda fields: fields.get(name)

    def _foreign(self, node: ast.AST) -> ConfigError:
        part = ast.get_source_segment(self._text.strip(), node) or type(node).__name__
        return ConfigError(
            f"{short_repr(self._text)}: {printable(part, 60)} cannot be used; there are comparisons, in, and, or, not, "
            "names, numbers, texts and lists"
        )


def _comparison(values: list[FieldReader], operators: list[Callable[[Any, Any], Any]]) -> FieldReader:
    def holds(fields: Fields) -> bool:
        left = values[0](fields)
        for compare, value in zip(operators, values[1:], strict=True):
            right = value(fields)
            try:
                if not compare(left, right):
                    return False
            except TypeError:  # such as None with a number
                return False
            left = right
        return True

    return holds
