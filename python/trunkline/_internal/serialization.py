"""Sends user code to another process: a worker, or the process of an isolated tool.

An object that can be imported there crosses by name, ``module:qualname``. One that lives in a script's ``__main__``
crosses by the script's path: the worker imports that file under another name, so its main guard keeps it from running
again. All else (notebooks, closures, ``python -c``) crosses by value with cloudpickle, which is an extra.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline._internal.old_names import current_name
from trunkline._internal.text import describe_error
from trunkline.errors import CrossingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SCRIPT = "__trunkline_main__"
_SCRIPTS = {"__main__", _SCRIPT}
_CALLABLE = 1  # extension type of a field that is itself a crossing
_state = {"importing": False}


class SerializedObject(msgspec.Struct, frozen=True):
    """One object as it crosses: by module, script or pickle; a struct by its class and its fields in msgpack.

    With ``calls``, the object is what a call of that struct makes.
    """

    what: str
    module: str = ""
    script: str = ""
    qualname: str = ""
    fields: bytes | None = None
    pickled: bytes | None = None
    calls: bool = False


def pack(value: Any, what: str, *, by_value: bool = True) -> SerializedObject:
    """Serialize a function, a class, a ``@tool``, or a struct; ``by_value`` allows pickling one without a name."""
    named = _by_name(value, what)
    if named is not None:
        return named
    if isinstance(made_by := getattr(value, "made_by", None), msgspec.Struct):
        return msgspec.structs.replace(pack(made_by, what, by_value=by_value), calls=True)
    if isinstance(value, msgspec.Struct):
        kind = _by_name(type(value), what)
        if kind is not None:
            try:
                hook = partial(_pack_field, what, by_value)
                fields = msgspec.msgpack.encode(_with_own(value, hook), enc_hook=hook)
            except (TypeError, OverflowError, msgspec.MsgspecError):
                return _by_value(value, what, allowed=by_value)
            return msgspec.structs.replace(kind, fields=fields)
    return _by_value(value, what, allowed=by_value)


def load(serialized: SerializedObject) -> Any:
    """Rebuild an object in the worker."""
    if serialized.pickled is not None:
        try:
            return _cloudpickle(serialized.what).loads(serialized.pickled)
        except CrossingError:
            raise
        except (Exception, SystemExit) as error:
            raise CrossingError(f"{serialized.what}: the worker cannot rebuild it: {describe_error(error)}") from error
    name, qualname = current_name(serialized.module, serialized.qualname)
    if serialized.script:
        module = _script_module(serialized.script, serialized.what)
    else:
        try:
            module = importlib.import_module(name)
        except (Exception, SystemExit) as error:
            raise CrossingError(f"{serialized.what}: {_not_imported(repr(name), error)}") from error
    found = resolve(module, qualname)
    if found is None:
        raise CrossingError(
            f"{serialized.what}: {serialized.script or serialized.module} has no {serialized.qualname!r} in the worker"
        )
    if serialized.fields is not None:
        made = _filled(found, serialized)
        return made() if serialized.calls else made
    return found


def _filled(found: Any, serialized: SerializedObject) -> Any:
    try:
        return msgspec.msgpack.decode(serialized.fields or b"", type=found, ext_hook=_load_field)
    except CrossingError:
        raise
    except Exception as error:
        raise CrossingError(
            f"{serialized.what}: {serialized.script or serialized.module} has another {serialized.qualname!r}, "
            f"which cannot be made of what it was: {describe_error(error)}"
        ) from error


def fields_of(serialized: SerializedObject) -> Any:
    """Return the fields of a serialized struct as data, nested ones too; nothing is imported."""
    if serialized.fields is None:
        return None
    return msgspec.msgpack.decode(
        serialized.fields, ext_hook=lambda _code, data: fields_of(msgspec.msgpack.decode(data, type=SerializedObject))
    )


def _with_own(value: msgspec.Struct, hook: Callable[[object], msgspec.msgpack.Ext]) -> object:
    """Return a struct, or its fields if some hold callable structs: encoded as data, these would come back as data."""
    if value.__struct_config__.array_like or value.__struct_config__.tag is not None:
        return value
    names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
    fields = {name: getattr(value, field) for name, field in names}
    prepared = {name: _own(field, hook) for name, field in fields.items()}
    changed = [name for name in fields if prepared[name] is not fields[name]]
    if not changed:
        return value
    types = {field.encode_name: field.type for field in msgspec.structs.fields(value)}
    return prepared | {name: fields[name] for name in changed if _comes_back(fields[name], types[name])}


def _comes_back(value: object, kind: object) -> bool:
    """Whether a field's value survives being encoded as data and decoded by the field's type."""
    try:
        return bool(msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=kind) == value)
    except (TypeError, OverflowError, msgspec.MsgspecError):
        return False


def _own(value: Any, hook: Callable[[object], msgspec.msgpack.Ext]) -> Any:
    """Return a field's value as it crosses; the value itself where it holds no callable struct."""
    if isinstance(value, msgspec.Struct):
        return hook(value) if callable(value) else value
    if isinstance(value, dict):
        items = {key: _own(item, hook) for key, item in value.items()}
        return items if any(items[key] is not item for key, item in value.items()) else value
    if isinstance(value, list | tuple):
        listed = [_own(item, hook) for item in value]
        return listed if any(new is not item for new, item in zip(listed, value, strict=True)) else value
    return value


def _pack_field(what: str, by_value: bool, value: object) -> msgspec.msgpack.Ext:
    """Serialize a callable field of a struct, such as a strategy's value function."""
    if not callable(value):
        raise TypeError(f"{type(value).__name__} is no data")
    return msgspec.msgpack.Ext(_CALLABLE, msgspec.msgpack.encode(pack(value, what, by_value=by_value)))


def _load_field(code: int, data: memoryview) -> Any:
    return load(msgspec.msgpack.decode(data, type=SerializedObject))


def packed_argv() -> list[bytes]:
    """Return ``sys.argv`` as it crosses: a script that is imported in another process finds its own, as it may expect.

    An argument need not be UTF-8.
    """
    return [os.fsencode(word) for word in getattr(sys, "argv", ()) if isinstance(word, str)]


def set_argv(argv: Sequence[bytes]) -> None:
    """Take over the ``sys.argv`` of another process, if it had one."""
    if argv:
        sys.argv = [os.fsdecode(word) for word in argv]


def resolve(module: ModuleType, qualname: str) -> Any:
    """Follow a dotted name inside a module; None when it leads nowhere."""
    found: Any = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
        if found is None:
            return None
    return found


def module_of(value: Any) -> str:
    """Return the module that an object is imported from, also where it was started with ``-m``; empty for a script."""
    name = str(getattr(value, "__module__", ""))
    if name not in _SCRIPTS:
        return name
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return "" if spec is None or spec.name in _SCRIPTS else str(spec.name).removesuffix(".__main__")


def importing_script() -> bool:
    """Whether this worker is importing the user's script right now: a run started then lacks a main guard."""
    return _state["importing"]


def _by_name(value: Any, what: str) -> SerializedObject | None:
    """Return a crossing by name if the name leads back to this very object."""
    module_name = getattr(value, "__module__", None)
    qualname = getattr(value, "__qualname__", None)
    if not isinstance(module_name, str) or not isinstance(qualname, str) or "<" in qualname:
        return None
    module = sys.modules.get(module_name)
    if module is None or resolve(module, qualname) is not value:
        return None
    name = module_of(value)
    if name:
        return SerializedObject(what=what, module=name, qualname=qualname)
    # An object of a script that a worker has imported crosses from there by the script's path, too.
    script = getattr(module, "__file__", None)
    if script is not None and Path(script).is_file():
        return SerializedObject(what=what, script=str(Path(script).resolve()), qualname=qualname)
    return None


def _by_value(value: Any, what: str, *, allowed: bool) -> SerializedObject:
    """Pickle an object that no name leads to, if that is allowed."""
    if not allowed:
        raise CrossingError(f"{what} is not defined at the top level of a module")
    if isinstance(value, msgspec.Struct) and _loses_fields(type(value)):
        raise CrossingError(
            f"{what}: its class has settings and is defined in a notebook, a closure or on the command line, so it "
            "cannot be sent to a worker process; define it at the top level of a module, or run with workers=0 to stay "
            "in this process"
        )
    cloudpickle = _cloudpickle(what)
    try:
        return SerializedObject(what=what, pickled=cloudpickle.dumps(value))
    except Exception as error:
        kind = "function" if isinstance(value, FunctionType) else type(value).__name__
        raise CrossingError(
            f"{what}: this {kind} cannot be sent to a worker process ({describe_error(error)}); "
            "define it at the top level of a module, or run with workers=0 to stay in this process"
        ) from error


def _loses_fields(kind: type) -> bool:
    """Whether pickling a struct of some class loses fields: those of classes that no name leads to."""
    structs = [base for base in kind.__mro__ if isinstance(base, msgspec.StructMeta) and _by_name(base, "") is None]
    return any(set(base.__struct_fields__).intersection(vars(base).get("__slots__", ())) for base in structs)


def _cloudpickle(what: str) -> ModuleType:
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        raise CrossingError(
            f"{what} is defined in a notebook, a closure or on the command line, and reaches worker processes only "
            "with the notebook extra: pip install 'trunkline[notebook]'. Or define it at the top level of a module, "
            "or run with workers=0 to stay in this process"
        ) from None


def _not_imported(module: str, error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return (
            f"{module} ended itself ({describe_error(error)}) when a worker imported it; put what it does when it is "
            'run, such as parsing arguments, under  if __name__ == "__main__":'
        )
    return f"the worker cannot import {module}: {describe_error(error)}"


def _script_module(path: str, what: str) -> ModuleType:
    """Import the user's script under another name, once."""
    loaded = sys.modules.get(_SCRIPT)
    if loaded is not None:
        return loaded
    # Named outright, because a script needs no suffix to be one.
    loader = SourceFileLoader(_SCRIPT, path)
    module = importlib.util.module_from_spec(ModuleSpec(_SCRIPT, loader, origin=path))
    module.__file__ = path
    sys.modules[_SCRIPT] = module
    _state["importing"] = True
    try:
        loader.exec_module(module)
    except CrossingError:
        raise
    except (Exception, SystemExit) as error:
        raise CrossingError(f"{what}: {_not_imported(f'the script {path}', error)}") from error
    finally:
        _state["importing"] = False
    return module
