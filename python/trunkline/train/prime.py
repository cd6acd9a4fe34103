"""Training samples of prime-rl as plain msgpack; prime-rl is not imported."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from trunkline._internal.text import quoted
from trunkline._internal.validation import check_text, check_that
from trunkline.errors import UsageError
from trunkline.train.message_graph import MessageGraph, graphs
from trunkline.train.selection import Rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trunkline.train.advantages import Estimator
    from trunkline.tree.views import Tree


class _Sample(msgspec.Struct, array_like=True, gc=False):
    """The fields of prime-rl's TrainingSample, in its order."""

    token_ids: list[int]
    mask: list[bool]
    logprobs: list[float]
    temperatures: list[float]
    env_name: str
    ref_logprobs: None = None
    mm_kwargs: None = None
    routed_experts: None = None
    mm_token_type_ids: None = None
    rl_weights: list[float] = []
    ce_weights: None = None
    ref_kl_weights: None = None
    advantages: list[float] = []


def training_samples(
    run: Iterable[Tree],
    *,
    estimator: Estimator,
    env_name: str = "trunkline",
    censored: Literal["mask", "keep"] | None = None,
    on_failed: Literal["mask", "drop_group"] = "mask",
    **options: str | float | bool,
) -> bytes:
    """Write the branches of trees as samples for prime-rl (checked against its source of 2026-08-21).

    There prime-rl reads them with ``msgspec.msgpack.decode(data, type=list[TrainingSample])``, for ``prepare_batch``.

    Samples come tree by tree, one for each branch with something to train. All lists of a sample have one element a
    token of the branch: ``token_ids``, ``mask`` (true where trained), ``logprobs`` (nats, 0 where nothing was sampled),
    ``temperatures`` (that of the turn, 1 where none was asked for), ``rl_weights`` and ``advantages``. A turn that
    several rollouts share is trained in the first of its branches, with their mean advantage and their number as its
    weight, so that advantage times weight sums to that of flat rows. Turns that are not trained are context.

    Args:
        run: A run, or trees with token ids.
        estimator: A preset of ``trunkline.train.presets``, or a function of the trajectories of one group
            that count (a list of ``trunkline.Trajectory``) that returns an advantage for each, None for none.
        env_name: The name under which prime-rl counts the samples; ``all`` is its own.
        censored: As of ``trunkline.train.turns``.
        on_failed: Likewise.
        options: Options of the preset.

    Returns:
        A msgpack array of samples, which are arrays themselves.

    Raises:
        ConfigError: A setting has a value it cannot have.
        ArgumentError: The estimator does not take these options or rewards.
        UsageError: A group has rollouts that were cut off, and ``censored`` is not said; or a turn that is to be
            trained has no token ids or log-probabilities, or one before it has no ids.
    """
    check_text("env_name", env_name)
    check_that(env_name not in {"", "all"}, "env_name must be a name, and not 'all', which is prime-rl's own", env_name)
    check_that(estimator is not None, "estimator must be a preset or a function", estimator)
    found = graphs(run, estimator, Rules(censored, on_failed), options)
    return msgspec.msgpack.encode([sample for graph in found for sample in _samples(graph, env_name)])


def _samples(graph: MessageGraph, env_name: str) -> Iterator[_Sample]:
    if graph.incomplete is not None:
        raise UsageError(
            f"task {quoted(graph.tree.task.id)}: turn {graph.incomplete} has no token ids, or a message before it has "
            "none: tl.LLM(url, tokens=tl.TokenMode()) grows trees with them"
        )
    nodes, trained = graph.nodes, set[int]()
    inner = {node.parent for node in nodes}
    for leaf in range(len(nodes)):
        path = [] if leaf in inner else _path(graph, leaf)
        fresh = {place for place in path if nodes[place].credit and any(nodes[place].sampled)} - trained
        if fresh:
            trained |= fresh
            yield _sample(graph, path, fresh, env_name)


def _path(graph: MessageGraph, place: int) -> list[int]:
    path = []
    while place >= 0:
        path.append(place)
        place = graph.nodes[place].parent
    path.reverse()
    return path


def _sample(graph: MessageGraph, path: list[int], fresh: set[int], env_name: str) -> _Sample:
    sample = _Sample([], [], [], [], env_name, rl_weights=[], advantages=[])
    for place in path:
        node = graph.nodes[place]
        size = len(node.ids)
        advantage, weight = (node.credit if place in fresh else None) or (0.0, 0)
        sample.token_ids += node.ids
        sample.mask += node.sampled if weight else [False] * size
        sample.logprobs += node.logprobs
        sample.temperatures += [_temperature(graph.tree.core.node(node.node).namespace)] * size
        sample.rl_weights += [float(weight) if shown else 0.0 for shown in node.sampled]
        sample.advantages += [advantage if shown else 0.0 for shown in node.sampled]
    return sample


def _temperature(namespace: str) -> float:
    """Return the temperature in a turn's namespace, which is its model, a JSON object of sampling, and more."""
    start = namespace.find(" {") + 1
    try:
        sampling: Any = json.JSONDecoder().raw_decode(namespace, start)[0] if start else {}
    except ValueError:
        sampling = {}
    given = sampling.get("temperature", 1.0)
    return float(given) if isinstance(given, int | float) else 1.0
