"""Pages that are made from the code are up to date, and the index of errors has every class and every message."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import error_index
import generated_pages
import pytest
from places import ROOT

import trunkline as tl

PAGES = generated_pages.makers()
INDEX = (ROOT / "docs" / "reference" / "errors.md").read_text("utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_what_the_code_says(page):
    assert page.read_text("utf-8") == PAGES[page](), "python tests/support/generated_pages.py writes it anew"


@pytest.mark.parametrize("page", sorted(generated_pages.DECISIONS.glob("*.md")), ids=lambda page: page.stem)
def test_a_decision_is_read_in_a_minute(page):
    lines = page.read_text("utf-8").splitlines()
    if page.name != "index.md":
        assert len(lines) <= 60
        assert max(map(len, lines)) <= 140


@pytest.mark.parametrize("name", [name for name in tl.errors.__all__ if name[0].isupper()])
def test_every_class_of_errors_is_in_the_index(name: str):
    assert f"| `{name}` |" in INDEX


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: tl.Agent(model=""), tl.errors.ConfigError),
        (lambda: tl.load_tasks("nowhere.jsonl"), tl.errors.InputError),
        (lambda: tl.open("nowhere.run"), tl.errors.RunFileError),
        (lambda: tl.LLM("nowhere"), tl.errors.ConfigError),
        (lambda: tl.TreeGRPO(trees=0), tl.errors.ConfigError),
        (lambda: tl.Budget(tokens=-1), tl.errors.ConfigError),
        (lambda: tl.Pool(workers=-1), tl.errors.ConfigError),
    ],
)
def test_a_message_that_is_raised_is_in_the_index(call, error):
    with pytest.raises(error) as raised:
        call()
    said = [one for one in error_index.messages() if one.error == error.__name__ and one.matches(str(raised.value))]
    assert any(len(one.text) > 10 for one in said), str(raised.value)


def raised_texts() -> Iterator[str]:
    """What is written at each `raise` of a public error: the constant parts of its message."""
    classes = {name for name in tl.errors.__all__ if name[0].isupper()}
    for path in error_index.PACKAGE.rglob("*.py"):
        if "examples" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Raise(ast.Call(ast.Name(name), [ast.Constant(str(text)), *_])) if name in classes:
                    yield text
                case ast.Raise(ast.Call(ast.Name(name), [ast.JoinedStr(parts), *_])) if name in classes:
                    yield from (part.value for part in parts if isinstance(part, ast.Constant))


def test_every_text_that_is_raised_where_it_is_written_is_in_the_index():
    texts = {re.sub(r"\s+", " ", text).strip() for text in raised_texts()}
    assert len(texts) > 700
    assert [text for text in texts if re.search(r"\w{4}", text) and text not in INDEX] == []
