"""Messages of the public errors, read from the source: the text of each, with … where a value stands.

A message is what a call of an error's class is given. Where that is a variable, what its function assigns to it counts;
where it is a parameter, what callers of that function pass.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from places import ROOT

PACKAGE = ROOT / "python" / "trunkline"
CORE = ROOT / "rust_core" / "core" / "src"
GAP = "…"
_DEEP = 3
"""How many callers up a parameter is followed."""


@dataclass(frozen=True, order=True)
class Message:
    """A message of an error, and the room whose code raises it."""

    error: str
    room: str
    text: str

    def matches(self, said: str) -> bool:
        """Whether a text is or holds this message, with any values."""
        at = 0
        for piece in self.text.split(GAP):
            at = said.find(piece, at)
            if at < 0:
                return False
            at += len(piece)
        return True


class _Source:
    """The package's functions, and the calls of each name."""

    def __init__(self) -> None:
        self.functions: list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]] = []
        self.calls = defaultdict[str, list[tuple[ast.Call, ast.AST]]](list)
        for path in sorted(PACKAGE.rglob("*.py")):
            if "examples" in path.parts:
                continue
            tree = ast.parse(path.read_text("utf-8"))
            inside = path.relative_to(PACKAGE).parts
            room = inside[0].removesuffix(".py")
            self._read(tree, tree, room)

    def _read(self, node: ast.AST, scope: ast.AST, room: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = child
                child.room = room  # type: ignore[union-attr]
            elif isinstance(child, ast.Call) and (name := _last_name(child.func)):
                child.room = room  # type: ignore[attr-defined]
                self.calls[name].append((child, scope))
            self._read(child, inner, room)


def _last_name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


@cache
def messages() -> list[Message]:
    """Every message of a public error that the source holds, sorted."""
    source = _Source()
    classes = [
        node for node in ast.parse((PACKAGE / "errors.py").read_text("utf-8")).body if isinstance(node, ast.ClassDef)
    ]
    found = {Message(name, room, text) for name in (one.name for one in classes) for room, text in _given(source, name)}
    found |= {Message("ArgumentError, TreeError or ReplyError", "core", text) for text in _core_messages()}
    return sorted(message for message in found if re.search(r"\w", message.text))


def _given(source: _Source, name: str) -> Iterator[tuple[str, str]]:
    for call, scope in source.calls[name]:
        given = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "message"), None)
        for text in _texts(source, given, scope, _DEEP) if given is not None else ():
            yield call.room, text  # type: ignore[attr-defined]


def _texts(source: _Source, value: ast.expr, scope: ast.AST, deep: int) -> Iterator[str]:
    """The texts that an expression may be, with a gap for each value in them."""
    match value:
        case ast.Constant(str(text)):
            yield text
        case ast.JoinedStr(parts):
            yield re.sub(f"{GAP}+", GAP, "".join(p.value if isinstance(p, ast.Constant) else GAP for p in parts))
        case ast.BinOp(left, ast.Add(), right):
            for first in _texts(source, left, scope, deep) or [GAP]:
                for second in _texts(source, right, scope, deep) or [GAP]:
                    yield first + second
        case ast.IfExp(_, first, second):
            yield from _texts(source, first, scope, deep)
            yield from _texts(source, second, scope, deep)
        case ast.Name(name) if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef) and deep:
            yield from _of_name(source, name, scope, deep - 1)


def _of_name(source: _Source, name: str, scope: ast.FunctionDef | ast.AsyncFunctionDef, deep: int) -> Iterator[str]:
    for node in ast.walk(scope):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.NamedExpr) else []
        )
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            yield from _texts(source, node.value, scope, deep)  # type: ignore[attr-defined]
    names = [given.arg for given in (*scope.args.posonlyargs, *scope.args.args)]
    if name in names or name in [given.arg for given in scope.args.kwonlyargs]:
        place = names.index(name) - (names[0] in {"self", "cls"}) if name in names else -1
        for call, caller in source.calls[scope.name]:
            passed = [k.value for k in call.keywords if k.arg == name]
            passed += call.args[place : place + 1] if place >= 0 else []
            for value in passed:
                yield from _texts(source, value, caller, deep)


def _core_messages() -> Iterator[str]:
    for path in sorted(CORE.rglob("*.rs")):
        for text in re.findall(r'#\[error\(\s*"((?:[^"\\]|\\.)*)"', path.read_text("utf-8")):
            plain = re.sub(r"\\\n\s*", "", text).replace('\\"', '"')
            yield re.sub(f"{GAP}+", GAP, re.sub(r"\{[^{}]*\}", GAP, plain))
