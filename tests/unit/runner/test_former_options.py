"""Names of options in 0.1: they are taken for one release, with a warning, and mean what the new ones do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from atlas import agent, tasks

import trunkline as tl
from trunkline.runner.options import FORMER, with_defaults
from trunkline.scoring.rewards import REWARDS

LLM = tl.LLM("http://127.0.0.1:9/v1")
VALUES: dict[str, Any] = {"weights": "v2", "tail": "keep", "settled": 0.5, "start_from": "earlier.run"}


@pytest.mark.parametrize("old", FORMER)
def test_an_old_option_warns_and_means_the_new_one(old: str):
    new, value = FORMER[old], VALUES[old]
    with pytest.warns(DeprecationWarning, match=f"^the option {old} is called {new} now$"):
        assert with_defaults({old: value}) == with_defaults({new: value})  # type: ignore[typeddict-item]
    with (
        pytest.warns(DeprecationWarning, match="called"),
        pytest.raises(TypeError, match=f"{old} is the old name of {new}"),
    ):
        with_defaults({old: value, new: value})  # type: ignore[typeddict-item]


def test_the_warning_names_the_line_that_gave_the_option():
    with pytest.warns(DeprecationWarning, match="the option settled") as warned:
        planned = tl.plan(agent(), tasks(), llm=LLM, strategy=tl.Chain(4, wave=1), reward=tl.exact_match, settled=0.5)
    assert [Path(one.filename).name for one in warned] == [Path(__file__).name]
    assert planned.settings["stopping"]["settled"] == 0.5


def test_an_agent_takes_void():
    with pytest.warns(DeprecationWarning, match=r"^Agent\(void=\) is called on_void_turn= now$"):
        old = tl.Agent(model="m", void="stop")
    assert old == tl.Agent(model="m", on_void_turn="stop")
    assert msgspec.to_builtins(old)["void"] == "stop", "run files and configurations hold the old name"
    with (
        pytest.warns(DeprecationWarning, match="called"),
        pytest.raises(TypeError, match="void is the old name of on_void_turn"),
    ):
        tl.Agent(model="m", void="stop", on_void_turn="tell")


def test_the_reward_of_formulas_has_its_old_name_too():
    assert "maths" in REWARDS
    assert "maths" not in list(REWARDS)
    assert REWARDS.find("maths", options=True) is REWARDS.find("math", options=True) is tl.rewards.Math
    assert REWARDS["maths"] is REWARDS["math"]
