"""The layering of the package, read from its imports: no cycle, nothing upward, nothing from the package root."""

from __future__ import annotations

import ast
from collections.abc import Iterator
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
    {"sim"},
    {"cli", "compat"},
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

# The simulated servers must not share code with the client they test.
APART = ("trunkline.sim.world", "trunkline.sim.model", "trunkline.sim.server")
APART_MAY = ("trunkline.errors", "trunkline.types", *APART)


def module_name(path: Path) -> str:
    parts = ["trunkline", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def imports(name: str, *, at_run_time: bool) -> dict[str, int]:
    """Return every trunkline module that a module imports, with a line; for types only, or at run time too."""
    path = MODULES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: dict[str, int] = {}
    for node in statements(ast.parse(path.read_text("utf-8")), at_run_time=at_run_time):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*up, base] if base else up)
            deeper = [f"{base}.{alias.name}" for alias in node.names]
            targets = [full if full in MODULES or full == "trunkline._core" else base for full in deeper]
        else:
            continue
        found.update({t: node.lineno for t in targets if t == "trunkline" or t.startswith("trunkline.")})
    return found


def statements(tree: ast.AST, *, at_run_time: bool) -> Iterator[ast.AST]:
    """Walk a module, leaving out what only type checkers see if asked to."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and at_run_time:
            continue
        yield from statements(node, at_run_time=at_run_time)


ALL = {name: imports(name, at_run_time=False) for name in MODULES}
RUN_TIME = {name: imports(name, at_run_time=True) for name in MODULES}


def layer(name: str) -> str:
    return name.split(".")[1]


def test_there_are_modules_to_check():
    assert len(MODULES) > 10


@pytest.mark.parametrize("name", sorted(set(MODULES) - {"trunkline"}))
def test_imports_go_one_way(name: str):
    assert layer(name) in RANK, f"{name} is in no layer"
    for target, line in ALL[name].items():
        assert target != "trunkline", f"{MODULES[name]}:{line} imports from the package root"
        assert RANK[layer(target)] <= RANK[layer(name)], f"{MODULES[name]}:{line} imports upward: {target}"


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith(APART)])
def test_the_simulated_server_stands_apart(name: str):
    for target, line in ALL[name].items():
        assert target.startswith(APART_MAY), f"{MODULES[name]}:{line} imports {target}"


def test_no_cycle():
    state: dict[str, int] = {}

    def walk(name: str, trail: tuple[str, ...]) -> None:
        assert state.get(name) != 1, "cycle: " + " -> ".join([*trail[trail.index(name) :], name])
        if state.get(name) == 2:
            return
        state[name] = 1
        for target in RUN_TIME[name]:
            if target in MODULES:
                walk(target, (*trail, name))
        state[name] = 2

    for name in MODULES:
        walk(name, ())
