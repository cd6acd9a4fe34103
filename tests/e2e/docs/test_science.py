"""The page of science: its figures are those of the tables, and its commands are ones that there are."""

from __future__ import annotations

import re
import shlex

import pytest
from doc_pages import blocks
from places import ROOT

from studies.arms import ARMS
from studies.tables import NOTICE
from study import app

PAGE = (ROOT / "docs/science/index.md").read_text("utf-8")
TABLES = (ROOT / "docs/science/strategies-tables.md").read_text("utf-8")
LEARNT = (ROOT / "examples/rl_tools/results/report.md").read_text("utf-8")
PRESETS = ["default", "early-decisive", "late-decisive", "shared-misbelief", "null"]
SPREAD = re.compile(r"([+-]?\d\.\d+) \[([+-]?\d\.\d+), ([+-]?\d\.\d+)\]")


def answers() -> str:
    """The tables of aggregators."""
    found = [*ROOT.glob("docs/*/answers-tables.md")]
    return found[0].read_text("utf-8")


def spreads(text: str) -> set[tuple[float, ...]]:
    """Figures with their intervals, and what they are where the difference is taken the other way round."""
    found = {tuple(map(float, each)) for each in SPREAD.findall(re.sub(r"\s+", " ", text))}
    return found | {(-value, -high, -low) for value, low, high in found}


def test_figures_with_intervals_are_those_of_the_tables():
    own = re.compile(r"^\| (?:[A-Z]\w+\(|\d|\| \|).*$", re.MULTILINE)  # tables whose commands the page shows
    known = spreads(TABLES) | spreads(answers()) | spreads("\n".join(own.findall(PAGE)))
    said = spreads(own.sub("", PAGE))
    assert len(said) > 40
    assert said <= known


def test_the_curve_is_that_of_the_report_of_the_study():
    rows = re.findall(
        r"^\| (\d[\d,]* to [\d,]+) \| (.*) \| ([+-][\d.]+) \[([+-][\d.]+), ([+-][\d.]+)\] \|$", PAGE, re.MULTILINE
    )
    assert len(rows) == 6
    for tokens, means, mean, low, high in rows:
        assert f"| {tokens} | {means} | {mean} | {low} to {high} |" in LEARNT


def test_every_arm_is_in_the_tables_and_theory_holds():
    parts = re.split(r"^## ", TABLES, flags=re.MULTILINE)[1:]
    assert [part.partition("\n")[0] for part in parts[:5]] == PRESETS
    for part in parts[:5]:
        assert part.startswith(f"{part.partition(chr(10))[0]}\n\n640 questions of worlds 2001 to 2016.")
        assert re.findall(r"^\| ([^|]+) \| \d", part, re.MULTILINE) == 2 * list(ARMS)
        assert part.count(NOTICE) == 2
    assert "| no |" not in TABLES.casefold().replace("**", "")
    assert TABLES.count("| yes |") == 30


def commands() -> list[str]:
    shown = [block.text.replace("\\\n", " ") for block in blocks(PAGE) if block.language == "sh"]
    return [line for text in shown for line in text.splitlines() if line.startswith("python")]


@pytest.mark.parametrize("command", commands())
def test_a_command_is_one_that_there_is(command: str):
    _, script, *words = shlex.split(command)
    if script == "benches/study.py":
        name, *options = words
        app.commands[name].make_context(name, options)
        return
    module, *options = words
    file = ROOT / module if module.endswith(".py") else ROOT / "examples" / f"{module.replace('.', '/')}.py"
    if module == "pytest":
        file, options = ROOT / options[0], [option for option in options[1:] if option != "--benchmark-only"]
    source = file.read_text("utf-8") + (ROOT / "benches/conftest.py").read_text("utf-8")
    assert all(option in source for option in options if option.startswith("--"))


def test_the_tables_are_written_where_the_page_says():
    for name, place in (("strategies", "strategies-tables"), ("answers", "answers-tables")):
        assert f"python benches/study.py {name} --out docs/science/{place}.md" in commands()
