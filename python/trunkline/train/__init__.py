"""Training views of a run: records, and arrays of tokens. Nothing is trained here.

The modules ``torch``, ``trl``, ``verl``, ``skyrl``, ``verifiers`` and ``prime`` are adapters: each is imported by its
own name, and imports its framework when it is first used.
"""

from trunkline.train.batch import TrainBatch, batch
from trunkline.train.columns import PackedColumns, estimate, pack, presets
from trunkline.train.pairs import Pair, pairs
from trunkline.train.rows import Row, Rows, rows
from trunkline.train.selection import write_jsonl
from trunkline.train.turns import TurnSample, turns

__all__ = [
    "PackedColumns",
    "Pair",
    "Row",
    "Rows",
    "TrainBatch",
    "TurnSample",
    "batch",
    "estimate",
    "pack",
    "pairs",
    "presets",
    "rows",
    "turns",
    "write_jsonl",
]
