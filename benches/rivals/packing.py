"""Packing as glue code does it: in numpy with one concatenation a row, and with lists that are padded as lists."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SAMPLED = 1
TYPES = {
    "input_ids": np.uint32,
    "attention_mask": np.uint8,
    "position_ids": np.uint32,
    "flags": np.uint8,
    "response_mask": np.uint8,
    "logprobs": np.float32,
    "versions": np.int32,
    "advantages": np.float32,
}


@dataclass
class Batch:
    """A forest and its tokens as numpy arrays."""

    parents: np.ndarray
    leaves: np.ndarray
    offsets: np.ndarray
    ids: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    flags: np.ndarray
    values: np.ndarray

    def columns(self) -> list[np.ndarray]:
        """In the order of the packing functions."""
        return [self.parents, self.leaves, self.offsets, self.ids, self.logprobs, self.versions, self.flags]

    def path(self, node: int) -> list[int]:
        """Nodes from the root."""
        nodes = [node]
        while self.parents[nodes[-1]] != nodes[-1]:
            nodes.append(int(self.parents[nodes[-1]]))
        return nodes[::-1]

    def index(self, leaf: int) -> np.ndarray:
        """Tokens of a path."""
        bounds = [self.offsets[node : node + 2].tolist() for node in self.path(leaf)]
        return np.concatenate([np.arange(start, end) for start, end in bounds])


def ragged(batch: Batch) -> dict[str, np.ndarray]:
    """Rows end to end."""
    rows = [batch.index(int(leaf)) for leaf in batch.leaves]
    lengths = np.array([len(row) for row in rows])
    index = np.concatenate(rows)
    mask = (batch.flags[index] == SAMPLED).astype(np.uint8)
    return {
        "offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint64),
        "ids": batch.ids[index],
        "position_ids": np.concatenate([np.arange(length, dtype=np.uint32) for length in lengths]),
        "loss_mask": mask,
        "logprobs": np.where(mask, batch.logprobs[index], np.float32(0)),
        "versions": batch.versions[index],
        "flags": batch.flags[index],
        "advantages": np.where(mask, np.repeat(batch.values, lengths), 0).astype(np.float32),
    }


def padded(batch: Batch, pad: int) -> dict[str, np.ndarray]:
    """Rectangles."""
    rows = [batch.index(int(leaf)) for leaf in batch.leaves]
    prompts = [int(np.argmax(batch.flags[row] == SAMPLED)) for row in rows]
    left, right = max(prompts), max(len(row) - prompt for row, prompt in zip(rows, prompts, strict=True))
    wide, narrow = (len(rows), left + right), (len(rows), right)
    out = {
        "input_ids": np.full(wide, pad, np.uint32),
        "attention_mask": np.zeros(wide, np.uint8),
        "flags": np.zeros(wide, np.uint8),
        "response_mask": np.zeros(narrow, np.uint8),
        "logprobs": np.zeros(narrow, np.float32),
        "versions": np.full(narrow, -1, np.int32),
        "advantages": np.zeros(narrow, np.float32),
    }
    for at, (row, prompt, value) in enumerate(zip(rows, prompts, batch.values, strict=True)):
        start, end = left - prompt, left - prompt + len(row)
        out["input_ids"][at, start:end] = batch.ids[row]
        out["attention_mask"][at, start:end] = 1
        out["flags"][at, start:end] = batch.flags[row]
        response = row[prompt:]
        mask = batch.flags[response] == SAMPLED
        out["response_mask"][at, : len(response)] = mask
        out["logprobs"][at, : len(response)] = np.where(mask, batch.logprobs[response], 0)
        out["versions"][at, : len(response)] = batch.versions[response]
        out["advantages"][at, : len(response)] = np.where(mask, value, 0)
    position_ids = np.maximum(np.cumsum(out["attention_mask"], axis=1, dtype=np.int64) - 1, 0).astype(np.uint32)
    return {**out, "position_ids": position_ids}


def padded_lists(batch: Batch, pad: int) -> dict[str, np.ndarray]:
    """Rectangles from Python lists, as padding helpers of trainers take them."""
    tokens = [column.tolist() for column in (batch.ids, batch.logprobs, batch.versions, batch.flags)]
    offsets, values = batch.offsets.tolist(), batch.values.tolist()
    rows = []
    for leaf in batch.leaves.tolist():
        bounds = [(offsets[node], offsets[node + 1]) for node in batch.path(leaf)]
        rows.append([[token for start, end in bounds for token in column[start:end]] for column in tokens])
    prompts = [flags.index(SAMPLED) for *_, flags in rows]
    left = max(prompts)
    right = max(len(row[0]) - prompt for row, prompt in zip(rows, prompts, strict=True))
    out: dict[str, list[list]] = {name: [] for name in TYPES}
    for (ids, logprobs, versions, flags), prompt, value in zip(rows, prompts, values, strict=True):
        before, after, length = left - prompt, right - (len(ids) - prompt), len(ids)
        mask = [int(flag == SAMPLED) for flag in flags[prompt:]]
        out["input_ids"].append([pad] * before + ids + [pad] * after)
        out["attention_mask"].append([0] * before + [1] * length + [0] * after)
        out["position_ids"].append([0] * before + list(range(length)) + [length - 1] * after)
        out["flags"].append([0] * before + flags + [0] * after)
        out["response_mask"].append(mask + [0] * after)
        out["logprobs"].append(
            [lp if trained else 0.0 for lp, trained in zip(logprobs[prompt:], mask, strict=True)] + [0.0] * after
        )
        out["versions"].append(versions[prompt:] + [-1] * after)
        out["advantages"].append([value if trained else 0.0 for trained in mask] + [0.0] * after)
    return {name: np.array(column, TYPES[name]) for name, column in out.items()}


def tree(batch: Batch) -> dict[str, np.ndarray]:
    """Every tree in a row of its own, each token once."""
    nodes = len(batch.parents)
    through: list[list[int]] = [[] for _ in range(nodes)]
    children: list[list[int]] = [[] for _ in range(nodes)]
    for node, parent in enumerate(batch.parents):
        if parent != node:
            children[parent].append(node)
    for rollout, leaf in enumerate(batch.leaves):
        for node in batch.path(int(leaf)):
            through[node].append(rollout)
    order, roots = [], [node for node in range(nodes) if batch.parents[node] == node]
    stack = roots[::-1]
    while stack:
        order.append(stack.pop())
        stack.extend(children[order[-1]][::-1])
    names = ("ids", "position_ids", "loss_mask", "weights", "advantages", "logprobs", "versions", "flags", "parents")
    parts: dict[str, list[np.ndarray]] = {name: [] for name in (*names, "subtree_ends")}
    lengths = np.diff(batch.offsets).astype(np.int64)
    below = lengths.copy()
    for node in reversed(range(nodes)):
        if batch.parents[node] != node:
            below[batch.parents[node]] += below[node]
    start, depth, last, total = (np.zeros(nodes, np.int64) for _ in range(4))
    place = 0
    for node in order:
        parent, length = batch.parents[node], int(lengths[node])
        root = parent == node
        place = 0 if root else place
        start[node], depth[node] = place, 0 if root else depth[parent] + lengths[parent]
        total[node] = len(through[node]) if root else total[parent]
        run = slice(int(batch.offsets[node]), int(batch.offsets[node + 1]))
        mask = batch.flags[run] == SAMPLED
        mean = np.float32(np.mean(batch.values[through[node]]))
        before = np.arange(place - 1, place + length - 1, dtype=np.int32)
        before[:1] = -1 if root else last[parent]
        place += length
        last[node] = place - 1
        parts["ids"].append(batch.ids[run])
        parts["position_ids"].append(np.arange(depth[node], depth[node] + length, dtype=np.uint32))
        parts["loss_mask"].append(mask.astype(np.uint8))
        parts["weights"].append(np.full(length, len(through[node]) / total[node], np.float32))
        parts["advantages"].append(np.where(mask, mean, np.float32(0)))
        parts["logprobs"].append(np.where(mask, batch.logprobs[run], np.float32(0)))
        parts["versions"].append(batch.versions[run])
        parts["flags"].append(batch.flags[run])
        parts["parents"].append(before)
        parts["subtree_ends"].append(np.full(length, start[node] + below[node], np.uint32))
    return {name: np.concatenate(part) for name, part in parts.items()}
