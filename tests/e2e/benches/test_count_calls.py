"""How many interpreter calls a model call, a one-turn task and a team's row may take."""

import pytest
import uvloop

from count_calls import WAYS, count

BOUNDS = {"agent": 114, "one_turn": 226, "team": 270}
"""Calls at most: some percent above what `python benches/count_calls.py` prints, to be lowered with it.

A machine that is loaded sends what waits for the run file more often.
"""


@pytest.mark.parametrize("way", WAYS)
def test_no_more_interpreter_calls_than_their_bound(way):
    found = uvloop.run(count(way))
    most = sorted(found.items(), key=lambda item: -item[1])[:20]
    assert sum(found.values()) <= BOUNDS[way], most


def test_three_tools_are_counted_of_four_calls_and_no_call_of_the_server():
    found = uvloop.run(count("agent"))
    assert [calls for function, calls in found.items() if function.name == "brief"] == [0.75]
    assert not any(function.name.startswith(("Server.", "_answer")) for function in found)
