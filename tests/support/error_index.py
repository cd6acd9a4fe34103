"""Messages of the public errors, read from the source: the text of each, with … where a value stands.

A message is what a call of an error's class is given. Where that is a variable, what its function assigns to it counts;
where it is a parameter, what callers of that function pass. A text that is made of values is listed by its parts.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

from places import ROOT

PACKAGE = ROOT / "python" / "trunkline"
CORE = ROOT / "rust_core"
GAP = "…"
_DEEP = 3
"""How many calls a text is followed through."""
_RUST_TEXT = re.compile(
    r"""//[^\n]*|b?r(#*)".*?"\1|b?'(?:[^'\\\n]|\\[^\n][^'\n]{0,8})'|"((?:[^"\\]|\\.)*)\"""", re.DOTALL
)
_ATTRIBUTE = re.compile(r"#!?\[(?:expect|allow)\(.*?\)\]", re.DOTALL)
"""Why a lint does not hold somewhere, which nothing says."""
_FEW = 8
_LOGGERS = {"logger", "_logger", "log", "warnings"}
_OF_TYPES = {name for kind in (str, bytes, dict, list, set, Path) for name in dir(kind)}
"""Names of methods that, behind a dot, are probably those of a text, a list and so on."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef
CORE_ERRORS = "ArgumentError, TreeError, ReplyError"


class _Frame(NamedTuple):
    """A function in which an expression stands, and the call of it that is looked at; all of its calls without one."""

    function: ast.AST
    call: ast.Call | None = None
    caller: _Frame | None = None


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
        self.returns = defaultdict[ast.AST, list[ast.expr]](list)
        self.defined = defaultdict[str, list[_Function]](list)
        self.calls = defaultdict[str, list[tuple[ast.Call, ast.AST]]](list)
        self.places: dict[ast.AST, tuple[Path, str]] = {}
        """The file of each function and call, and the class that it is in, empty for none."""
        for path in sorted(PACKAGE.rglob("*.py")):
            if "examples" not in path.parts:
                tree = ast.parse(path.read_text("utf-8"))
                self._read(tree, tree, path, "")

    def _read(self, node: ast.AST, scope: ast.AST, path: Path, kind: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner, within = scope, kind
            if isinstance(child, ast.ClassDef):
                within = child.name
            elif isinstance(child, _Function):
                inner = child
                self.places[child] = (path, kind if isinstance(node, ast.ClassDef) else "")
                self.defined[child.name].append(child)
            elif isinstance(child, ast.Return) and child.value:
                self.returns[scope].append(child.value)
            elif isinstance(child, ast.Call) and (name := _last_name(child.func)):
                self.places[child] = (path, kind)
                self.calls[name].append((child, scope))
            self._read(child, inner, path, within)

    def room(self, node: ast.AST) -> str:
        """The first folder or module of the package that a call stands in."""
        return self.places[node][0].relative_to(PACKAGE).parts[0].removesuffix(".py")

    def called(self, call: ast.Call) -> _Function | None:
        """The function of the package that a call is of, where its name leaves no doubt."""
        path = self.places[call][0]
        found = [one for one in self.defined[_last_name(call.func)] if self._fits(call, one)]
        for near in (
            [one for one in found if self.places[one][0] == path],
            [one for one in found if self.places[one][1] and self.places[one][1] in _text_of(path)],
            found,
        ):
            if near:
                return near[0] if len(near) == 1 else None
        return None

    def callers(self, function: _Function) -> list[tuple[ast.Call, ast.AST]]:
        """The calls of a function, each with the function that it stands in."""
        kind = self.places[function][1]
        calls = self.calls[kind if function.name == "__init__" else function.name]
        return [found for found in calls if function.name == "__init__" or self.called(found[0]) is function]

    def _fits(self, call: ast.Call, function: _Function) -> bool:
        (path, kind), (home, owner) = self.places[call], self.places[function]
        if not isinstance(call.func, ast.Attribute):
            # Functions of a file that begin with _ are its own.
            return not owner and (path == home or not function.name.startswith("_"))
        base = ast.unparse(call.func.value)
        if base in {"self", "cls"}:
            return bool(owner) and (kind == owner or path == home or len(self.defined[function.name]) == 1)
        if not owner:
            return base == home.stem
        return base not in _LOGGERS and function.name not in _OF_TYPES


@cache
def _text_of(path: Path) -> str:
    return path.read_text("utf-8")


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
            room = source.room(call)
            for name in _made(source, call, _Frame(scope), classes):
                for given in [*call.args, *(word.value for word in call.keywords if word.arg == "message")]:
                    texts = _texts(source, given, _Frame(scope), _DEEP)
                    found |= {Message(name, room, re.sub(f"{GAP}+", GAP, text)) for text in texts}
    return sorted(message for message in found if _says_something(message.text))


def _says_something(text: str) -> bool:
    return " " in text and (re.search("[A-Za-z]{4}", text) is not None or len(re.findall(r"\w", text)) >= _FEW - 1)


def _made(source: _Source, call: ast.Call, frame: _Frame, classes: set[str]) -> set[str]:
    """The classes of errors that a call makes: its own, one that it is given, or one that its function is given."""
    name = _last_name(call.func)
    if name in classes or name in {"isinstance", "issubclass", "cast"}:
        return {name} & classes
    named = [one for one in (call.func, *call.args) if isinstance(one, ast.Name)]
    given = {one.id for one in named} & classes
    for one in named:
        passed = [value for value, _ in _values(source, one.id, frame)]
        passed += [half for value in passed if isinstance(value, ast.IfExp) for half in (value.body, value.orelse)]
        given |= {value.id for value in passed if isinstance(value, ast.Name)} & classes
    return given


def _texts(source: _Source, value: ast.expr, frame: _Frame, deep: int) -> set[str]:
    """The texts that an expression may be, with a gap for each value in them."""
    match value:
        case ast.Constant(str(text)):
            return {text}
        case ast.JoinedStr(parts):
            return _joined(source, parts, frame, deep)
        case ast.BinOp(left, ast.Add(), right):
            halves = [_texts(source, half, frame, deep) or {GAP} for half in (left, right)]
            return {first + second for first, second in product(*halves)}
        case ast.IfExp(_, first, second):
            return _texts(source, first, frame, deep) | _texts(source, second, frame, deep)
        case ast.Name(name) if deep:
            given = _values(source, name, frame)
            return set().union(*(_texts(source, one, where, deep - 1) for one, where in given))
        case ast.Call() if deep and value in source.places and (function := source.called(value)):
            inside = _Frame(function, value, frame)
            return set().union(*(_texts(source, one, inside, deep - 1) for one in source.returns[function]))
    return set()


def _joined(source: _Source, parts: list[ast.expr], frame: _Frame, deep: int) -> set[str]:
    """A formatted text; where nearly all of it is values, the texts of these too, each by itself."""
    whole = re.sub(f"{GAP}+", GAP, "".join(str(p.value) if isinstance(p, ast.Constant) else GAP for p in parts))
    found = {whole}
    if len(re.findall(r"\w", whole)) < _FEW:
        for part in parts:
            if isinstance(part, ast.FormattedValue):
                found |= _texts(source, part.value, frame, deep)
    return found


@cache
def _assigned(scope: _Function) -> dict[str, list[ast.expr]]:
    """What a function assigns to each name."""
    found = defaultdict[str, list[ast.expr]](list)
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign | ast.NamedExpr):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    found[target.id].append(node.value)
    return found


def _values(source: _Source, name: str, frame: _Frame) -> list[tuple[ast.expr, _Frame]]:
    """What a name of a function may be: assigned there, or passed by a caller; each with where it stands."""
    function, of_call, caller = frame
    if not isinstance(function, _Function):
        return []
    found = [(value, frame) for value in _assigned(function)[name]]
    names = [given.arg for given in (*function.args.posonlyargs, *function.args.args)]
    keywords = [given.arg for given in function.args.kwonlyargs]
    found += [(default, frame) for given, default in _defaults(function.args) if given == name]
    if name in names or name in keywords:
        place = names.index(name) - (names[0] in {"self", "cls"}) if name in names else None
        calls = [(call, _Frame(where)) for call, where in source.callers(function)] if of_call is None else []
        for call, where in [(of_call, caller)] if of_call and caller else calls:
            found += [(word.value, where) for word in call.keywords if word.arg == name]
            if place is not None:
                found += [(one, where) for one in call.args[place : place + 1]]
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
        code = _ATTRIBUTE.sub("", path.read_text("utf-8").partition("#[cfg(test)]")[0])
        for _, text in _RUST_TEXT.findall(code):
            plain = re.sub(r"\\\n\s*", "", text).replace('\\"', '"')
            if " " in plain and plain[0] not in "<(" and not re.search(r"\\[r0]|:$", plain):
                yield re.sub(f"{GAP}+", GAP, re.sub(r"\{[^{}]*\}", GAP, plain))
