"""Packed columns as torch tensors, and the forward pass and loss of rows in which shared tokens stand once.

::

    for row in tree_rows(columns, device):
        mask = tree_mask(row["subtree_ends"], model.dtype)
        logits = model(row["ids"][None], position_ids=row["positions"][None], attention_mask=mask).logits[0]
        logprobs = tree_logprobs(logits, row["ids"], row["parents"])
        (policy_loss(logprobs, row, clip=(0.2, 0.2)) / rollouts).backward()
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from trunkline._internal.validation import check_float
from trunkline.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch
    from torch.nn.attention.flex_attention import BlockMask
    from typing_extensions import Buffer

_PER_TOKEN = (
    "ids",
    "positions",
    "parents",
    "subtree_ends",
    "loss_mask",
    "logprobs",
    "versions",
    "advantages",
    "gains",
    "weights",
)
"""Columns of a tree layout with one element a token."""

_FORMATS = {
    "B": "uint8",
    "?": "bool",
    "i": "int32",
    "I": "uint32",
    "l": "int64",
    "L": "uint64",
    "q": "int64",
    "Q": "uint64",
    "f": "float32",
    "d": "float64",
}
"""Torch's names of the formats that columns have."""


def _torch() -> Any:
    try:
        import torch  # noqa: PLC0415 - it takes seconds, and only its users have it
    except ImportError:
        raise ConfigError("trunkline.train.torch needs PyTorch: pip install torch") from None
    return torch


def tensors(columns: Mapping[str, Buffer], device: torch.device | str | None = None) -> dict[str, torch.Tensor]:
    """Copy columns into tensors of the same names and shapes.

    Args:
        columns: Columns of a layout, or other buffers of numbers by name.
        device: Where the tensors are to be; the CPU when None.

    Returns:
        Whole numbers as int64, columns whose name ends with ``mask`` as bool, floats as they are.

    Raises:
        ConfigError: PyTorch is not installed.
        UsageError: A column is no buffer of numbers.
    """
    return {name: _tensor(name, column, device) for name, column in columns.items()}


def _tensor(name: str, column: Buffer, device: torch.device | str | None) -> torch.Tensor:
    torch = _torch()
    try:
        view = memoryview(column)
        kind = getattr(torch, _FORMATS[view.format])
    except (TypeError, KeyError):
        raise UsageError(f"column {name!r} is {type(column).__name__}, not a buffer of numbers") from None
    # A copy that can be written to, as torch wants it.
    made = torch.frombuffer(bytearray(view), dtype=kind) if view.nbytes else torch.empty(0, dtype=kind)
    if not kind.is_floating_point:
        made = made.to(torch.bool if name.endswith("mask") else torch.int64)
    return made.reshape(view.shape).to(device)


def tree_rows(
    columns: Mapping[str, Buffer], device: torch.device | str | None = None
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the rows of a tree layout one by one, as the tensors of their columns.

    Args:
        columns: Those of ``trunkline.train.TrainBatch.tree``, or of ``pack("tree")``.
        device: Where the tensors are to be; the CPU when None.

    Returns:
        Of each row the columns with one element a token, each of shape ``[tokens of the row]`` and typed as by
        ``tensors``.

    Raises:
        ConfigError: PyTorch is not installed.
        UsageError: The columns are those of another layout.
    """
    if "subtree_ends" not in columns:
        raise UsageError("these columns have no 'subtree_ends': tree_rows takes those of TrainBatch.tree()")
    bounds = memoryview(columns["offsets"]).tolist()
    found = {name: memoryview(columns[name]) for name in _PER_TOKEN if name in columns}
    for start, end in pairwise(bounds):
        yield tensors({name: column[start:end] for name, column in found.items()}, device)


def tree_mask(subtree_ends: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Make the attention mask of a row of trees: token j sees token i where ``i <= j < subtree_ends[i]``.

    Args:
        subtree_ends: Of the row, ``[T]``.
        dtype: A float for an additive mask, 0 where a token is seen and the least finite number elsewhere; None for a
            bool mask, True where a token is seen. In transformers, ``sdpa`` takes both and ``eager`` the additive one.

    Returns:
        ``[1, 1, T, T]``, on the device of ``subtree_ends``. It is quadratic; ``tree_block_mask`` is not.

    Raises:
        UsageError: ``dtype`` is not a float.
    """
    torch = _torch()
    place = torch.arange(len(subtree_ends), device=subtree_ends.device)
    seen = (place[None, :] <= place[:, None]) & (place[:, None] < subtree_ends[None, :])
    if dtype is None or dtype == torch.bool:
        return seen[None, None]
    if not dtype.is_floating_point:
        raise UsageError(f"an additive mask needs a float dtype, not {dtype}")
    mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return mask.masked_fill_(~seen, torch.finfo(dtype).min)[None, None]


def tree_block_mask(subtree_ends: torch.Tensor) -> BlockMask:
    """Make the mask of a row of trees for ``flex_attention``, which needs a GPU to train.

    Rows should have 128 tokens or more (``max_tokens`` of the layout packs trees together): of shorter ones, torch 2.11
    could not compile flex attention for heads of 16 numbers.

    Args:
        subtree_ends: Of the row, ``[T]``, on the device of the model.

    Returns:
        A ``BlockMask`` of T x T, for ``attention_mask=`` of a model with ``attn_implementation="flex_attention"``.
    """
    torch = _torch()
    size = len(subtree_ends)

    def seen(_batch: Any, _head: Any, query: Any, key: Any) -> Any:
        return (key <= query) & (query < subtree_ends[key])

    made = torch.nn.attention.flex_attention.create_block_mask
    return made(seen, None, None, size, size, device=subtree_ends.device)


def tree_logprobs(logits: torch.Tensor, ids: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
    """Return each token's log-probability after the token before it on its path.

    Args:
        logits: Of the model over the row, ``[T, vocabulary]``, of any float type; divided by the temperature, if the
            rollouts were sampled with one. Half-precision logits are computed with in float32.
        ids: Of the row, ``[T]`` int64.
        parents: Of the row, ``[T]`` int64; -1 for none.

    Returns:
        ``[T]`` in nats, with gradients: ``log_softmax(logits[parents[j]])[ids[j]]``, and 0 where nothing comes before.

    Raises:
        UsageError: The shapes do not fit each other.
    """
    torch = _torch()
    if logits.ndim != 2 or ids.ndim != 1 or not len(logits) == len(ids) == len(parents):
        given = ", ".join(f"{name} {list(one.shape)}" for name, one in (("logits", logits), ("ids", ids)))
        raise UsageError(f"{given} and parents {list(parents.shape)} are not [T, vocabulary], [T] and [T]")
    if logits.dtype in {torch.float16, torch.bfloat16}:
        logits = logits.float()
    before = parents.clamp(min=0)
    found = logits[before, ids] - logits.logsumexp(-1)[before]
    return found.masked_fill(parents < 0, 0.0)


def policy_loss(
    logprobs: torch.Tensor,
    row: Mapping[str, torch.Tensor],
    *,
    clip: tuple[float, float] | None = None,
    old_logprobs: torch.Tensor | None = None,
) -> torch.Tensor:
    """Sum the policy-gradient loss over a row's trained tokens, each times its weight.

    With the ratio ``r = exp(logprobs - old_logprobs)`` a token's loss is ``-A r``, or with ``clip`` that of PPO
    (Schulman et al. 2017, arXiv 1707.06347): ``-min(A r, A clamp(r, 1 - low, 1 + high))``. That is linear in A for each
    sign of A. So ``advantages``, the mean over the rollouts that share the token, and ``gains``, the mean with negative
    ones as 0, make exactly the loss that these rollouts have in flat rows.

    What a loss over flat rows divides is the sum over all rows. With ``shared="repeat"``, where a token weighs as many
    rollouts as train it, divide it by

    * the sum of ``weights`` over trained tokens, for verl's ``token-mean`` and TRL's ``dapo``;
    * the number of trained rollouts, for verl's ``seq-mean-token-sum``;
    * rollouts times ``max_completion_length``, for TRL's ``dr_grpo``.

    A mean over each rollout's own tokens (verl's ``seq-mean-token-mean``, TRL's ``grpo``) weighs a shared token
    differently for each rollout, and cannot be had from a tree: train flat rows for it.

    Args:
        logprobs: Of ``tree_logprobs``, ``[T]``.
        row: The row's columns ``loss_mask``, ``weights``, ``advantages``, ``gains`` and ``logprobs``. Without ``gains``
            each token is taken to have one advantage.
        clip: How far the ratio may fall below 1 and rise above it, such as ``(0.2, 0.2)``; None does not clip.
        old_logprobs: What the ratio is to, ``[T]``; when None those of the rollouts.

    Returns:
        A scalar; 0 where nothing is trained.

    Raises:
        ConfigError: ``clip`` is no pair of numbers from 0 up.
        UsageError: ``logprobs`` are not one a token of the row.
    """
    torch = _torch()
    if logprobs.shape != row["loss_mask"].shape:
        raise UsageError(f"logprobs are {list(logprobs.shape)}, and the row is {list(row['loss_mask'].shape)}")
    trained = row["loss_mask"].bool()
    old = row["logprobs"] if old_logprobs is None else old_logprobs
    advantages, weights = row["advantages"][trained], row["weights"][trained]
    ratio = torch.exp(logprobs[trained] - old[trained].detach())
    if clip is None:
        return -(weights * advantages * ratio).sum()
    low, high = _pair(clip)
    gains = row["gains"][trained] if "gains" in row else advantages.clamp(min=0)
    return -(weights * (gains * ratio.clamp(max=1 + high) + (advantages - gains) * ratio.clamp(min=1 - low))).sum()


def _pair(clip: object) -> tuple[float, float]:
    if not isinstance(clip, tuple) or len(clip) != 2:
        raise ConfigError(f"clip is {clip!r}, expected a pair such as (0.2, 0.2)")
    low, high = clip
    return check_float("clip: low", low, 0, 1), check_float("clip: high", high, 0)
