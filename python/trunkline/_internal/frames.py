"""Frames of user code, as opposed to those of this library, of Python, of event loops and of installed packages."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trunkline._internal.text import printable
from trunkline.errors import TrunklineError

if TYPE_CHECKING:
    from types import FrameType

_OURS: Final = str(Path(__file__).parents[1]) + os.sep
_WORKER: Final = str(Path(_OURS, "worker", "main.py"))
"""Below all that a worker runs, event loop and dependencies too."""

_PYTHON: Final = (sysconfig.get_path("stdlib") + os.sep, "<frozen")
_PACKAGES: Final = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")})
_LOOPS: Final = tuple(f"{os.sep}{name}{os.sep}" for name in ("asyncio", "uvloop"))


def is_users(file: str) -> bool:
    """Whether a source file is neither of this library nor of Python or an event loop."""
    if file.startswith(_OURS) or any(loop in file for loop in _LOOPS):
        return False
    return file.startswith(_PACKAGES) or not file.startswith(_PYTHON)


def users_function(frame: FrameType | None) -> str | None:
    """Name the innermost function of user code; one of an installed package only where this library called it."""
    packaged = None
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            place = f"{frame.f_code.co_qualname} ({file}:{frame.f_lineno})"
            if not file.startswith(_PACKAGES):
                return printable(place)
            packaged = packaged or place
        elif packaged is not None and file.startswith(_OURS) and file != _WORKER:
            return printable(packaged)
        frame = frame.f_back
    return None


def users_traceback(error: BaseException) -> str:
    """Format an exception with the frames of user code alone; an unexpected error of this library keeps all frames."""
    told = traceback.TracebackException.from_exception(error)
    one: traceback.TracebackException | None = told
    of: BaseException | None = error
    while one is not None and of is not None:
        kept = [frame for frame in one.stack if is_users(frame.filename)]
        own = isinstance(of, TrunklineError) or not one.stack or not one.stack[-1].filename.startswith(_OURS)
        if kept and own:
            one.stack = traceback.StackSummary.from_list(kept)
        one, of = (one.__cause__, of.__cause__) if one.__cause__ is not None else (one.__context__, of.__context__)
    return "".join(told.format())


def warn_user(text: str, category: type[Warning]) -> None:
    """Warn at the line of user code that led here."""
    at = frame = sys._getframe(1)
    while not is_users(at.f_code.co_filename):
        if at.f_back is None:
            at = frame
            break
        at = at.f_back
    registry = at.f_globals.setdefault("__warningregistry__", {})
    module = at.f_globals.get("__name__", "<unknown>")
    warnings.warn_explicit(text, category, at.f_code.co_filename, at.f_lineno, module, registry)
