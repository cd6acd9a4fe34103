"""The teams that type checkers read also work."""

from __future__ import annotations

import typed_teams


def test_teams_that_type_checkers_pass_are_made():
    plain, rounds, deeper, _ = typed_teams.teams()
    assert (plain.model, rounds.rounds, rounds.names, deeper.rounds, deeper.depth) == ("m", 5, ["a"], 3, 2)
