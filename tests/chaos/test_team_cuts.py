"""Teams that are broken off after any delta and gone on with: the same tree, the same rows, nothing paid for twice."""

from __future__ import annotations

import pytest
from plays import cuts, play, turns
from small_teams import TEAMS, Act, Cast, acts, rows

from trunkline.strategies.chain import Chain


def ends(llm: Cast) -> int:
    """Requests that brought a turn."""
    return sum(model != "absent" for model in llm.asked)


@pytest.mark.parametrize("name", TEAMS)
async def test_a_team_that_is_broken_off_anywhere_comes_to_the_same_rows(name: str) -> None:
    whole = await play(TEAMS[name], Cast(), strategy=Chain(2))
    core = whole.tree.core
    assert {core.rollout(number).termination for number in range(2)} == {"answer"}
    there = [rows(core, number) for number in range(2)]
    for point in cuts(whole.deltas):
        before = turns(point)
        llm = Cast()
        again = await play(TEAMS[name], llm, point, strategy=Chain(2))
        assert again.tree.digest() == whole.tree.digest(), f"broken off with {before} turns"
        assert [rows(again.tree.core, number) for number in range(2)] == there
        assert ends(llm) == turns(core) - before, "each turn that was there is paid for once, and each other one"


@pytest.mark.parametrize("name", ["experts", "council", "stubborn"])
async def test_who_answers_first_makes_no_difference_to_the_rows_of_a_gather(name: str) -> None:
    calm = await play(TEAMS[name], Cast())
    for slow in ("theorist", "left", "absent", "sceptic"):
        late = await play(TEAMS[name], Cast(lambda model, slow=slow: 50 * (model == slow)))
        assert rows(late.tree.core, 0) == rows(calm.tree.core, 0)
        assert late.tree.digest() == calm.tree.digest()


async def test_a_role_whose_endpoint_refuses_is_on_record_and_nothing_of_it_is_a_row() -> None:
    whole = await play(TEAMS["stubborn"], Cast())
    refused = [act for act in acts(whole.tree.core, 0) if act.role == "absent"]
    assert refused == [Act("ask", "absent", (), None, True)] * 2
    assert whole.roles == ["present"] * 5
