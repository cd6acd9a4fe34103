"""What notebooks show: well-formed, small, and free of whatever a model wrote."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scored_runs import BROKE, RIGHT, WRONG, write

from trunkline.runner.result import Run
from trunkline.store.stats.compare import compare
from trunkline.tree.html import escaped, table

TAGS = {"div", "strong", "table", "thead", "tbody", "tr", "th", "td", "p"}
HOSTILE = "<script>alert(1)</script><img src=x onerror=y>\x1b[2J\u202e\ud800 &amp; \"'"


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS
        assert all(name == "style" and "color" not in str(value) for name, value in attrs)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def handle_comment(self, data: str) -> None:
        pytest.fail(data)


def read(html: str) -> str:
    html.encode()
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return "".join(reader.text)


@given(st.text(), st.lists(st.lists(st.text(), max_size=3), max_size=3), st.lists(st.text(), max_size=2))
def test_whatever_stands_in_a_table_is_text(title: str, rows: list[list[str]], head: list[str]):
    text = read(table(title, rows, head))
    for cell in head + [cell for row in rows for cell in row if cell.isprintable()]:
        if cell.isprintable():
            assert cell in text


def test_long_texts_are_cut():
    assert read(escaped("x" * 5000)).startswith("x" * 2000 + "… (3,000 more")


def test_runs_trees_trajectories_and_comparisons_show_themselves(tmp_path: Path):
    a = Run(write(tmp_path / "a", {"t": [RIGHT, (HOSTILE.replace("\ud800", ""), 0.0)], "u": [WRONG, BROKE]}), "done")
    b = Run(write(tmp_path / "b", {"t": [RIGHT, RIGHT], "u": [WRONG, WRONG]}), "done")
    shown = read(a._repr_html_())
    assert "accuracy of one rollout" in shown
    assert "2 of 2 finished" in shown
    tree = a["t"]
    shown = read(tree._repr_html_())
    assert "What is t?" in shown
    assert "<script>alert(1)</script>" in shown
    shown = read(tree.rollouts[1]._repr_html_())
    assert "<img src=x onerror=y>" in shown
    assert "\\x1b[2J\\u202e" in shown
    shown = read(compare(a.path, b.path)._repr_html_())
    assert "2 tasks: 1 better, 0 worse, 1 the same" in shown
    assert len(a._repr_html_()) < 5000
    a.path.unlink()
    assert "unreadable" in read(a._repr_html_())
