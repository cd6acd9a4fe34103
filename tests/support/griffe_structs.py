"""An extension of griffe for the site: fields of a msgspec Struct are parameters of its class, as in a dataclass."""

from __future__ import annotations

from typing import Any

from griffe import Attribute, Class, Extension, Function, Parameter, ParameterKind, Parameters


class StructSignatures(Extension):
    """Gives each Struct the ``__init__`` that msgspec makes."""

    def on_package(self, *, pkg: Any, **_: Any) -> None:
        """Once all classes are read: fields come from bases too."""
        _visit(pkg)


def _visit(holder: Any) -> None:
    for member in list(holder.members.values()):
        if member.is_alias:
            continue
        if member.is_class and "__init__" not in member.members and _is_struct(member):
            member.set_member("__init__", _made_by_msgspec(member))
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
            note = "ClassVar" if member.is_alias or not member.is_attribute else str(member.annotation or "ClassVar")
            if "ClassVar" not in note:
                fields[name] = member
    kind_of = ParameterKind.keyword_only if keywords else ParameterKind.positional_or_keyword
    given = [Parameter("self", kind=ParameterKind.positional_or_keyword)]
    given += [
        Parameter(
            name, annotation=field.annotation, kind=kind_of, default=None if field.value is None else str(field.value)
        )
        for name, field in fields.items()
        if not name.startswith("_")
    ]
    return Function("__init__", parameters=Parameters(*given), parent=one, returns="None")
