"""The format ``parquet``: a typed row for each record, in row groups of bounded size."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline import _core
from trunkline._internal.registry import load_extra
from trunkline.scoring.notes import Verdict, read
from trunkline.store.export.target import Shape
from trunkline.types import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import BinaryIO

    from trunkline.store.export.target import Leaf

FIELDS: Final = {
    "task": "the task's id",
    "question": "the text of its last user message",
    "references": "the reference answers",
    "metadata": "what else its row carried, as JSON",
    "rollout": "the number of the rollout in its tree",
    "rollouts": "the numbers of all rollouts that the row stands for",
    "weight": "how many these are",
    "path": "the fork path: turn, draw, turn, draw, ...",
    "subgroup": "the initial chain it was expanded for",
    "termination": "why it ended; null while it grows",
    "answer": "its final answer",
    "reward": "its reward; null while unscored",
    "error": "what went wrong, in words",
    "turns": "model turns on its path, shared ones included",
    "generated": "generated tokens on its path, shared ones included; null where a turn on it reports none",
    "usage": "what its own calls cost; of all rollouts of the row together",
    "messages": "the conversation from the first prompt to the leaf, in the OpenAI form, as JSON",
    "agents": "the agent of each message; empty where none is named",
    "reasoning": "what was said with each message and is not sent again; null where nothing was",
    "note": "what was noted on it last",
    "verdicts": "what filters said about it, read from the note",
    "compressed_reasoning": "the report on it",
    "step_rewards": "what the environment gave for each model turn on its path, or null; null where it gave nothing",
    "final_info": "the facts that the environment left of its final state, as JSON",
}
"""The columns, and what they are."""

_WRITING: Final = "writing Parquet"
_MOST_ROWS: Final = 1_024
_MOST_TEXT: Final = 32 << 20
"""Characters of conversations after which a row group is full; one row may be longer."""


def _schema(only: Sequence[str]) -> Any:
    pa = load_extra("pyarrow", "parquet", _WRITING)
    verdict = {"str": pa.string(), "float": pa.float64(), "bool": pa.bool_(), "Action": pa.string()}
    types = {
        "references": pa.list_(pa.string()),
        "rollout": pa.int32(),
        "rollouts": pa.list_(pa.int32()),
        "weight": pa.int32(),
        "path": pa.list_(pa.int64()),
        "subgroup": pa.int64(),
        "reward": pa.float64(),
        "turns": pa.int32(),
        "generated": pa.int64(),
        "usage": pa.struct([(name, pa.int64()) for name in Usage.__struct_fields__]),
        "agents": pa.list_(pa.string()),
        "reasoning": pa.list_(pa.string()),
        "step_rewards": pa.list_(pa.float64()),
        "verdicts": pa.list_(pa.struct([(name, verdict[kind]) for name, kind in Verdict.__annotations__.items()])),
    }
    facts = {"trunkline": _core.__version__, "trunkline.export": "1"}
    return pa.schema([(name, types.get(name, pa.string())) for name in FIELDS if name in only], metadata=facts)


class Table(Shape):
    """Records of the format ``parquet``."""

    fields = tuple(FIELDS)

    def record(self, leaf: Leaf) -> dict[str, Any]:
        """Make the record of a leaf."""
        first = leaf.first
        error, nodes = first.error, first.nodes
        return {
            "task": first.task.id,
            "question": first.task.question,
            "references": leaf.references,
            "metadata": msgspec.json.encode(first.task.metadata).decode(),
            "rollout": first.id,
            "rollouts": leaf.rollouts,
            "weight": leaf.weight,
            "path": first.path,
            "subgroup": first.subgroup,
            "termination": None if first.termination is None else first.termination.value,
            "answer": first.answer,
            "reward": leaf.reward,
            "error": None if error is None else error.message,
            "turns": first.turns,
            "generated": first.generated,
            "usage": msgspec.structs.asdict(leaf.usage),
            "messages": bytes(leaf.asked if self.settings.get("external") else leaf.raw).decode(),
            "agents": [node.agent for node in nodes],
            "reasoning": [node.aside for node in nodes],
            "note": first.note,
            "verdicts": [msgspec.structs.asdict(verdict) for verdict in read(first.note)],
            "compressed_reasoning": leaf.report,
            "step_rewards": leaf.step_rewards,
            "final_info": None if leaf.final_info is None else msgspec.json.encode(leaf.final_info).decode(),
        }


class Columns:
    """Writes rows as Parquet."""

    def __init__(self, stream: BinaryIO, only: Sequence[str]) -> None:
        self._schema = _schema(only)
        parquet = load_extra("pyarrow.parquet", "parquet", _WRITING)
        self._writer = parquet.ParquetWriter(stream, self._schema, compression="zstd")
        self._table = load_extra("pyarrow", "parquet", _WRITING).Table
        self._rows: list[Mapping[str, Any]] = []
        self._size = 0

    def write(self, record: Mapping[str, Any]) -> None:
        """Add one row; a full row group is written."""
        self._rows.append(record)
        self._size += len(record.get("messages", ""))
        if len(self._rows) >= _MOST_ROWS or self._size >= _MOST_TEXT:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            rows, self._rows, self._size = self._rows, [], 0
            self._writer.write_table(self._table.from_pylist(rows, schema=self._schema), row_group_size=len(rows))

    def close(self) -> None:
        """Write the last row group and the footer."""
        self._flush()
        self._writer.close()

    def abandon(self) -> None:
        """Give the writer up; its own attempt to end the file may fail."""
        with contextlib.suppress(Exception):
            self._writer.close()
        # Else it tries once more when it is collected.
        self._writer.is_open = False
