"""Lanes beside a model that keeps a list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.llm.batch.activity import Activity

MOVES = {"run": "running", "ask": "asking", "leave": "away", "end": None}


@pytest.mark.parametrize("core", [True, False])
@given(moves=st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["open", *MOVES])), max_size=60))
def test_counts_are_those_of_a_list_of_states_and_stillness_is_told(core: bool, moves: list[tuple[int, str]]):
    told = []
    lanes = Activity(lambda: told.append(1), core=core)
    opened, states = [], []
    for which, move in moves:
        ran, before = states.count("running"), len(told)
        if move == "open":
            opened.append(lanes.open())
            states.append("running")
        elif which < len(opened):
            getattr(opened[which], move)()
            if states[which] is not None:
                states[which] = MOVES[move]
        assert (lanes.running, lanes.asking, lanes.away) == tuple(
            states.count(state) for state in ("running", "asking", "away")
        )
        if ran and not lanes.running:
            assert len(told) == before + 1, "the last lane that ran has stopped"
        elif ran:
            assert len(told) == before


@pytest.mark.parametrize("core", [True, False])
def test_a_lane_that_ended_stays_ended(core: bool):
    lanes = Activity(core=core)
    lane = lanes.open()
    lane.end()
    lane.run()
    lane.end()
    assert (lanes.running, lanes.asking, lanes.away) == (0, 0, 0)
