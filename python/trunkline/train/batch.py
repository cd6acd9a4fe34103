"""Batches: the rollouts of a run as arrays of tokens, in the layouts that trainers read."""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from trunkline._core import SAMPLED, TURN, drift_of, harvest, to_nodes
from trunkline._internal.text import quoted
from trunkline._internal.validation import check_bool, check_choice
from trunkline.errors import UsageError
from trunkline.train.advantages import Advantages, TurnValue
from trunkline.train.columns import packed
from trunkline.train.selection import Rules, again, has_ids, turns_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from trunkline.llm.dialects.base import Dialect
    from trunkline.scoring.filters.base import Filter
    from trunkline.train.advantages import Estimator
    from trunkline.train.columns import Layout, PackedColumns
    from trunkline.train.selection import Chosen
    from trunkline.tree.views import Tree

NONE: Final = 2**32 - 1
"""In a column of nodes: none."""

Long = Literal["error", "cut", "drop"]


class TrainBatch:
    """Rollouts of a run with their advantages, to be laid out as a trainer reads them.

    A sample is a rollout that was selected; one whose prompt forked from what the tree holds (re-tokenised or compacted
    text) is a sample for each stretch up to a fork, and one for the rest. Samples stand tree by tree, rollout by
    rollout. In ``by_turn`` a sample is one model turn.

    Every layout has, where a token was sampled and is trained, its loss mask 1, the log-probability it was sampled with
    and an advantage; elsewhere these are 0. Shapes: S samples, B rows, T tokens of all rows.

    Attributes:
        groups: Per sample the number of its tree among those that were given (u32, S).
        rollouts: Per sample its rollout, as numbered in its tree (u32, S).
        nodes: Per sample the node it ends at, as numbered in its tree (u32, S).
        report: Counts: ``groups`` that were given, ``groups_left_out`` because a filter or ``on_failed`` dropped
            them; ``rollouts`` of the others, those ``dropped`` by filters, and those ``untrained``: masked, without an
            outcome, unscored, or without an advantage; ``samples``, and how many of them are ``forks``.
    """

    def __init__(
        self,
        flat: Mapping[str, Any],
        tree: Mapping[str, Any],
        samples: _Samples,
        settings: _Settings,
        report: dict[str, int],
        turns: Callable[[], TrainBatch] | None = None,
    ) -> None:
        self._flat = flat
        self._tree = tree
        self._settings = settings
        self._turns = turns
        self.groups = memoryview(samples.groups)
        self.rollouts = memoryview(samples.rollouts)
        self.nodes = memoryview(samples.nodes)
        self.report = report

    def __len__(self) -> int:
        return len(self.groups)

    def padded(
        self,
        *,
        merge: bool = False,
        max_prompt: int | None = None,
        max_response: int | None = None,
        long_prompt: Long = "error",
        long_response: Long = "error",
        pad: int = 0,
        dtype: Literal["i64"] | None = None,
    ) -> PackedColumns:
        """Lay samples out as rectangles: prompts padded on the left to P, responses on the right to R.

        Columns: ``ids``, ``attention_mask`` (1 on tokens), ``positions`` [B, P + R]; ``prompts`` [B, P]; ``responses``,
        ``loss_mask``, ``logprobs``, ``advantages``, ``versions`` (of the weights; -1 where not sampled or not known),
        ``flags`` [B, R]; of rows [B] ``groups``, ``rollouts``, ``samples`` (numbers in this batch; of a merged row the
        first), ``weights`` (multiply the row's loss by it), ``prompt_lengths``, ``lengths`` (prompt and response),
        ``cut_prompts``, ``cut_responses`` (tokens cut off); and ``rows`` [S], the row of each sample, -1 for none.
        Types: f32 ``logprobs`` (nats), ``advantages``, ``weights``; u8 masks and flags; i32 ``versions``, ``rows``; u32
        others. A side of 0 makes a column one-dimensional and empty.

        Args:
            merge: Make one row of samples that end at one node, with their number as its weight and the mean of their
                advantages.
            max_prompt: Most tokens of a prompt; P is the longest prompt where not given.
            max_response: Most tokens of a response; likewise.
            long_prompt: A longer prompt is an ``error``, is ``cut`` on the left, or its row is ``drop``ped.
            long_response: A longer response is an ``error``, is ``cut`` on the right, or its row is ``drop``ped.
            pad: The token id beside the rows.
            dtype: ``i64`` makes integer columns 64 bits wide, as torch indexes with.

        Raises:
            ArgumentError: A row is longer than a limit, or a log-probability of a trained token is not known.
        """
        fit = {"merge": merge, "max_prompt": max_prompt, "max_response": max_response}
        return self._packed("padded", dtype, **fit, long_prompt=long_prompt, long_response=long_response, pad=pad)

    def ragged(
        self,
        *,
        merge: bool = False,
        max_prompt: int | None = None,
        max_response: int | None = None,
        long_prompt: Long = "error",
        long_response: Long = "error",
        dtype: Literal["i64"] | None = None,
    ) -> PackedColumns:
        """Lay samples out end to end: row i has the tokens ``offsets[i]`` to ``offsets[i + 1]``.

        Columns: ``offsets`` (u64, [B + 1], ``cu_seqlens``); ``ids``, ``positions``, ``loss_mask``, ``logprobs``,
        ``advantages``, ``versions``, ``flags`` [T]; and those of rows and samples, types, arguments and errors of
        ``padded``.
        """
        fit = {"merge": merge, "max_prompt": max_prompt, "max_response": max_response}
        return self._packed("ragged", dtype, **fit, long_prompt=long_prompt, long_response=long_response)

    def tree(
        self,
        *,
        max_tokens: int | None = None,
        oversize: Literal["error", "split"] = "error",
        dtype: Literal["i64"] | None = None,
    ) -> PackedColumns:
        """Lay trees out so that what samples share stands once, depth first.

        Row i has the tokens ``offsets[i]`` to ``offsets[i + 1]`` (u64, [B + 1]); places are counted from the first
        token of the row. Token j attends to token i of its row if and only if ``i <= j < subtree_ends[i]``.

        Columns [T]: ``ids`` u32, ``positions`` u32 (tokens before it on its path), ``parents`` i32 (the token before it
        on its path, -1 for none), ``subtree_ends`` u32, ``loss_mask`` u8, ``logprobs`` f32, ``advantages`` f32 (the
        mean over the samples that train the token), ``weights`` f32 (multiply the token's loss by it: how many samples
        train the token; 1 with ``shared="once"``; 0 where it is repeated), ``gains`` f32 (the part of ``advantages``
        from those above 0: the mean of ``max(advantage, 0)``), ``versions`` i32, ``flags`` u8. Of samples [S]:
        ``groups``, ``rollouts`` u32, ``rows`` i32, ``last_segments`` i32 (-1 for none). Of segments, each what one node
        has in a row, counted from the first of the row: ``segment_offsets`` (u64, [B + 1]), ``segment_starts``,
        ``segment_ends``, ``segment_subtree_ends``, ``segment_rollouts`` (samples that pass) u32, ``segment_parents``
        i32, ``segment_nodes`` u32 (nodes counted through all trees), ``segment_repeated`` u8.

        The weighted sum of losses is that of flat rows wherever a loss is linear in the advantage (Tree Training, arXiv
        2511.00413). A clipped ratio is linear for each sign: take ``gains`` for one and ``advantages - gains`` for the
        other, as ``trunkline.train.torch.policy_loss`` does.

        Args:
            max_tokens: Most tokens of a row, which trees fill first-fit decreasing; if left out each tree is a row.
            oversize: A tree with more tokens is an ``error``, or is ``split`` between nodes, ancestors repeated.
            dtype: ``i64`` makes integer columns 64 bits wide.

        Raises:
            ArgumentError: A path, or a tree that is not to be split, has more tokens than a row; or a log-probability
                of a trained token is not known.
        """
        weights = "once" if self._settings.once else "count"
        return self._packed("tree", dtype, weights=weights, max_tokens=max_tokens, oversize=oversize)

    def by_turn(self) -> TrainBatch:
        """Return a batch whose samples are single model turns: what stands before a turn is its prompt.

        With ``shared="once"`` a turn that several rollouts share is one sample with their mean advantage.
        """
        return self if self._turns is None else self._turns()

    def _packed(self, layout: Layout, dtype: Literal["i64"] | None, **options: Any) -> PackedColumns:
        columns = dict(self._tree if layout == "tree" else self._flat)
        gains = columns.pop("gains", None)
        settings = {"unknown": self._settings.unknown, "keep_masked": self._settings.keep_masked}
        samples = {"groups": self.groups, "rollouts": self.rollouts}
        return packed(layout, columns, dtype=dtype, samples=samples, gains=gains, **settings, **options)


def batch(
    run: Iterable[Tree],
    *,
    estimator: Estimator,
    shared: Literal["repeat", "once"],
    censored: Literal["mask", "keep"] | None = None,
    on_failed: Literal["mask", "drop_group"] = "mask",
    filters: Sequence[Filter] = (),
    dialect: str | Dialect = "native",
    unknown: Literal["error", "mask"] = "error",
    keep_masked: bool = False,
    allow_selected: bool = False,
    **options: str | float | bool,
) -> TrainBatch:
    """Take the rollouts of a run as arrays of tokens, with their advantages.

    All trees are held in memory. Rollouts that filters dropped are left out, and so are groups that a filter broke on,
    which is logged.

    Args:
        run: A run, or trees: each is a group.
        estimator: A preset of ``trunkline.train.presets``, or a function of the trajectories of one group
            that count (a list of ``trunkline.Trajectory``) that returns an advantage for each, None for none.
        shared: What the loss is where rollouts share a token. ``repeat``: the token counts for each rollout that trains
            it, as where every rollout is a row of its own. ``once``: it counts once, with their mean advantage; in flat
            layouts it is trained in the first row that has it, and is part of the prompt of later ones.
        censored: ``mask`` or ``keep`` for rollouts that were cut off; a group that has such is refused without it.
        on_failed: ``mask`` trains nothing of rollouts that broke, ``drop_group`` leaves their groups out.
        filters: Filters that judge every group beside those of the run; nothing is written to the trees.
        dialect: How these filters read turns: the agent's dialect.
        unknown: A trained token whose log-probability is not known is an ``error``, or leaves the loss (``mask``).
        keep_masked: Whether rollouts that are not trained have a row, with a loss mask of 0.
        allow_selected: Take also groups of which tries were asked again because of their result (``retry``).
        options: Options of the preset.

    Raises:
        ConfigError: A setting has a value it cannot have.
        ArgumentError: The estimator does not take these options or rewards.
        UsageError: A trained turn, or a message it was asked with, has no token ids; or a group has rollouts that were
            cut off, and ``censored`` is not said; or tries that were asked again because of their result.
    """
    check_choice("shared", shared, "repeat", "once")
    check_choice("unknown", unknown, "error", "mask")
    check_bool("keep_masked", keep_masked)
    trees = list(again(run))
    advantages = Advantages(
        trees, Rules(censored, on_failed, filters, dialect, allow_selected).check(), estimator, options
    )
    for tree, rollouts in zip(trees, advantages.rollouts, strict=True):
        _check_ids(tree, rollouts)
    return _Builder(trees, advantages, _Settings(shared == "once", unknown, keep_masked)).rollouts()


def _check_ids(tree: Tree, rollouts: Iterable[Chosen]) -> None:
    """Refuse a tree in which the token ids of a trained turn, or of its prompt, are not known."""
    core = tree.core
    if core.tokens()[-1]:
        return
    known = [True]
    for node, parent in enumerate(harvest([core]).parents):
        if node:
            known.append(has_ids(core, node, before=known[parent]))
    for chosen in rollouts:
        for node in turns_of(tree, chosen.rollout) if chosen.trained else ():
            if not known[node] and core.node(node).generated != 0:
                part = (
                    "has no token ids" if core.tokens_of(node) is None else "was asked with messages without token ids"
                )
                raise UsageError(
                    f"task {quoted(tree.task.id)}: turn {node} of rollout {chosen.rollout} {part}, so it "
                    "cannot be trained: give the LLM tokens=tl.TokenMode(), or take the text with tl.train.turns"
                )


class _Settings(NamedTuple):
    once: bool
    unknown: Literal["error", "mask"]
    keep_masked: bool


class _Samples:
    """Samples as columns; ``values`` and ``kept`` are those of their rollouts or turns."""

    def __init__(self) -> None:
        self.groups, self.rollouts, self.nodes = array("I"), array("I"), array("I")
        self.leaves, self.splits = array("I"), array("I")
        self.values, self.kept = array("d"), array("B")

    def add(self, group: int, chosen: int, root: int, leaf: int, value: TurnValue, split: int = NONE) -> None:
        self.groups.append(group)
        self.rollouts.append(chosen)
        self.nodes.append(leaf - root)
        self.leaves.append(leaf)
        self.splits.append(split)
        self.values.append(value.advantage)
        self.kept.append(value.trained)


class _Builder:
    """Builds batches of the rollouts, and of the turns, of trees side by side."""

    def __init__(self, trees: list[Tree], advantages: Advantages, settings: _Settings) -> None:
        self._trees = trees
        self._advantages = advantages
        self._settings = settings
        self._forest = harvest([tree.core for tree in trees])
        self._parents, self._kinds = self._forest.parents, self._forest.kinds
        self._forks: dict[int, list[int]] = {}
        for rollout, leaf in zip(self._forest.segment_rollouts, self._forest.segment_leaves, strict=True):
            self._forks.setdefault(rollout, []).append(leaf)

    def rollouts(self) -> TrainBatch:
        """Return the batch whose samples are rollouts."""
        samples, paths = _Samples(), list(self._paths())
        by_sample = not (self._advantages.by_turn or self._advantages.by_node)
        turns: list[dict[int, TurnValue]] = []
        for group, chosen, leaf in paths:
            if by_sample:
                acts = any(self._kinds[node] == TURN for node in self._up(leaf))
                value = self._advantages.of(group, chosen, 0, leaf) if acts else _UNTRAINED
            else:
                turns.append(dict(self._turn_values(group, chosen, leaf)))
                value = TurnValue(0.0, any(one.trained for one in turns[-1].values()))
            samples.add(group, chosen.rollout, self._advantages.roots[group], leaf, value)
        shape = self._columns() | {"leaves": samples.leaves}
        if by_sample and not self._settings.once:
            flat = tree = shape | {"values": samples.values, "kept": samples.kept, "per": "rollout"}
        else:
            values, kept, gains = self._node_values(samples, turns)
            by_node = {"values": values, "kept": kept, "per": "node"}
            tree = shape | by_node | {"masked": bytes(1 - kept for kept in samples.kept)}
            flat = tree
            if self._settings.once:
                flat = tree | self._first_rows(samples, kept)
            elif self._advantages.by_turn:
                flat = self._unshared(paths, turns) | {"masked": tree["masked"]}
                tree |= {"gains": gains}
        trained = {
            sample[:2] for sample in zip(samples.groups, samples.rollouts, samples.kept, strict=True) if sample[2]
        }
        return TrainBatch(flat, tree, samples, self._settings, self._report(samples, len(trained)), self._by_turn)

    def _columns(self) -> dict[str, Any]:
        forest = self._forest
        tokens = {"ids": forest.ids, "logprobs": forest.logprobs, "versions": forest.versions, "flags": forest.flags}
        return {"parents": self._parents, "offsets": forest.offsets, **tokens}

    def _paths(self) -> Iterator[tuple[int, Chosen, int]]:
        """Yield the group, the rollout and the last node of every sample."""
        leaves, first = self._forest.leaves, 0
        for group, tree in enumerate(self._trees):
            for chosen in self._advantages.rollouts[group]:
                number = first + chosen.rollout
                for leaf in (*self._forks.get(number, ()), leaves[number]):
                    yield group, chosen, leaf
            first += tree.core.rollouts

    def _up(self, leaf: int) -> Iterator[int]:
        """Yield the nodes from a leaf up to its root, which has no tokens and is left out."""
        node = leaf
        while self._parents[node] != node:
            yield node
            node = self._parents[node]

    def _turn_values(self, group: int, chosen: Chosen, leaf: int) -> Iterator[tuple[int, TurnValue]]:
        """Yield the turns of a sample, root first, with their values."""
        root = self._advantages.roots[group]
        places = {root + node: place for place, node in enumerate(turns_of(self._trees[group], chosen.rollout))}
        for node in reversed([node for node in self._up(leaf) if self._kinds[node] == TURN]):
            yield node, self._advantages.of(group, chosen, places[node], node - root)

    def _node_values(
        self, samples: _Samples, turns: list[dict[int, TurnValue]]
    ) -> tuple[Sequence[float], Sequence[int], array[float] | None]:
        """Return each node's mean advantage over the rollouts that train it, whether it is trained, and its gains.

        Gains, the means of what is above 0, are None where they are worked out of the advantages.
        """
        advantages = self._advantages
        if advantages.by_node:
            trained = (
                kept and not math.isnan(value) for value, kept in zip(advantages.values, advantages.kept, strict=True)
            )
            return advantages.values, bytes(trained), None
        if not advantages.by_turn:
            return *to_nodes(samples.values, self._parents, samples.leaves, kept=samples.kept), None
        nodes = len(self._parents)
        sums, gains, kept = array("d", bytes(8 * nodes)), array("d", bytes(8 * nodes)), bytearray(nodes)
        counts = array("I", bytes(4 * nodes))
        for sample, worth in enumerate(turns):
            for node, value in worth.items() if samples.kept[sample] else ():
                sums[node] += value.advantage
                gains[node] += max(value.advantage, 0.0)
                kept[node] |= value.trained
                # A tree weighs a token by the rollouts that are trained at all, also where this turn of one is not.
                counts[node] += value.trained or not self._settings.once
        for node, count in enumerate(counts):
            sums[node] /= max(1, count)
            gains[node] /= max(1, count)
        return sums, kept, gains

    def _first_rows(self, samples: _Samples, kept: Sequence[int]) -> dict[str, Any]:
        """Return the samples that are rows, and their prompts: each token is trained in the first row that has it."""
        seen = bytearray(len(self._parents))
        rows, splits = array("I"), array("I")
        for sample, leaf in enumerate(samples.leaves):
            split = NONE
            if samples.kept[sample]:
                new = []
                for node in self._up(leaf):
                    if seen[node]:
                        split = node
                        break
                    new.append(node)
                    seen[node] = 1
                if not any(kept[node] and self._kinds[node] == TURN for node in new):
                    splits.append(split)
                    continue
                # What was observed since belongs to the prompt too.
                while split != NONE and len(new) > 1 and self._kinds[new[-1]] != TURN:
                    split = new.pop()
            splits.append(split)
            rows.append(sample)
        return {"rollouts": rows, "splits": splits}

    def _unshared(self, paths: list[tuple[int, Chosen, int]], turns: list[dict[int, TurnValue]]) -> dict[str, Any]:
        """Return the forest in which every sample has nodes of its own, since its turns have values of their own."""
        columns = self._columns()
        offsets = columns["offsets"]
        parents, ends, leaves = array("I"), array("Q", [0]), array("I")
        values, kept = array("d"), array("B")
        tokens = {name: array(columns[name].format) for name in ("ids", "logprobs", "versions", "flags")}
        for (_, _, leaf), worth in zip(paths, turns, strict=True):
            first = len(parents)
            # A sample without tokens still has a node.
            for node in reversed(list(self._up(leaf)) or [leaf]):
                parents.append(max(first, len(parents) - 1))
                for name, column in tokens.items():
                    column.frombytes(columns[name][offsets[node] : offsets[node + 1]].cast("B"))
                ends.append(len(tokens["ids"]))
                value = worth.get(node, _UNTRAINED)
                values.append(value.advantage)
                kept.append(value.trained)
            leaves.append(len(parents) - 1)
        shape = {"parents": parents, "leaves": leaves, "offsets": ends, **tokens}
        return shape | {"values": values, "kept": kept, "per": "node"}

    def _by_turn(self) -> TrainBatch:
        """Return the batch whose samples are turns."""
        samples = _Samples()
        shared: dict[object, tuple[int, int, list[tuple[Chosen, TurnValue]]]] = {}
        rollouts: set[tuple[int, int]] = set()
        advantages = self._advantages
        for group, tree in enumerate(self._trees):
            for chosen in advantages.rollouts[group]:
                # All of them: a prompt that was realigned leaves turns before it out of the rollout's row.
                for place, turn in enumerate(turns_of(tree, chosen.rollout)):
                    node, value = advantages.roots[group] + turn, advantages.of(group, chosen, place, turn)
                    key = node if self._settings.once else (node, chosen.rollout)
                    shared.setdefault(key, (node, group, []))[2].append((chosen, value))
                    if value.trained:
                        rollouts.add((group, chosen.rollout))
        for node, group, found in shared.values():
            trained = [value.advantage for _, value in found if value.trained]
            value = TurnValue(math.fsum(trained) / max(1, len(trained)), bool(trained))
            chosen = next((one for one, value in found if value.trained), found[0][0])
            before = self._parents[node]
            # Below a root a forked prompt stands before the turn in its own node.
            split = NONE if self._parents[before] == before else before
            samples.add(group, chosen.rollout, self._advantages.roots[group], node, value, split)
        columns = self._columns() | {"leaves": samples.leaves, "splits": samples.splits, "flags": self._own_flags()}
        columns |= {"values": samples.values, "kept": samples.kept, "per": "rollout"}
        return TrainBatch(columns, columns, samples, self._settings, self._report(samples, len(rollouts)))

    def _own_flags(self) -> memoryview:
        """Return the flags of all tokens, where a turn whose prompt drifted has sampled only what it said itself."""
        # A copy: the columns of rollouts have these flags, too.
        flags, offsets = memoryview(bytearray(self._forest.flags)), self._forest.offsets
        for group, tree in enumerate(self._trees):
            for node, kind in enumerate(tree.core.shape()[1]):
                if kind == TURN and drift_of(tree.core, node) is not None:
                    place = self._advantages.roots[group] + node
                    own = tree.core.tokens_of(node)
                    for at in range(offsets[place], offsets[place + 1] - (0 if own is None else len(own))):
                        flags[at] &= ~SAMPLED
        return flags

    def _report(self, samples: _Samples, trained: int) -> dict[str, int]:
        pairs = list(zip(self._trees, self._advantages.rollouts, strict=True))
        left = [(tree, rollouts) for tree, rollouts in pairs if rollouts or not tree.core.rollouts]
        chosen = sum(len(rollouts) for _, rollouts in left)
        return {
            "groups": len(pairs),
            "groups_left_out": len(pairs) - len(left),
            "rollouts": sum(tree.core.rollouts for tree, _ in left),
            "dropped": sum(tree.core.rollouts for tree, _ in left) - chosen,
            "untrained": chosen - trained,
            "samples": len(samples.groups),
            "forks": len(self._forest.segment_leaves),
        }


_UNTRAINED: Final = TurnValue(0.0, trained=False)
