"""What the pages of strategies and the simulator list is what there is."""

from __future__ import annotations

import re

import msgspec
from places import ROOT

from trunkline.rollout.checkpoint import Mark
from trunkline.sim.model.choices import PRESETS, Dials
from trunkline.sim.model.registry import MODELS
from trunkline.strategies import STRATEGIES

HOW_TO = (ROOT / "docs/how-to/strategies.md").read_text("utf-8")
GROWTH = (ROOT / "docs/explanation/strategies.md").read_text("utf-8")
SIMULATOR = (ROOT / "docs/explanation/simulator.md").read_text("utf-8")


def part(page: str, title: str) -> str:
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def first_column(text: str) -> set[str]:
    cells = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([\w-]+)`", cell)}


def test_every_strategy_is_in_the_table_under_its_class():
    listed = dict(re.findall(r"^\| `([\w-]+)` \| `(\w+)\(", part(HOW_TO, "Which strategy"), re.MULTILINE))
    assert listed == {name: STRATEGIES.find(name).__name__ for name in STRATEGIES}


def test_every_mark_is_in_the_table():
    kinds = {kind.__struct_fields__[0] for kind in Mark.__args__}
    assert kinds <= first_column(part(GROWTH, "Marks and replay"))


def test_models_dials_and_presets_are_those_of_the_simulator():
    assert first_column(part(SIMULATOR, "Models")) == set(MODELS)
    dials, presets = part(SIMULATOR, "Dials and presets").split("\n| preset |")
    listed = dict(re.findall(r"\| `(\w+)` \| `?([\w.]+)`? (?=\|)", dials))
    assert listed == {name: str(value) for name, value in msgspec.structs.asdict(Dials()).items() if name in listed}
    assert set(listed) == set(Dials.__struct_fields__)
    assert first_column(presets) == set(PRESETS)
