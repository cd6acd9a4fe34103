"""The guide to a model of one's own: its example, run as printed."""

from __future__ import annotations

import re

import pytest
from places import ROOT

(EXAMPLE,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guide/own-llm.md").read_text("utf-8"), re.DOTALL)


def test_the_example_runs_and_is_short(capsys: pytest.CaptureFixture[str]):
    code = [line for line in EXAMPLE.splitlines() if line.strip()]
    assert len(code) <= 12
    exec(compile(EXAMPLE, "own-llm.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == "0.5\n"
