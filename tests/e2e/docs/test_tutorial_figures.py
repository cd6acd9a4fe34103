"""The first two lessons speak of figures: a run as printed gives these, digit by digit, but for times."""

from __future__ import annotations

import re
from pathlib import Path

import doc_pages
import pytest


@pytest.mark.parametrize("name", ["first-run", "comparison"])
def test_the_figures_of_a_lesson_are_those_of_its_run(name: str, tmp_path: Path):
    page, folder = doc_pages.ROOT / f"docs/tutorials/{name}.md", tmp_path / "page"
    folder.mkdir()
    done = doc_pages.run(page, folder, port=doc_pages.free_port())
    assert done.code == 0, done.output
    shown = [block for block in doc_pages.blocks(page.read_text("utf-8")) if "output" in block.marks]
    for line in "".join(block.text for block in shown).splitlines():
        assert plain(line) in plain(done.output), line


def plain(text: str) -> str:
    return re.sub(r"done in [\d.]+ s", "", re.sub(r"[ \t]+", " ", text)).removesuffix("…").strip()
