"""A tree as a graph of messages, each with the token ids that it adds: the form of verifiers and prime-rl."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trunkline._core import SAMPLED, SYNTHETIC, TURN, drift_of, harvest
from trunkline._internal.text import quoted
from trunkline.errors import ConfigError, UsageError
from trunkline.train.advantages import Advantages
from trunkline.train.selection import Chosen, Rules, again, context_of, has_ids, mean, select, turns_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trunkline._core import Harvest
    from trunkline.train.advantages import Estimator
    from trunkline.tree.views import Tree


class Credit(NamedTuple):
    """The mean advantage of the rollouts that train a turn, and their number."""

    advantage: float
    weight: int


class GraphNode(NamedTuple):
    """A message, and the tokens it adds to its parent's.

    Attributes:
        parent: Its parent's place in the graph, which is before its own; -1 for none.
        node: Its node of the tree; 0 for a message of a prompt that was not the path.
        message: The message, JSON.
        ids: Token ids; empty where not known.
        sampled: One a token: whether a model sampled it, with a log-probability that is known.
        logprobs: One a token: log-probabilities in nats, 0 where not sampled.
        credit: Of a turn that is trained.
    """

    parent: int
    node: int
    message: bytes
    ids: list[int] = []
    sampled: list[bool] = []
    logprobs: list[float] = []
    credit: Credit | None = None


class MessageGraph(NamedTuple):
    """The message graph of a tree.

    Attributes:
        tree: The tree.
        rollouts: Its rollouts, without dropped ones.
        nodes: Those on the path of a sample, parents first. Each leaf ends a sample.
        incomplete: The first turn that has no token ids, or stands after a message whose ids are not known; with an
            estimator, of those that are trained. None where there is none.
    """

    tree: Tree
    rollouts: list[Chosen]
    nodes: list[GraphNode]
    incomplete: int | None


def graphs(
    run: Iterable[Tree], estimator: Estimator | None, rules: Rules, options: dict[str, Any]
) -> Iterator[MessageGraph]:
    """Return the graphs of trees, with credit by an estimator; groups that are left out have none."""
    rules = rules.check()
    if estimator is not None:
        trees = again(run)
        advantages = Advantages(trees, rules, estimator, options)
        return (_credited(tree, group, advantages) for group, tree in enumerate(trees) if advantages.rollouts[group])
    if options:
        raise ConfigError(f"{', '.join(options)}: options of an estimator, and none is given")
    kept = rules._replace(censored=rules.censored or "keep")
    return (_graph(tree, rollouts, None) for tree in again(run) if (rollouts := select(tree, kept)))


def _credited(tree: Tree, group: int, advantages: Advantages) -> MessageGraph:
    """Return a tree's graph with the advantages of its turns."""
    tokens = harvest([tree.core])
    ends = _ends(tokens)
    found: dict[int, list[float]] = {}
    for chosen in advantages.rollouts[group]:
        trained = _above(tokens, ends[chosen.rollout])
        for place, node in enumerate(turns_of(tree, chosen.rollout)):
            value = advantages.of(group, chosen, place, node)
            if value.trained and node in trained:
                found.setdefault(node, []).append(value.advantage)
    credit_of = {node: Credit(mean(values), len(values)) for node, values in found.items()}
    return _graph(tree, advantages.rollouts[group], credit_of, tokens)


def _ends(tokens: Harvest) -> list[list[int]]:
    """Return for each rollout the nodes where its samples end."""
    ends = [[leaf] for leaf in tokens.leaves]
    for leaf, rollout in zip(tokens.segment_leaves, tokens.segment_rollouts, strict=True):
        ends[rollout].append(leaf)
    return ends


def _above(tokens: Harvest, ends: Iterable[int]) -> set[int]:
    """Return the nodes on the paths of samples, without the root."""
    parents, found = tokens.parents, {0}
    for end in ends:
        node = end
        while node not in found:
            found.add(node)
            node = parents[node]
    found.remove(0)
    return found


def _graph(
    tree: Tree, rollouts: list[Chosen], credit_of: dict[int, Credit] | None, tokens: Harvest | None = None
) -> MessageGraph:
    core = tree.core
    tokens = tokens or harvest([core])
    ends = _ends(tokens)
    nodes: list[GraphNode] = []
    places, known, incomplete = {0: -1}, {0: True}, None
    copies: dict[tuple[int, bytes], int] = {}
    for node in sorted(_above(tokens, (end for chosen in rollouts for end in ends[chosen.rollout]))):
        facts, above = core.node(node), tokens.parents[node]
        turn = facts.kind == TURN
        asked = context_of(core, node) if turn else None
        drifted = drift_of(core, node) if turn else None
        known[node] = has_ids(core, node, before=known[above])
        shown = turn if credit_of is None else node in credit_of
        if shown and not known[node] and incomplete is None:
            incomplete = node
        parent, repeated = places[above] if asked is None or drifted is not None else -1, list[bytes]()
        if asked is not None:
            parent, repeated = _continued(nodes, parent, asked)
        elif above != facts.parent:
            path = [0, *core.path(facts.parent)]
            repeated = [core.message(between) for between in path[path.index(above) + 1 :]]
        for message in repeated:
            key = parent, message
            if key not in copies:
                copies[key] = len(nodes)
                nodes.append(GraphNode(parent, 0, message))
            parent = copies[key]
        places[node] = len(nodes)
        credit = None if credit_of is None else credit_of.get(node)
        nodes.append(GraphNode(parent, node, core.message(node), *_tokens(tree, node, tokens, credit), credit))
    return MessageGraph(tree, rollouts, nodes, incomplete)


def _continued(nodes: list[GraphNode], place: int, asked: bytes) -> tuple[int, list[bytes]]:
    """Return the place that a prompt goes on from, where its token ids do, and the messages that follow."""
    messages = [bytes(raw) for raw in msgspec.json.decode(asked, type=list[msgspec.Raw])]
    path, above = list[GraphNode](), place
    while above >= 0:
        path.append(nodes[above])
        above = nodes[above].parent
    if messages[: len(path)] == [node.message for node in reversed(path)]:
        return place, messages[len(path) :]
    return place if any(node.ids for node in path) else -1, messages


def _tokens(tree: Tree, node: int, tokens: Harvest, credit: Credit | None) -> tuple[list[int], list[bool], list[float]]:
    """Return a node's ids, which of them were sampled, and their log-probabilities."""
    start, end = tokens.offsets[node], tokens.offsets[node + 1]
    ids, flags, logprobs = (column[start:end].tolist() for column in (tokens.ids, tokens.flags, tokens.logprobs))
    drawn = [flag & (SAMPLED | SYNTHETIC) == SAMPLED for flag in flags]
    sampled = [shown and math.isfinite(value) for shown, value in zip(drawn, logprobs, strict=True)]
    if credit is not None and sampled != drawn:
        raise UsageError(
            f"task {quoted(tree.task.id)}: turn {node} is to be trained, and the log-probability of a token that it "
            "sampled is not known: run it on a server that gives all of them"
        )
    return ids, sampled, [value if shown else 0.0 for shown, value in zip(sampled, logprobs, strict=True)]
