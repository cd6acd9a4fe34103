"""How often a turn crosses into the native core."""

from __future__ import annotations

import sys
from collections import Counter

from draws_table import Counted, completion, open_table


async def test_a_turn_crosses_into_the_core_twice():
    table = open_table(Counted(lambda body: completion(["and on"])), 1)
    (rollout,) = table.rollouts
    await rollout.ask(table.compiled)  # Names are interned once a tree.
    crossed: Counter[str] = Counter()

    def note(_frame: object, event: str, called: object) -> None:
        owner = type(getattr(called, "__self__", None)).__module__
        if event == "c_call" and "trunkline._core" in (owner, getattr(called, "__module__", "")):
            crossed[getattr(called, "__name__", "?")] += 1

    sys.setprofile(note)
    try:
        await rollout.ask(table.compiled)
    finally:
        sys.setprofile(None)
    assert crossed == {"continuation": 1, "append_reply": 1}
