"""What every built-in strategy is held to: it is small, decides nothing with floats, and can be found by its name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from trunkline import strategies
from trunkline.strategies import STRATEGIES
from trunkline.strategies.base import Strategy

FOLDER = Path(strategies.__file__).parent
MODULES = sorted(path for path in FOLDER.glob("*.py") if path.stem not in {"__init__", "base", "stopping"})


def test_every_module_is_in_the_catalog_and_every_entry_is_a_strategy_with_a_formula():
    assert sorted(kind.__module__.rpartition(".")[2] for kind in STRATEGIES.values()) == [path.stem for path in MODULES]
    for kind in STRATEGIES.values():
        made = kind()
        assert isinstance(made, Strategy)
        assert str(made.rollouts()) in made.formula()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_built_in_is_below_300_lines_and_holds_no_float_arithmetic(path: Path):
    source = path.read_text()
    assert source.count("\n") < 300
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.BinOp):
            assert not isinstance(node.op, ast.Div), f"line {node.lineno} divides: selection runs in the core"
            sides = [side.value for side in (node.left, node.right) if isinstance(side, ast.Constant)]
            assert not any(isinstance(side, float) for side in sides), f"line {node.lineno} counts in floats"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            assert called not in {"float", "fsum", "exp", "log", "sqrt"}, f"line {node.lineno} makes floats"
