"""Messages of the public errors, read from the source: the text of each, with … where a value stands.

A message is what a call of an error's class is given. Where that is a variable, what its function assigns to it counts;
where it is a parameter, what callers of that function pass. A text that is made of values is listed by its parts.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product

from places import ROOT

PACKAGE = ROOT / "python" / "trunkline"
CORE = ROOT / "rust_core"
GAP = "…"
_DEEP = 3
"""How many calls a text is followed through."""
_RUST_TEXT = re.compile(
    r"""//[^\n]*|b?r(#*)".*?"\1|b?'(?:[^'\\\n]|\\[^\n][^'\n]{0,8})'|"((?:[^"\\]|\\.)*)\"""", re.DOTALL
)
_FEW = 8
CORE_ERRORS = "ArgumentError, TreeError, ReplyError"


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
    """The calls of each name in the package, and what each function returns."""

    def __init__(self) -> None:
        self.returns = defaultdict[str, list[tuple[ast.expr, ast.AST]]](list)
        self.defined = Counter[str]()
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
                self.defined[child.name] += 1
                child.room = room  # type: ignore[union-attr]
            elif isinstance(child, ast.Return) and child.value and isinstance(scope, ast.FunctionDef):
                self.returns[scope.name].append((child.value, scope))
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
    errors = ast.parse((PACKAGE / "errors.py").read_text("utf-8"))
    classes = {node.name for node in errors.body if isinstance(node, ast.ClassDef)}
    found = {Message(CORE_ERRORS, "core", text) for text in _core_messages()}
    for calls in list(source.calls.values()):
        for call, scope in calls:
            room = call.room  # type: ignore[attr-defined]
            for name in _made(source, call, scope, classes):
                for given in [*call.args, *(word.value for word in call.keywords if word.arg == "message")]:
                    found |= {Message(name, room, text) for text in _texts(source, given, scope, _DEEP)}
    return sorted(message for message in found if " " in message.text and re.search("[A-Za-z]{4}", message.text))


def _made(source: _Source, call: ast.Call, scope: ast.AST, classes: set[str]) -> set[str]:
    """The classes of errors that a call makes: its own, one that it is given, or one that its function is given."""
    name = _last_name(call.func)
    if name in classes or name in {"isinstance", "issubclass", "cast"}:
        return {name} & classes
    named = [one for one in (call.func, *call.args) if isinstance(one, ast.Name)]
    given = {one.id for one in named} & classes
    if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
        for one in named:
            passed = [value for value, _ in _values(source, one.id, scope)]
            passed += [half for value in passed if isinstance(value, ast.IfExp) for half in (value.body, value.orelse)]
            given |= {value.id for value in passed if isinstance(value, ast.Name)} & classes
    return given


def _texts(source: _Source, value: ast.expr, scope: ast.AST, deep: int) -> set[str]:
    """The texts that an expression may be, with a gap for each value in them."""
    match value:
        case ast.Constant(str(text)):
            return {text}
        case ast.JoinedStr(parts):
            return _joined(source, parts, scope, deep)
        case ast.BinOp(left, ast.Add(), right):
            halves = [_texts(source, half, scope, deep) or {GAP} for half in (left, right)]
            return {first + second for first, second in product(*halves)}
        case ast.IfExp(_, first, second):
            return _texts(source, first, scope, deep) | _texts(source, second, scope, deep)
        case ast.Name(name) if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef) and deep:
            given = _values(source, name, scope)
            return set().union(*(_texts(source, one, where, deep - 1) for one, where in given))
        case ast.Call(function) if deep and source.defined[name := _last_name(function)] == 1:
            given = source.returns[name]
            return set().union(*(_texts(source, one, where, deep - 1) for one, where in given))
    return set()


def _joined(source: _Source, parts: list[ast.expr], scope: ast.AST, deep: int) -> set[str]:
    """A formatted text; where nearly all of it is values, the texts of these too, each by itself."""
    whole = re.sub(f"{GAP}+", GAP, "".join(str(p.value) if isinstance(p, ast.Constant) else GAP for p in parts))
    found = {whole}
    if len(re.findall(r"\w", whole)) < _FEW:
        for part in parts:
            if isinstance(part, ast.FormattedValue):
                found |= _texts(source, part.value, scope, deep)
    return found


@cache
def _assigned(scope: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, list[ast.expr]]:
    """What a function assigns to each name."""
    found = defaultdict[str, list[ast.expr]](list)
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign | ast.NamedExpr):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    found[target.id].append(node.value)
    return found


def _values(
    source: _Source, name: str, scope: ast.FunctionDef | ast.AsyncFunctionDef
) -> list[tuple[ast.expr, ast.AST]]:
    """What a name of a function may be: assigned there, or passed by a caller; each with where it stands."""
    found: list[tuple[ast.expr, ast.AST]] = [(value, scope) for value in _assigned(scope)[name]]
    names = [given.arg for given in (*scope.args.posonlyargs, *scope.args.args)]
    keywords = [given.arg for given in scope.args.kwonlyargs]
    found += [(default, scope) for given, default in _defaults(scope.args) if given == name]
    if name in names or name in keywords:
        place = names.index(name) - (names[0] in {"self", "cls"}) if name in names else None
        for call, caller in source.calls[scope.name]:
            found += [(word.value, caller) for word in call.keywords if word.arg == name]
            if place is not None:
                found += [(one, caller) for one in call.args[place : place + 1]]
    return found


def _defaults(given: ast.arguments) -> Iterator[tuple[str, ast.expr]]:
    places = [*given.posonlyargs, *given.args]
    for one, default in zip(reversed(places), reversed(given.defaults), strict=False):
        yield one.arg, default
    for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        if default is not None:
            yield one.arg, default


def _core_messages() -> Iterator[str]:
    """Sentences in the code of the core; those of its tests are left out."""
    for path in sorted([*(CORE / "core" / "src").rglob("*.rs"), *(CORE / "py" / "src").rglob("*.rs")]):
        code = path.read_text("utf-8").partition("#[cfg(test)]")[0]
        for _, text in _RUST_TEXT.findall(code):
            plain = re.sub(r"\\\n\s*", "", text).replace('\\"', '"')
            if " " in plain and plain[0] not in "<(":
                yield re.sub(f"{GAP}+", GAP, re.sub(r"\{[^{}]*\}", GAP, plain))
