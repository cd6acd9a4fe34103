"""Views for training: what a run's trees hold, as records. Nothing is trained here, and no verdict is passed over."""

from trunkline.train.pairs import Pair, pairs
from trunkline.train.rows import Row, Rows, rows
from trunkline.train.selection import write_jsonl
from trunkline.train.turns import TurnSample, turns

__all__ = ["Pair", "Row", "Rows", "TurnSample", "pairs", "rows", "turns", "write_jsonl"]
