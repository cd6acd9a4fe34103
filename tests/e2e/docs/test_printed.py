"""What pages print inline: names exist, calls take the arguments that they are shown with, short examples run."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from types import ModuleType

import msgspec
import own_strategy
import pytest
from places import ROOT

import trunkline as tl
from studies.arms import ARMS

PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text() for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
}
STRATEGY = re.compile(r"\b((?:Adaptive|Chain|EntropyTree|MCTS|Partial|TreeGRPO|TreeSearch)\([\d, ]*\))")


GROUPS = [getattr(tl, name) for name in tl.__all__ if isinstance(getattr(tl, name), ModuleType)]
NAMES = {name: getattr(group, name) for group in GROUPS[:-1] for name in group.__all__ if name[0].isupper()}
NAMES |= {name: getattr(tl, name) for name in tl.__all__}
"""Of the package and its groups, as pages print them."""


def found(dotted: str) -> object | None:
    """What the library has under a name, if anything; one of a group may stand alone."""
    first, *rest = dotted.split(".")
    there: object | None = NAMES.get(first)
    for part in rest:
        there = getattr(there, part, None)
    return there


def calls(text: str) -> Iterator[ast.Call]:
    """The calls in the inline code of a page, without those that leave arguments out."""
    for code in re.findall(r"`([^`\n]+\))`", text):
        try:
            parsed = ast.parse(code, mode="eval")
        except SyntaxError:
            continue
        for node in ast.walk(parsed):
            if isinstance(node, ast.Call) and not any(ast.unparse(given) == "..." for given in node.args):
                yield node


@pytest.mark.parametrize("page", PAGES)
def test_every_name_and_call_of_the_library_is_one_that_there_is(page: str):
    missing = {name for name in re.findall(r"\btl\.(\w+(?:\.\w+)*)", PAGES[page]) if found(name) is None}
    assert missing == set()
    for call in calls(PAGES[page]):
        function = found(ast.unparse(call.func).removeprefix("tl."))
        if callable(function):
            names = {given.arg: None for given in call.keywords if given.arg}
            inspect.signature(function).bind_partial(*call.args, **names)


@pytest.mark.parametrize("page", PAGES)
def test_every_strategy_can_be_made_as_it_is_printed(page: str):
    for form in set(STRATEGY.findall(PAGES[page])):
        made = eval(form, NAMES)
        assert made.rollouts() >= 1


def test_the_arms_of_the_study_are_what_they_are_called():
    rules = {"Adaptive(8, 4) AEPO": {"rule": "aepo", "monitor": True}}
    for name, arm in ARMS.items():
        (form,) = STRATEGY.findall(name)
        assert msgspec.structs.replace(eval(form, NAMES), **rules.get(name, {})) == arm.strategy


def test_pages_are_in_force_since_a_version_that_there_is():
    (version,) = re.findall(r'^version = "(\d+)\.(\d+)', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    there = tuple(map(int, version))
    for page, text in PAGES.items():
        said = [tuple(map(int, since)) for since in re.findall(r"in force since (\d+)\.(\d+)", text)]
        assert all(since <= there for since in said), page


def test_the_page_of_scheduling_says_which_parts_of_the_core_a_run_uses():
    said = PAGES["docs/decisions/scheduling.md"].partition("## Rejected")[0]
    package = "".join(path.read_text() for path in (ROOT / "python").rglob("*.py"))
    imported = {name for line in re.findall(r"_core import (.*)", package) for name in re.findall(r"\w+", line)}
    assert set(re.findall(r"`([A-Z]\w+)`", said)) == {"ActivityCounter", "BatchQueue", "Ledger", "Tally"} <= imported


def test_the_strategy_of_the_page_is_the_one_that_the_tests_run():
    class_, _, _ = inspect.getsource(own_strategy.Recheck).partition("\n\n\n")
    assert class_.replace("``", "`") in PAGES["docs/how-to/strategies.md"]
    assert isinstance(own_strategy.Recheck(), tl.strategies.Strategy)
