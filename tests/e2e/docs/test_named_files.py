"""Tests and modules that pages name are there."""

from __future__ import annotations

import re

import pytest
from places import ROOT

TESTS = ["explanation/durability", "decisions/faults"]
PAGES = sorted(
    f"{kind}/{path.stem}"
    for kind in ("explanation", "decisions", "reference")
    for path in (ROOT / "docs" / kind).glob("*.md")
)


def page(name: str) -> str:
    return (ROOT / f"docs/{name}.md").read_text("utf-8")


@pytest.mark.parametrize("name", TESTS)
def test_the_tests_that_hold_a_promise_are_there(name: str) -> None:
    named = set(re.findall(r"`((?:chaos|process|unit|property|e2e)/[\w/]+)`", page(name)))
    assert len(named) > 15
    assert {one for one in named if not any((ROOT / "tests" / f"{one}{end}").exists() for end in ("", ".py"))} == set()


def test_each_promise_has_a_test() -> None:
    rows = re.findall(r"^\| (P\d+) \| .+ \| (.+) \|$", page("explanation/durability"), re.MULTILINE)
    assert [promise for promise, _ in rows] == [f"P{number}" for number in range(1, 11)]
    assert all("`" in held_by for _, held_by in rows)


@pytest.mark.parametrize("name", PAGES)
def test_the_modules_that_a_page_names_are_there(name: str) -> None:
    core = ROOT / "rust_core/core"
    folders = [ROOT, ROOT / "python/trunkline", core, core / "src", *(core / "src").iterdir()]
    named = set(re.findall(r"`([\w./-]+/[\w-]+(?:\.(?:py|rs|yml))?|[\w-]+\.rs)`", page(name)))
    files = {one for one in named if one.endswith((".py", ".rs", ".yml")) or one.startswith(("tests/", "rust_core/"))}
    assert {one for one in files if not any((folder / one).exists() for folder in folders)} == set()
