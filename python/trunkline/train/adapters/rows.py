"""Rows of a trainer: of its dataset as tasks, and of a batch as lists."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trunkline._core import harvest, pack_ragged
from trunkline.types import Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trunkline.train.batch import TrainBatch
    from trunkline.tree.views import Tree


class SampleRow(NamedTuple):
    """Token ids of a prompt and its response; per token of the response, loss mask, log-probability and advantage."""

    prompt: list[int]
    response: list[int]
    mask: list[int]
    logprobs: list[float]
    advantages: list[float]


def masked_row(filler: int) -> SampleRow:
    """The row of a rollout that trains nothing: one token."""
    return SampleRow([filler], [filler], [0], [0.0], [0.0])


def trained_rows(batch: TrainBatch, **options: Any) -> dict[tuple[int, int], list[SampleRow]]:
    """Return the rows that train something, by tree and rollout: more than one where a prompt forked.

    ``options`` are those of ``TrainBatch.ragged``.
    """
    columns = batch.ragged(**options)
    advantages: Any = columns["advantages"].tolist()
    found: dict[tuple[int, int], list[SampleRow]] = {}
    places = columns["rows"].tolist()
    rows = list(_rows(columns, columns["loss_mask"].tolist(), advantages))
    for place, key in zip(places, zip(batch.groups, batch.rollouts, strict=True), strict=True):
        if place >= 0 and any(rows[place].mask):
            found.setdefault(key, []).append(rows[place])
    return found


def sampled_rows(tree: Tree) -> dict[int, list[SampleRow]]:
    """Return the rows of every rollout of a tree, whatever its reward: their mask is 1 on every sampled token.

    Advantages are 0.
    """
    forest = harvest([tree.core])
    leaves, rollouts = [*forest.segment_leaves, *forest.leaves], [*forest.segment_rollouts, *range(tree.core.rollouts)]
    tokens = (forest.ids, forest.logprobs, forest.versions, forest.flags)
    packed = pack_ragged(forest.parents, leaves, forest.offsets, *tokens, unknown="mask")
    columns = {name: getattr(packed, name) for name in ("offsets", "ids", "logprobs", "prompt_lengths")}
    mask = packed.loss_mask.tolist()
    found: dict[int, list[SampleRow]] = {}
    for rollout, row in zip(rollouts, _rows(columns, mask, [0.0] * len(mask)), strict=True):
        found.setdefault(rollout, []).append(row)
    return found


def _rows(columns: Any, mask: list[int], advantages: list[float]) -> Iterable[SampleRow]:
    ids, logprobs = columns["ids"].tolist(), columns["logprobs"].tolist()
    offsets, prompts = columns["offsets"].tolist(), columns["prompt_lengths"].tolist()
    for start, end, prompt in zip(offsets, offsets[1:], prompts, strict=False):
        part = slice(start + prompt, end)
        yield SampleRow(ids[start : part.start], ids[part], mask[part], logprobs[part], advantages[part])


def known(reward: float) -> float | None:
    """Return a reward; None for an unscored one."""
    return None if math.isnan(reward) else reward


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
