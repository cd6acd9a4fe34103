"""What a run came to, as data that two versions of the library must agree on.

Numbers of nodes are those of a canonical order (that of fork paths), since the tree's own depend on which reply came
first. Times, process ids, ports, folders and versions are left out, and digests stand apart.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import trunkline as tl
from trunkline._core import CoreTree, NodeView, drift_of
from trunkline.tree.records import Record, Records
from trunkline.tree.views import Kind, Tree

LONG_TEXT, LONG_LIST = 240, 12
"""Characters and entries of which a dump holds more than the beginning, the length and a hash."""

_TIMES = {"llm_micros", "tool_micros", "queue", "first", "micros", "started", "at", "deltas"}
_SECONDS = re.compile(r"\(\d+\.\d+ s\)")
_META = {"state", "error"}
_ORDERED = ("round", "cut", "refused", "judged", "served")
_COUNTED = ("spent", "intent", "effect")


def timeless(text: str) -> str:
    """A text without the seconds that an attempt took."""
    return _SECONDS.sub("(N s)", text)


def shortened(found: Any) -> Any:
    """A dump in which a long text is its beginning, its length and its hash."""
    match found:
        case dict():
            return {name: shortened(value) for name, value in found.items()}
        case list():
            return [shortened(value) for value in found]
        case str() if len(found) > LONG_TEXT:
            return f"{found[:80]}... {len(found)} characters, {sha256(found.encode()).hexdigest()[:16]}"
    return found


def columns(values: Iterable[Any]) -> list[Any]:
    """A list of numbers, or of a long one its beginning, its length and its hash."""
    listed = list(values)
    if len(listed) <= LONG_LIST:
        return listed
    return [*listed[:4], f"{len(listed)} in all, {sha256(json.dumps(listed).encode()).hexdigest()[:16]}"]


def number(value: float) -> float | str | None:
    """A computed number to ten digits, which all machines agree on; None where it is not known."""
    return None if math.isnan(value) else float(f"{value:.10g}") if math.isfinite(value) else repr(value)


def told(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields without those that say nothing."""
    return {name: value for name, value in fields.items() if value not in (None, "", [], {})}


class Order(NamedTuple):
    """The canonical order of a tree.

    Attributes:
        nodes: Node numbers in that order.
        place: The place of each node in it.
        rollouts: Rollout numbers by fork path.
        names: The fork path of each rollout, as text.
    """

    nodes: list[int]
    place: dict[int, int]
    rollouts: list[int]
    names: dict[int, str]

    @classmethod
    def of(cls, core: CoreTree) -> Order:
        paths = {number: core.rollout(number).path for number in range(core.rollouts)}
        rollouts = sorted(paths, key=lambda number: paths[number])
        nodes = {0: None}
        for number in rollouts:
            nodes |= dict.fromkeys(core.path(core.rollout(number).leaf))
        left = [node for node in range(len(core)) if node not in nodes]
        while left:  # nodes that no rollout passes
            placed = list(nodes)
            ready = [node for node in left if core.node(node).parent in nodes]
            key = lambda node: (placed.index(core.node(node).parent), core.node(node).kind, core.message(node))  # noqa: E731, B023
            nodes |= dict.fromkeys(sorted(ready, key=key))
            left = [node for node in left if node not in nodes]
        names = {number: ".".join(map(str, path)) or "-" for number, path in paths.items()}
        return cls(list(nodes), {node: place for place, node in enumerate(nodes)}, rollouts, names)


def tree_dump(tree: Tree) -> dict[str, Any]:
    """Nodes, rollouts, records of programs and decisions of a tree."""
    core, order = tree.core, Order.of(tree.core)
    core.check()
    records = Records(core)
    flat, shared, flat_generated, generated, longest, unreported, exact = core.tokens()
    return {
        "nodes": [_node(core, node, order) for node in order.nodes],
        "rollouts": {order.names[number]: _rollout(tree, number, order) for number in order.rollouts},
        "records": told(
            {
                order.names[number]: [_record(core, one, order) for one in records.of(number)]
                for number in order.rollouts
            }
        ),
        "decisions": _decisions(core, order),
        "statistics": [_statistics(core.node(node)) for node in order.nodes],
        "tokens": {
            "flat": flat,
            "tree": shared,
            "flat_generated": flat_generated,
            "tree_generated": generated,
            "longest": longest,
            "unreported": unreported,
            "exact": exact,
        },
    }


def _node(core: CoreTree, node: int, order: Order) -> dict[str, Any]:
    facts = core.node(node)
    if node == 0:
        return {"kind": "root"}
    tokens = core.tokens_of(node)
    return {
        "parent": order.place[facts.parent],
        "kind": Kind(facts.kind).name.lower(),
        **told(
            {
                "agent": facts.agent,
                "namespace": facts.namespace,
                "message": core.message(node).decode(),
                "aside": core.aside(node) or "",
                "report": core.report_of(node) or "",
                "finish": facts.finish,
                "prompt": facts.prompt,
                "generated": facts.generated,
                "sent": _context(core, node, facts.context),
                "drift": _drift(core, node),
                **_uncertainty(facts),
                "ids": None if tokens is None else columns(tokens.ids),
                "logprobs": None if tokens is None else columns(number(value) for value in tokens.logprobs),
                "versions": None if tokens is None else columns(tokens.versions),
                "flags": None if tokens is None else columns(tokens.flags),
            }
        ),
    }


def _statistics(facts: NodeView) -> list[Any]:
    """How many rollouts pass a node, how many of them are scored, and the sum of their rewards."""
    return [facts.passes, facts.visits, number(facts.value)]


def _uncertainty(facts: NodeView) -> dict[str, Any]:
    found = {"entropy": facts.entropy, "perplexity": facts.perplexity, "opening": (facts.opening,)}
    read = {name: [number(value) for value in values] for name, values in found.items()}
    return {name: values for name, values in read.items() if any(value is not None for value in values)}


def _context(core: CoreTree, node: int, context: int | None) -> str:
    """What was sent where that is not the path."""
    if context is None or (node and drift_of(core, node) is not None):
        return ""
    return core.request_context(context, b"[", b"]").decode()


def _drift(core: CoreTree, node: int) -> list[Any]:
    """What a turn was given where that was not the ids of its path: policy, ids kept, ids given."""
    found = drift_of(core, node)
    return [] if found is None else [*found[:2], columns(found[2].ids)]


def _rollout(tree: Tree, rollout: int, order: Order) -> dict[str, Any]:
    facts = tree.core.rollout(rollout)
    view = tl.Trajectory(tree, rollout)
    return {
        "number": rollout,
        "point": order.place[facts.point],
        "leaf": order.place[facts.leaf],
        "subgroup": facts.subgroup,
        "draw": facts.draw,
        "turns": facts.turns,
        "termination": facts.termination,
        **told({"answer": facts.answer, "error": facts.error and facts.error, "note": facts.note}),
        "reward": None if math.isnan(facts.reward) else facts.reward,
        "usage": _fields(view.usage),
    }


def _record(core: CoreTree, record: Record, order: Order) -> dict[str, Any]:
    data: Any = list(record.data)
    match record.kind, data:
        case "ask", [[_, leaf, context, _], failure, *note]:
            data = told({"after": order.place[leaf], "sent": _context(core, 0, context), "failure": failure})
            data |= {"note": note[0]} if note else {}
        case "use", [turn, oks]:
            data = {"turn": order.place[turn], "ok": oks}
        case "now", _:
            data = None
        case "tool" | "call", [_, given, *made]:
            # A tool's last entry is the time that it took.
            data = [given, *(made[:2] if record.kind == "tool" else made)]
    return told(
        {
            "kind": record.kind,
            "key": record.key,
            "nth": record.nth,
            "nodes": [order.place[node] for node in record.nodes],
            "given_up": record.given_up or None,
            "data": data,
        }
    )


def _decisions(core: CoreTree, order: Order) -> list[Any]:
    """What a strategy, a budget or a filter decided, in order; then what was spent and which effects were begun."""
    marks = [msgspec.json.decode(text) for text in core.marks()]
    ordered = [_decision(mark, order) for mark in marks if next(iter(mark)) in _ORDERED]
    counted = [_decision(mark, order) for mark in marks if next(iter(mark)) in _COUNTED]
    return ordered + sorted(counted, key=json.dumps)


def _decision(mark: dict[str, Any], order: Order) -> dict[str, Any]:
    names, place = order.names, order.place
    found = dict(mark)
    for name in ("told", "spared"):
        if name in found:
            # In the file they stand in the order in which they ended.
            found[name] = [names[rollout] for rollout in sorted(found[name], key=order.rollouts.index)]
    for name in ("go", "stop", "denied"):
        if name in found:
            found[name] = {names[int(rollout)]: value for rollout, value in found[name].items()}
    if "served" in found:
        # The leaf beside each depends on what was recorded first of what a program asks at once.
        found["served"] = [names[int(rollout)] for rollout in found["served"]]
    if "rollout" in found:
        found["rollout"] = names[found["rollout"]]
    for fork in found.get("forks", ()):
        fork["first"] = names[fork["first"]]
        if fork.get("turn") is not None:
            fork["turn"] = place[fork["turn"]]
    for name in ("intent", "effect"):
        if name in found:
            found[name] = [names[found[name][0]], place[found[name][1]], found[name][2]]
    return found


def _fields(row: msgspec.Struct) -> dict[str, Any]:
    """The fields of a row that do not depend on the time, without zeros."""
    found = msgspec.to_builtins(row) if not row.__struct_config__.array_like else msgspec.structs.asdict(row)
    return {name: value for name, value in found.items() if name not in _TIMES and value not in (0, None, "")}


def run_dump(path: Path) -> dict[str, Any]:
    """Digests, trees and rows of a run file, once it is found sound."""
    with tl.RunReader.open(path) as reader:
        problems = reader.check()
        assert not problems, problems
        names = reader.task_ids()
        trees = {name: reader.tree(name) for name in names}
        orders = {name: Order.of(tree.core) for name, tree in trees.items()}
        grown = [name for name in sorted(trees) if len(trees[name]) > 1]
        return {
            "digests": {name: trees[name].digest() for name in grown},
            "trees": {name: tree_dump(trees[name]) for name in grown},
            "rows": dict(_rows(reader, names, orders)),
        }


def _rows(reader: tl.RunReader, names: list[str], orders: dict[str, Order]) -> Iterator[tuple[str, Any]]:
    yield "meta", {name: reader.meta[name] for name in sorted(_META & reader.meta.keys())}
    yield "timing_dependent", reader.settings["timing_dependent"]
    yield "agents", sorted(reader.agents())
    yield "trees", {names[number]: _undigested(row) for number, row in sorted(reader.rows())}
    yield "taken", {names[number]: _undigested(row) for number, row in sorted(reader.taken())}
    rollouts = []
    for number, row in reader.rollouts():
        order = orders[names[number]]
        rollouts.append(
            [names[number], _fields(row) | {"leaf": order.place[row.leaf], "note": row.note, "path": row.path}]
        )
    yield (
        "rollouts",
        sorted(rollouts, key=lambda row: (row[0], orders[row[0]].rollouts.index(row[1].get("rollout", 0)))),
    )
    yield "calls", _counted([names[number], _fields(row)] for number, row in reader.calls())
    used = (
        [names[number], _fields(row) | {"rollout": orders[names[number]].names[row.rollout]}]
        for number, row in reader.tool_calls()
    )
    yield "tool_calls", _counted(used)
    yield "events", _counted([event.kind] for event in reader.events())


def _undigested(row: msgspec.Struct) -> dict[str, Any]:
    return {name: value for name, value in _fields(row).items() if name != "digest"}


def _counted(rows: Iterable[Any]) -> list[Any]:
    """Rows in no order, sorted; equal ones once, with their number in front."""
    counts: dict[str, int] = {}
    for row in rows:
        text = json.dumps(row, sort_keys=True, ensure_ascii=False)
        counts[text] = counts.get(text, 0) + 1
    return [[count, json.loads(text)] for text, count in sorted(counts.items())]


def first_difference(known: Any, found: Any, name: str) -> str | None:
    """The place, by name, at which two dumps differ first, with both values; None where they do not."""
    if isinstance(known, dict) and isinstance(found, dict):
        for key in [*known, *(key for key in found if key not in known)]:
            if key not in found or key not in known:
                return f"{name}.{key}: {_shown(known, key)}, now {_shown(found, key)}"
            if (differs := first_difference(known[key], found[key], f"{name}.{key}")) is not None:
                return differs
        return None
    if isinstance(known, list) and isinstance(found, list):
        for place, (one, other) in enumerate(zip(known, found, strict=False)):
            if (differs := first_difference(one, other, f"{name}[{place}]")) is not None:
                return differs
        if len(known) != len(found):
            return f"{name}: {len(known)} entries, now {len(found)}"
        return None
    if isinstance(known, str) and isinstance(found, str) and known != found:
        place = next((at for at, (one, other) in enumerate(zip(known, found, strict=False)) if one != other), None)
        at = min(len(known), len(found)) if place is None else place
        start = max(0, at - 60)
        return f"{name}: at character {at} {known[start : at + 60]!r}, now {found[start : at + 60]!r}"
    if type(known) is not type(found) or known != found:
        return f"{name}: {known!r:.200}, now {found!r:.200}"
    return None


def _shown(fields: dict[str, Any], key: str) -> str:
    return repr(fields[key])[:200] if key in fields else "absent"
