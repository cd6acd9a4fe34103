"""A system that refuses namespaces and user ids of their own, as some that run tests do."""

from __future__ import annotations

import pytest

from trunkline.tools.isolation import sandbox

_REFUSING = """\
from trunkline.tools.isolation import confinement
def no(*given): raise confinement.ConfinementError("namespaces: not permitted")
confinement.namespaces = no
confinement.unused = no
"""


def refuse_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let supervisors that are started from now on be refused every way but ``limit``."""
    path, main = sandbox._BOOT.split("; from ", 1)
    monkeypatch.setattr(sandbox, "_BOOT", f"{path}\n{_REFUSING}from {main}")
    monkeypatch.setattr(sandbox, "_found", {})
