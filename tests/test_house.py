"""The house: layers, rooms and names of the package, read from its syntax trees (``CONTRIBUTING.md`` has the table)."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "python" / "trunkline"

LAYERS = (
    {"errors"},
    {"_core"},
    {"_internal"},
    {"types"},
    {"tree"},
    {"llm"},
    {"tools"},
    {"agent", "scoring"},
    {"store", "strategies"},
    {"rollout"},
    {"team", "train"},
    {"protocol"},
    {"observability"},
    {"controller", "worker"},
    {"backends"},
    {"runner"},
    {"cli", "compat"},
)
"""Rooms, the lowest layer first. A room imports rooms of lower layers alone."""

RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms}

APART = {"world", "model", "server"}
"""Rooms of ``sim`` that share nothing above ``types`` with the client that is tested against them."""

APART_MAY = {"errors", "types", "_internal"}

MOST_MODULES = 14
MOST_LINES = 700

RETIRED = """
audience bell borrower catalog desk diary elsewhere errand errands flights guest handout hear heard kit landed leg
lender lenders loan loans outlet parked performer players purse roster seat seats shelf speech standing switchboard
talk tenant toll treasury underway vitals
"""
"""Names by metaphor that the field's terms replaced; ``trunkline._internal.old_names`` leads on from them."""

RETIRED_CLASSES = """
Allowance Answered Ask Blame Closing Conversation Cut Dispatch Draft Draws Effects Exact Fleet Flow Foreign Frames
Funds Gate Given Growth Helper Hold Home Kept LeasedRates News Noted Opened OpenLLMs Outlet Past Permits Place Play
Process Pulse Quota Refusals Relay Restarts Said Scores Session Siblings Site Stage Stalls States Stock Supervision
Taken Turns Versions Weights
"""
"""Names of classes that the rename replaced; as words, they are plain English."""


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path): path for path in sorted(ROOT.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text("utf-8")) for name, path in MODULES.items()}


def imports(name: str) -> Iterator[tuple[str, int]]:
    """Yield each module of the package that a module imports, at run time or for types, with the line."""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{MODULES[name]}:{node.lineno} is a relative import"
            deeper = [f"{node.module}.{alias.name}" for alias in node.names]
            known = {f"trunkline.{name}" for name in [*MODULES, "_core"]}
            targets = [full if full in known else str(node.module) for full in deeper]
        else:
            continue
        for target in targets:
            if target == "trunkline" or target.startswith("trunkline."):
                yield target.removeprefix("trunkline").removeprefix("."), node.lineno


EDGES = {name: list(imports(name)) for name in MODULES if name}


def room(name: str) -> str:
    return name.partition(".")[0]


def test_imports_go_down_the_layers():
    assert {room(name) for name in MODULES if name} == set(RANK) - {"_core"} | {"sim"}
    wrong = []
    for name, targets in EDGES.items():
        for target, line in targets:
            where = f"{MODULES[name]}:{line} imports {target or 'the package root'}"
            if not target:
                wrong.append(f"{where}; name the module")
            elif room(target) == "sim" and room(name) not in {"sim", "cli"}:
                wrong.append(f"{where}; the command line alone imports the simulator")
            elif (
                room(name) not in {"sim", room(target)}
                and room(target) != "sim"
                and RANK[room(target)] >= RANK[room(name)]
            ):
                wrong.append(f"{where}, which is no layer below its own")
    assert not wrong, "\n".join(wrong)


def test_the_simulated_server_stands_apart():
    for name, targets in EDGES.items():
        if name.startswith("sim.") and name.split(".")[1] in APART:
            for target, line in targets:
                inside = target.startswith("sim.") and target.split(".")[1] in APART
                assert inside or room(target) in APART_MAY, f"{MODULES[name]}:{line} imports {target}"


def test_no_module_imports_itself_through_others():
    graph = {name: {target for target, _ in targets if target in MODULES} - {name} for name, targets in EDGES.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_rooms_and_modules_have_a_size_that_a_reader_can_hold():
    rooms = Counter(path.parent.relative_to(ROOT) for path in MODULES.values() if path.stem != "__init__")
    assert {str(folder): n for folder, n in rooms.items() if n > MOST_MODULES} == {}
    lines = {name: path.read_text("utf-8").count("\n") for name, path in MODULES.items()}
    assert {name: n for name, n in lines.items() if n > MOST_LINES} == {}


def test_a_class_name_means_one_thing():
    homes = defaultdict(list)
    stubs = ast.parse((ROOT / "_core.pyi").read_text("utf-8"))
    for name, tree in [*TREES.items(), ("_core", stubs)]:
        if room(name) != "sim":
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    homes[node.name].append(name)
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}
    assert not homes.keys() & {"Plan", "Progress", "Reader"}, "kept for public names to come"


def test_no_retired_name_is_back():
    retired, classes = set(RETIRED.split()), set(RETIRED_CLASSES.split())
    found = []
    for name, tree in TREES.items():
        if room(name) == "sim":
            continue
        found += [(name, part) for part in name.split(".") if part in retired]
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                word = node.name
            elif isinstance(node, ast.Attribute):
                word = node.attr
            elif isinstance(node, ast.arg):
                word = node.arg
            else:
                continue
            if word.strip("_").lower() in retired or word in classes:
                found.append((name, word))
    assert sorted(set(found)) == []
