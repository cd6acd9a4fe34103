"""The page about pools of environments: its container, with a program in the place of Docker."""

from __future__ import annotations

import sys
from pathlib import Path

import doc_pages
import fake_docker
import pytest
from places import ROOT

PAGE = (ROOT / "docs/how-to/environment-pools.md").read_text("utf-8")


def test_the_container_makes_an_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (container,) = [block.text for block in doc_pages.blocks(PAGE) if "not run" in block.marks]
    program = tmp_path / "docker"
    program.write_text(f"#!{sys.executable}\n" + Path(fake_docker.__file__).read_text("utf-8"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    names: dict = {}
    exec(compile(container, "environment-pools.md", "exec", dont_inherit=True), names)
    assert [tool.name for tool in names["agent"].tools] == ["run", "read_file", "write_file"]
