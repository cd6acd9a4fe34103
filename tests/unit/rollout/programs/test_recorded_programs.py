"""Records of an earlier version, which held results for twelve turns of its loop and wrote down no timer, replayed."""

from __future__ import annotations

import json

import pytest
from plays import cuts, play, turns
from recorded_programs import FILE, PROGRAMS, Voices, unpacked

RECORDS = json.loads(FILE.read_text("utf-8"))


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_record_of_an_earlier_version_comes_to_the_same_tree_from_wherever_it_was_broken_off(name: str):
    record = RECORDS[name]
    for core in cuts(unpacked(record["deltas"])):
        before, failed = turns(core), sum("BadRequest" in mark for mark in core.marks())
        again = await play(PROGRAMS[name], Voices(), core)
        assert again.end[:2] == ("answer", record["answer"]), again.end
        assert str(again.tree.digest()) == record["digest"], f"broken off with {before} turns"
        assert len(again.llm.asked) <= record["asked"] - before - failed, "what is on record is not asked again"


def test_there_is_a_record_of_every_program():
    assert list(RECORDS) == list(PROGRAMS)
