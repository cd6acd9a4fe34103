"""Tasks from rows of a trainer's dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from trunkline.types import Task

if TYPE_CHECKING:
    from collections.abc import Mapping


def row_task(id: str, messages: Any, judged: Any, metadata: Mapping[str, Any]) -> Task:
    """Make a task; ``judged`` is what the row has for a reward function, with the answers as ``ground_truth``."""
    judged = plain(judged)
    truth = judged.get("ground_truth") if isinstance(judged, dict) else None
    truths = truth if isinstance(truth, list) else [] if truth is None else [truth]
    reference = tuple(str(one) for one in truths if one is not None)
    return Task(id=id, messages=plain(messages), reference=reference, metadata=plain(dict(metadata)))


def plain(value: Any) -> Any:
    """A value as JSON has it: arrays and tensors as lists, other objects as their text."""
    return msgspec.to_builtins(
        value, str_keys=True, enc_hook=lambda one: one.tolist() if hasattr(one, "tolist") else str(one)
    )
