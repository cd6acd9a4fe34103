"""A model of one's own: the example of the page, run as printed, gives the accuracy that it should."""

from __future__ import annotations

import re

import pytest
from places import ROOT

PAGE = (ROOT / "docs/coming-from/script.md").read_text("utf-8").partition("## A model of your own")[2]
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_example_runs_and_is_short(capsys: pytest.CaptureFixture[str]):
    code = [line for line in EXAMPLE.splitlines() if line.strip()]
    assert len(code) <= 12
    exec(compile(EXAMPLE, "script.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == "0.5\n"
