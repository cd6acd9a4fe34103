"""The page of estimators lists every preset with the options that it has, and every option with its default."""

from __future__ import annotations

import re

from places import ROOT

import trunkline as tl

PAGE = (ROOT / "docs" / "reference" / "estimators.md").read_text()
OF_NODES = {"count_masked": True, "drop_zero": False}


def rows(heading: str) -> list[list[str]]:
    """The rows of the table in a section, without its head."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines[2:]]


def value(text: str) -> str | float | bool:
    if text in {"True", "False"}:
        return text == "True"
    return float(text) if re.fullmatch(r"[\d.e-]+", text) else text


def given(cell: str) -> dict[str, str | float | bool]:
    return {name: value(text) for name, text in re.findall(r"(\w+)=([^`]+)", cell)}


DEFAULTS = {name: value(default.strip("`")) for name, default, *_ in rows("Options of groups")}
LISTED = {
    name: given(cells[-1])
    for section in ("Presets of rollouts", "Presets of rollouts in trees", "Presets of steps", "Presets of nodes")
    for name, *cells in rows(section)
}


def test_every_preset_has_the_options_that_the_page_lists():
    assert sorted(LISTED) == sorted(tl.train.presets())
    for name, options in tl.train.presets().items():
        of_groups = "ddof" in options and name != "spo_grpo"
        base = {key: DEFAULTS[key] for key in options.keys() & DEFAULTS.keys()} if of_groups else OF_NODES
        shown = base | LISTED[name]
        if "subgroup_singleton" not in LISTED[name]:
            # Of no meaning where rows are compared in one scope.
            shown.pop("subgroup_singleton", None)
            options.pop("subgroup_singleton", None)
        options.pop("lands")
        assert shown == options, name


def test_every_option_is_described():
    named = set(DEFAULTS) | {name for name, *_ in rows("Options of other presets")}
    assert named == {key for options in tl.train.presets().values() for key in options} - {"lands"}
