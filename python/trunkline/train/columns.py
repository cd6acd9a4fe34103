"""Columns of numbers: what estimators and packing take and return."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from trunkline import _core
from trunkline._internal.validation import check_choice, short_repr
from trunkline.errors import ArgumentError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from typing_extensions import Buffer

    from trunkline._core import Padded, Ragged, TokenBuffer, TreePacked

Layout = Literal["padded", "ragged", "tree"]

_NAMES: Final = {
    "input_ids": "ids",
    "position_ids": "positions",
    "response_mask": "loss_mask",
}
"""Names of the core's columns that differ between layouts, and their name here."""

_ROWS: Final = ("rollouts", "weights", "prompt_lengths", "lengths", "cut_prompts", "cut_responses", "rows")
_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "padded": (
        *("input_ids", "attention_mask", "position_ids", "prompts", "responses"),
        *("response_mask", "logprobs", "advantages", "versions", "flags"),
        *_ROWS,
    ),
    "ragged": (
        *("offsets", "ids", "position_ids", "loss_mask", "logprobs", "advantages", "versions", "flags"),
        *_ROWS,
    ),
    "tree": (
        *("offsets", "ids", "position_ids", "parents", "subtree_ends", "loss_mask", "logprobs", "advantages"),
        *("gains", "weights", "versions", "flags", "rows", "last_segments", "segment_offsets", "segment_nodes"),
        *("segment_starts", "segment_ends", "segment_subtree_ends", "segment_parents", "segment_rollouts"),
        "segment_repeated",
    ),
}


class PackedColumns(Mapping[str, memoryview]):
    """Packed rollouts, by the names of their columns.

    ``columns["ids"]`` is a ``memoryview`` with a format and a shape over memory of its own: ``numpy.asarray(column)``,
    and ``torch.from_numpy`` of that, copy nothing. A column is made when it is first read, and kept.

    Attributes:
        report: What packing left out or changed: rollouts ``left_out``, ``merged`` and ``dropped``; rows with
            ``cut_prompts`` and ``cut_responses``, and ``cut_tokens`` over all; sampled tokens that are not trained as
            their log-probability is ``unknown``; tokens ``repeated`` in parts of a tree that was split.
    """

    def __init__(
        self,
        packed: Padded | Ragged | TreePacked,
        layout: Layout,
        dtype: Literal["i64"] | None,
        samples: Mapping[str, memoryview] | None,
        gains: Sequence[float] | None,
    ) -> None:
        self._packed = packed
        self._wide = dtype == "i64"
        self._names = {_NAMES.get(name, name): name for name in _COLUMNS[layout]}
        self._made: dict[str, memoryview] = {}
        self._samples = samples or {}
        self._gains = gains
        self._by_row = layout != "tree"
        if samples and self._by_row:
            self._names["samples"] = self._names.pop("rollouts")
        self._names |= {name: name for name in self._samples}
        self.report: dict[str, int] = packed.report

    def __getitem__(self, name: str) -> memoryview:
        """Return a column.

        Raises:
            ConfigError: There is no column of that name.
        """
        known = self._made.get(name)
        if known is None:
            made = self._read(name)
            known = self._made[name] = _core.to_i64(made) if self._wide else made
        return known

    def get(self, name: object, default: Any = None) -> Any:
        """Return the column of that name, or the default if there is no such column."""
        return self[str(name)] if name in self else default

    def _read(self, name: str) -> memoryview:
        if name not in self:
            raise ConfigError(f"there is no column {short_repr(name)}; there are {', '.join(self)}")
        column = self._samples.get(name)
        if name == "gains" and self._gains is not None:
            return self._gains_of(self._gains)
        if column is None:
            read: memoryview = getattr(self._packed, self._names[name])
            return read
        if self._by_row:
            return memoryview(array("I", [column[sample] for sample in self["samples"]]))
        return memoryview(array("I", column))

    def _gains_of(self, gains: Sequence[float]) -> memoryview:
        """Return gains that are given per node on the tokens that are trained."""
        column = array("f", bytes(4 * len(self["ids"])))
        rows = zip(self["offsets"], self["segment_offsets"], self["segment_offsets"][1:], strict=False)
        starts, ends, nodes = self["segment_starts"], self["segment_ends"], self["segment_nodes"]
        for first, begin, end in rows:
            for segment in range(begin, end):
                for at in range(first + starts[segment], first + ends[segment]):
                    column[at] = gains[nodes[segment]] * self["loss_mask"][at]
        return memoryview(column)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def unpack(self, number: int) -> TokenBuffer:
        """Return the tokens of a row, or of a sample of a tree layout, as they were: ids, log-probs, versions, flags.

        Raises:
            ArgumentError: There is no such row, or the sample was not packed.
        """
        return self._packed.unpack(number)

    def __repr__(self) -> str:
        return f"<PackedColumns {', '.join(self)}>"


_TYPES: Final = {
    **dict.fromkeys(("group", "subgroup", "agent", "anchor", "trajectory", "step", "tokens"), "u32"),
    **dict.fromkeys(("parents", "leaves", "ids", "rollouts", "splits"), "u32"),
    **dict.fromkeys(("rewards", "step_rewards", "values"), "f64"),
    **dict.fromkeys(("masked", "selected", "kept", "flags", "mask"), "u8"),
    "offsets": "u64",
    "logprobs": "f32",
    "versions": "i32",
}
"""The type of each column that is given."""


def _named(call: Callable[..., Any], columns: Mapping[str, Any], **options: Any) -> Any:
    """Call the core; an error about a column that cannot be read says which column it is."""
    given = {name: column for name, column in columns.items() if column is not None}
    try:
        return call(**given, **options)
    except (ArgumentError, TypeError) as problem:
        for name, column in given.items():
            _check(name, column)
        # The notes of an error of a type say which argument it is.
        raise ArgumentError("; ".join((str(problem), *getattr(problem, "__notes__", ())))) from None


def _check(name: str, column: Any) -> None:
    """Refuse a column that cannot be read as its type."""
    # Values may also be 32-bit floats.
    for kind in ("f64", "f32") if name == "values" else (_TYPES[name],) if name in _TYPES else ():
        try:
            _core.check_column(column, kind)
        except (ArgumentError, TypeError) as problem:
            fault = str(problem)
        else:
            return
    if name in _TYPES:
        raise ArgumentError(f"{name}: {fault}")


def presets() -> dict[str, dict[str, str | float | bool]]:
    """Return every estimator by name: where its values land (``lands``: ``rows`` or ``nodes``) and its options.

    A preset named after a framework computes what that framework computes; ``docs/reference/estimators.md`` gives the
    source of each formula and says what the options mean.
    """
    return _core.presets()


def estimate(
    preset: str,
    rewards: Buffer | Sequence[float],
    *,
    group: Buffer | Sequence[int] | None = None,
    subgroup: Buffer | Sequence[int] | None = None,
    agent: Buffer | Sequence[int] | None = None,
    anchor: Buffer | Sequence[int] | None = None,
    trajectory: Buffer | Sequence[int] | None = None,
    step: Buffer | Sequence[int] | None = None,
    step_rewards: Buffer | Sequence[float] | None = None,
    masked: Buffer | Sequence[int] | None = None,
    selected: Buffer | Sequence[int] | None = None,
    tokens: Buffer | Sequence[int] | None = None,
    parents: Buffer | Sequence[int] | None = None,
    leaves: Buffer | Sequence[int] | None = None,
    **options: str | float | bool,
) -> tuple[memoryview, memoryview]:
    """Compute advantages from arrays of one's own. A run needs none of this: ``trunkline.train.batch`` takes it.

    All columns have one element a row (a rollout, or a step of one), but for ``parents``, which has one a node.

    Args:
        preset: A key of ``presets``.
        rewards: Rewards (f64), -1e100 to 1e100; NaN is unscored, gives NaN and is in no baseline.
        group: The task (u32, any numbers). Left out: the root that the row's leaf is under.
        subgroup: The initial chain that a rollout was expanded for (u32).
        agent: The agent that acted (u32).
        anchor: What was observed before a step (u32): equal numbers for equal observations.
        trajectory: The rollout that a row is part of (u32).
        step: Number of the step (u32), never smaller than in an earlier row of the trajectory.
        step_rewards: Reward of each step (f64).
        masked: 1 (u8 or bool) for rows that train nothing.
        selected: 1 (u8 or bool) for rollouts that will be trained on, for TreeRL's damping.
        tokens: Trained tokens of each row (u32), for whitening.
        parents: Per node its parent (u32), smaller than the node; a root's is itself.
        leaves: Per row the node it ends at (u32).
        options: Options of the preset.

    Returns:
        Advantages (f64) of rows, or of nodes where ``presets()[preset]["lands"]`` is ``"nodes"``; and 1 (u8) for those
        with something to train on. NaN where nothing was scored.

    Raises:
        ArgumentError: Names the column, option, row or node that does not fit, and what there is instead.
    """
    columns = {"rewards": rewards, "group": group, "subgroup": subgroup, "agent": agent, "anchor": anchor}
    columns |= {"trajectory": trajectory, "step": step, "step_rewards": step_rewards, "masked": masked}
    columns |= {"selected": selected, "tokens": tokens, "parents": parents, "leaves": leaves}
    found: tuple[memoryview, memoryview] = _named(partial(_core.estimate, preset), columns, **options)
    return found


_PER_LAYOUT: Final = {
    "padded": {"merge", "max_prompt", "max_response", "long_prompt", "long_response", "pad"},
    "ragged": {"merge", "max_prompt", "max_response", "long_prompt", "long_response"},
    "tree": {"weights", "max_tokens", "oversize"},
}


def packed(
    layout: Layout,
    columns: Mapping[str, Any],
    *,
    dtype: Literal["i64"] | None,
    samples: Mapping[str, memoryview] | None = None,
    gains: Sequence[float] | None = None,
    **options: Any,
) -> PackedColumns:
    """Pack columns named as the core's; ``samples`` are columns of what is packed, by name, ``gains`` are of nodes."""
    if dtype is not None:
        check_choice("dtype", dtype, "i64")
    calls: dict[str, Callable[..., Any]] = {
        "padded": _core.pack_padded,
        "ragged": _core.pack_ragged,
        "tree": _core.pack_tree,
    }
    return PackedColumns(_named(calls[layout], columns, **options), layout, dtype, samples, gains)


def pack(
    layout: Layout,
    *,
    ids: Buffer | Sequence[int],
    offsets: Buffer | Sequence[int],
    mask: Buffer | Sequence[int],
    logprobs: Buffer | Sequence[float] | None = None,
    versions: Buffer | Sequence[int] | None = None,
    parents: Buffer | Sequence[int] | None = None,
    leaves: Buffer | Sequence[int] | None = None,
    values: Buffer | Sequence[float] | None = None,
    kept: Buffer | Sequence[int] | None = None,
    per: Literal["rollout", "node", "token"] = "rollout",
    masked: Buffer | Sequence[int] | None = None,
    splits: Buffer | Sequence[int] | None = None,
    unknown: Literal["error", "mask"] = "error",
    dtype: Literal["i64"] | None = None,
    **options: str | float | bool | None,
) -> PackedColumns:
    """Pack arrays of one's own as ``TrainBatch`` packs a run. N nodes, R rollouts, T tokens.

    Args:
        layout: ``padded``, ``ragged`` or ``tree``: the methods of ``TrainBatch`` say what they have.
        ids: Token ids (u32, T), node after node.
        offsets: Node n has the tokens ``offsets[n]`` to ``offsets[n + 1]`` (u64, N + 1).
        mask: 1 (u8 or bool, T) on tokens that the model sampled.
        logprobs: Log-probabilities in nats (f32, T); NaN where not known. 0 if left out.
        versions: Weight versions (i32, T); -1 if left out.
        parents: Per node its parent (u32, N), a smaller number; a root's is itself. If left out, nodes are rollouts.
        leaves: Per rollout the node it ends at (u32, R); every node if left out.
        values: Advantages (f64 or f32), one for each ``per``.
        kept: 1 (u8 or bool) for values to train with, as ``estimate`` returns it.
        per: What has one value each: a ``rollout``, a ``node`` or a ``token``.
        masked: 1 (u8 or bool, R) for rollouts of which nothing is trained; they keep their row.
        splits: Per rollout the last node of its prompt (u32, R). If left out, a prompt ends before the first sampled
            token.
        unknown: Sampled tokens without a finite log-probability are an ``error``, or leave the loss (``mask``).
        dtype: ``i64`` makes integer columns 64 bits wide.
        options: Options of the layout, as of the method of ``TrainBatch``; and for ``tree`` ``weights``:
            ``count``, ``share`` or ``once``.

    Raises:
        ArgumentError: Names the column, node, rollout or option that does not fit, and what there is instead.
        ConfigError: There is no such layout or option.
    """
    check_choice("layout", layout, *_COLUMNS)
    for name in options.keys() - _PER_LAYOUT[layout]:
        known = ", ".join(sorted(_PER_LAYOUT[layout]))
        raise ConfigError(f"pack: the layout {layout} has no option {short_repr(name)}; it has {known}")
    for name, column in {"mask": mask, "offsets": offsets, "parents": parents}.items():
        if column is not None or name != "parents":
            _check(name, column)
    if any(mark not in (0, 1) for mark in (mask if isinstance(mask, list | tuple) else bytes(mask))):
        raise ArgumentError("mask must be 1 on tokens that were sampled and 0 elsewhere")
    tokens = {"ids": ids, "logprobs": logprobs, "versions": versions, "flags": mask}
    run = _named(_core.TokenBuffer, tokens)
    columns = {"offsets": offsets, "ids": run.ids, "logprobs": run.logprobs, "versions": run.versions}
    columns |= {"flags": run.flags, "values": values, "kept": kept, "masked": masked, "splits": splits}
    nodes = range(len(cast("Sequence[int]", offsets)) - 1)
    columns["parents"] = nodes if parents is None else parents
    columns["leaves"] = range(len(columns["parents"])) if leaves is None else leaves
    settings: dict[str, Any] = {"per": per, "unknown": unknown, **options}
    return packed(layout, columns, dtype=dtype, **settings)
