"""An extension of griffe for the site, where what it reads from the source is not what a caller may write.

Fields of a msgspec Struct are parameters of its class, as in a dataclass. Keywords of a TypedDict are parameters of a
function whose docstring describes each of them. What a docstring says of a returned value is one text, also where it
takes several lines. A default that is a constant is its value.
"""

from __future__ import annotations

import ast
from typing import Any

from griffe import AliasResolutionError, Attribute, Class, Extension, Function, Parameter, ParameterKind, Parameters

_LONG = 30
"""Characters of a constant's value that a signature has in place of its name."""


class StructSignatures(Extension):
    """Gives each Struct the ``__init__`` that msgspec makes, and mends parameters and docstrings of functions."""

    def on_package(self, *, pkg: Any, **_: Any) -> None:
        """Once all classes are read: fields come from bases too."""
        _visit(pkg)


def _visit(holder: Any) -> None:
    for member in list(holder.members.values()):
        if member.is_alias:
            continue
        if member.is_class and "__init__" not in member.members and _is_struct(member):
            member.set_member("__init__", _made_by_msgspec(member))
        if member.docstring is not None:
            one_text = {"returns_multiple_items": False, "returns_named_value": False}
            member.docstring.parser_options = {**member.docstring.parser_options, **one_text}
        if member.is_function:
            _unpack(member)
            for parameter in member.parameters:
                parameter.default = _value(parameter.default, member)
        if member.is_class or member.is_module:
            _visit(member)


def _bases(one: Class) -> list[Class]:
    return [base for base in one.mro() if base.is_class]


def _is_struct(one: Class) -> bool:
    return any(str(base).rpartition(".")[2] == "Struct" for kind in (one, *_bases(one)) for base in kind.bases)


def _made_by_msgspec(one: Class) -> Function:
    fields: dict[str, Attribute] = {}
    keywords = False
    for kind in (*reversed(_bases(one)), one):
        keywords = keywords or str(kind.keywords.get("kw_only", "")) == "True"
        for name, member in kind.members.items():
            # A property is an attribute too; what has no annotation, or is a ClassVar, is of the class alone.
            field = member.is_attribute and not member.is_alias and member.annotation is not None
            if field and "instance-attribute" in member.labels:
                fields[name] = member
    kind_of = ParameterKind.keyword_only if keywords else ParameterKind.positional_or_keyword
    given = [Parameter("self", kind=ParameterKind.positional_or_keyword)]
    given += [
        Parameter(name, annotation=field.annotation, kind=kind_of, default=_value(_default(field.value), field))
        for name, field in fields.items()
        if not name.startswith("_")
    ]
    return Function("__init__", parameters=Parameters(*given), parent=one, returns="None")


def _default(value: Any) -> str | None:
    """The default of a field, also one that stands in ``msgspec.field``."""
    if value is None:
        return None
    found = ast.parse(str(value), mode="eval").body
    if isinstance(found, ast.Call) and ast.unparse(found.func) in {"field", "msgspec.field"}:
        words = {word.arg: ast.unparse(word.value) for word in found.keywords}
        return words.get("default") or (f"{words['default_factory']}()" if "default_factory" in words else None)
    return str(value)


def _value(default: Any, holder: Any) -> Any:
    """A default as it is, or what the constant is that it names."""
    found = holder.module.members.get(str(default)) if str(default).isupper() else None
    try:
        found = found.final_target if found is not None and found.is_alias else found
        plain = ast.literal_eval(str(found.value)) if found is not None else None
    except (AliasResolutionError, ValueError, SyntaxError):
        return default
    return default if plain is None or len(repr(plain)) > _LONG else repr(plain)


def _unpack(function: Function) -> None:
    """Take apart the keywords of a function whose docstring has a line for each."""
    for parameter in list(function.parameters):
        annotation = str(parameter.annotation)
        if parameter.kind is not ParameterKind.var_keyword or not annotation.startswith("Unpack["):
            continue
        options = function.module.members.get(annotation.removeprefix("Unpack[").removesuffix("]"))
        said = "" if function.docstring is None else function.docstring.value
        if options is None or options.is_alias or not all(f"\n    {name}: " in said for name in options.members):
            continue
        given = [one for one in function.parameters if one is not parameter]
        given += [
            Parameter(name, annotation=one.annotation, kind=ParameterKind.keyword_only, default="...")
            for name, one in options.members.items()
        ]
        function.parameters = Parameters(*given)
