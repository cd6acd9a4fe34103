"""The table of cases, which the modules of cases fill."""

from __future__ import annotations

from collections.abc import Callable

from stage import Stage

Case = Callable[[Stage], object]

CASES: dict[str, Case] = {}
"""How each run is made, by its name."""

PARTS: dict[str, tuple[str, ...]] = {}
"""Of cases in which other parts depend on the time: what is recorded, by the name of the case."""


def case(name: str, *parts: str) -> Callable[[Case], Case]:
    """Enter a case, of which the named parts are recorded; all of them when none are named."""

    def enter(make: Case) -> Case:
        assert name not in CASES, name
        CASES[name] = make
        if parts:
            PARTS[name] = parts
        return make

    return enter
