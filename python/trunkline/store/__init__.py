"""Data sets in, run files out."""

from __future__ import annotations

from trunkline.store.dataset import load_tasks
from trunkline.store.derive import rows
from trunkline.store.runfile import RunReader, RunWriter
from trunkline.store.schema import RolloutRow, TreeRow
from trunkline.store.summary import Summary

__all__ = ["RolloutRow", "RunReader", "RunWriter", "Summary", "TreeRow", "load_tasks", "rows"]
