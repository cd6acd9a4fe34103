"""The house: layers, rooms, names of the package, read from its syntax trees (``CONTRIBUTING.md`` has a picture)."""

from __future__ import annotations

import ast
import pydoc
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import FunctionType, ModuleType
from typing import get_args, get_type_hints

import msgspec
import pytest

import trunkline as tl
from trunkline._internal import old_names
from trunkline.scoring.reports.extractive import Reported
from trunkline.store.schema import CallRow, EventRow, RolloutRow, TakenRow, ToolRow, TreeEnding, TreeRow
from trunkline.store.stats.compare import Comparison
from trunkline.store.stats.profile import Profile
from trunkline.store.stats.summary import Summary
from trunkline.store.stats.tasks import TaskSummary

TESTS = Path(__file__).parent
ROOT = TESTS.parent / "python" / "trunkline"

LAYERS = (
    {"errors"},
    {"_core"},
    {"_internal"},
    {"types"},
    {"tree"},
    {"llm"},
    {"tools"},
    {"agent", "scoring", "gateway"},
    {"store", "strategies"},
    {"rollout"},
    {"team", "train"},
    {"protocol"},
    {"observability"},
    {"controller", "worker"},
    {"backends"},
    {"runner"},
    {"view"},
    {"cli", "compat"},
)
"""Rooms, the lowest layer first. A room imports rooms of lower layers alone."""

RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms}

APART = {"", "world", "model", "server"}
"""Rooms of ``sim`` that share nothing above ``types`` with the client that is tested against them."""

APART_MAY = {"errors", "types", "_internal"}

MOST_MODULES = 14
MOST_LINES = 700

RETIRED = """
audience bell borrower catalog desk diary doubt doubts elsewhere errand errands feel flights guest handout hear heard
judgements kit landed leg lender lenders loan loans outlet parked performer players purse roster scorings seat seats
shelf speech standing switchboard talk tenant toll treasury underway vitals walls
"""
"""Words by metaphor that the field's terms replaced."""

RENAMED = """
Allot Allowance ArgumentError Ask Asker Audience Bell Blame Borrower Bounds Broken Bucket Call Calls Changed Closing
Conversation Crossing Cut Denied Desk Diary Dispatch Door Draft Draw Drawn Draws Earlier EarlierRun Effects
Elsewhere Ended Ending Engine EngineState Errand Errands Exact ExactTurns FIELDS Fleet Flight Flights Flow Foreign
Frames Funds Gate Given Gone Grant Growth Guest Handout Held Helper Hold Home Inline Judged Judgements Kept Kit
Landed Lane Lanes Lease LeasedRates Leases Leg Lender Lenders Lent Limits Local LocalLease Masks Measures Mended
Message News OpenLLMs Opened Options Outcome Outlet Packed Parked Past Performer Permits Place Plan Players Pool
Process Processes Progress Prompt Pulse Purse Queue Queues Quota Ran Ray Reader Ready Recall Reclaim Refund Refusals
Refused Relay Repaid Restarts Return Roster Round Row Rows Run SCORINGS Scores Seat Sent Served Session Setup
SeveralLane SeveralLanes Shelf Siblings Site Slot Slots Slow Snapshots Speech Spent Stage Stalls State States Step
Stock Stop Supervision Supervisor Switchboard Take Tally Tenant Told Toll Treasury Turns Underway UnfinishedRun
Verdict Versions Want Weights Work Worth amounts begin choice culprit divide doubts feel funds given home_of kind
measures number outcome plant said scorings shown size standing text to_the_end told whole words worth
"""
"""Former names of classes and functions that no run file can hold; ``old_names`` has the others."""

ANOTHER_MEANING = """
ArgumentError Call Choice Ending Engine Limits Message Options Outcome Plan Pool Progress Prompt Queue Reader Row Rows
Run Slot Stop Supervisor Tally Template Verdict
"""
"""Names of classes that had another meaning before."""

OLD_METHODS = "doors said slow talk uses"
"""Names of public methods that lead on to new ones."""


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


EXAMPLES = ROOT / "examples"
"""Data of the package: scripts as users write them."""

MODULES = {dotted(path): path for path in sorted(ROOT.rglob("*.py")) if EXAMPLES not in path.parents}
TREES = {name: ast.parse(path.read_text("utf-8")) for name, path in MODULES.items()}


def imports(name: str) -> Iterator[tuple[str, int]]:
    """Yield each module of the package that a module imports, at run time or for types, with the line."""
    known = {f"trunkline.{name}" for name in [*MODULES, "_core"]}
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{MODULES[name]}:{node.lineno} is a relative import"
            deeper = [f"{node.module}.{alias.name}" for alias in node.names]
            targets = [full if full in known else str(node.module) for full in deeper]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            targets = [word.value for word in node.args if isinstance(word, ast.Constant)]
        else:
            continue
        for target in targets:
            if target == "trunkline" or target.startswith("trunkline."):
                yield target.removeprefix("trunkline").removeprefix("."), node.lineno


EDGES = {name: list(imports(name)) for name in MODULES}


def room(name: str) -> str:
    return name.partition(".")[0]


def stands_apart(name: str) -> bool:
    return room(name) == "sim" and [*name.split("."), ""][1] in APART


def may_import(name: str) -> set[str]:
    """The rooms that a module may import beside its own."""
    if stands_apart(name):
        return APART_MAY
    if room(name) == "sim":
        return {other for other in RANK if RANK[other] <= RANK["tools"]}
    if not name:
        return RANK.keys() - {"cli"}
    return {other for other in RANK if RANK[other] < RANK[room(name)]} | ({"sim"} if room(name) == "cli" else set())


def test_imports_go_down_the_layers():
    assert {room(name) for name in MODULES if name} == set(RANK) - {"_core"} | {"sim"}
    wrong = []
    for name, targets in EDGES.items():
        for target, line in targets:
            if not target:
                wrong.append(f"{MODULES[name]}:{line} imports the package root; name the module")
            elif room(target) != room(name) and room(target) not in may_import(name):
                wrong.append(f"{MODULES[name]}:{line} imports {target}, which is no layer below its own")
            elif stands_apart(name) and room(target) == "sim" and not stands_apart(target):
                wrong.append(f"{MODULES[name]}:{line} imports {target}; the simulated server knows no tools")
    assert not wrong, "\n".join(wrong)


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


PACKAGE = {name: tree for name, tree in TREES.items() if room(name) != "sim"}
PACKAGE["_core"] = ast.parse((ROOT / "_core.pyi").read_text("utf-8"))


def aliases(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module gives to types: CamelCase at its top level."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Name) and target.id[0].isupper() and not target.id.isupper():
                yield target.id


def test_a_class_name_means_one_thing():
    homes = defaultdict(list)
    for name, tree in PACKAGE.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(name)
        if room(name) != "compat":  # whose names are those of other projects
            for alias in aliases(tree):
                homes[alias].append(name)
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}
    renamed = ((old.partition(":")[2], new.partition(":")[2]) for old, new in old_names._tables()[1].items())
    retired = {old for old, new in renamed if old != new} | set(RENAMED.split())
    retired -= set(ANOTHER_MEANING.split())
    assert not homes.keys() & retired, "old_names leads on from that"


def words(tree: ast.Module) -> Iterator[str]:
    """Yield every name that a module defines, takes or reaches for."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=word) | ast.FunctionDef(name=word) | ast.AsyncFunctionDef(name=word):
                yield word
            case ast.Attribute(attr=word) | ast.arg(arg=word) | ast.keyword(arg=str(word)):
                yield word
            case ast.alias(asname=str(word)) | ast.Name(id=word, ctx=ast.Store()):
                yield word


def test_no_retired_name_is_back():
    retired, found = set(RETIRED.split()), set()
    for name, tree in PACKAGE.items():
        for word in {*name.split("."), *words(tree)} - set(OLD_METHODS.split()):
            parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word).lower().split("_")
            found |= {(name, word) for part in parts if part in retired}
    assert sorted(found) == []


GROUPS = [name for name in tl.__all__ if isinstance(getattr(tl, name), ModuleType)]
"""Public packages below the root."""


def public_objects() -> Iterator[tuple[str, object]]:
    """Yield what users import: the names of the package and of its documented modules, with the methods of classes."""
    for room in (tl, *(getattr(tl, group) for group in GROUPS)):
        for name in getattr(room, "__all__", ()):
            found = getattr(room, name)
            if isinstance(found, type) and found.__module__.startswith("trunkline"):
                yield f"{room.__name__}.{name}", found
                for method, member in vars(found).items():
                    if (
                        method[0] != "_"
                        and method not in OLD_METHODS.split()
                        and isinstance(member, FunctionType | property | classmethod)
                    ):
                        yield f"{room.__name__}.{name}.{method}", member
            elif isinstance(found, FunctionType):
                yield f"{room.__name__}.{name}", found


def test_public_names_have_docstrings():
    found = dict(public_objects())
    assert len(found) > 200
    assert [name for name, member in found.items() if not (member.__doc__ or "").strip()] == []


def test_help_on_a_group_lists_its_names_and_calls_it_as_users_do():
    for group in (tl.aggregators, tl.llms, tl.observability, tl.programs, tl.rewards, tl.runs, tl.strategies, tl.teams):
        assert dir(group) == sorted(group.__all__)
        called = next(name for name in GROUPS if getattr(tl, name) is group)
        text = pydoc.plain(pydoc.render_doc(group))
        assert f"``trunkline.{called}``" in text.split("PACKAGE CONTENTS")[0]
        assert [name for name in group.__all__ if name not in text] == []


def test_each_deliberate_fault_is_one_of_code_that_is_there():
    listed = subprocess.run([sys.executable, TESTS / "mutate", "--list"], capture_output=True, text=True, check=False)
    assert listed.returncode == 0, listed.stderr


def structs_of(hint: object) -> Iterator[type[msgspec.Struct]]:
    """Yield the library's structs in a type."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct) and hint.__module__.startswith("trunkline"):
        yield hint
    for part in get_args(hint):
        yield from structs_of(part)


def test_results_say_in_help_what_each_field_is():
    """The classes that users get from readers and comparisons, with all structs in their fields."""
    found: list[type] = [Summary, TaskSummary, Profile, Comparison, Reported, TreeEnding]
    found += [CallRow, EventRow, RolloutRow, TakenRow, ToolRow, TreeRow]
    for struct in found:
        found += (one for hint in get_type_hints(struct).values() for one in structs_of(hint) if one not in found)
    assert len(found) > 25
    silent = {
        f"{struct.__name__}.{field}"
        for struct in found
        for field in get_type_hints(struct)
        if not any(re.search(rf"^ +{field}: ", base.__doc__ or "", re.MULTILINE) for base in struct.__mro__)
    }
    assert not silent
