"""The lesson about an agent of another framework: its agent is that of the example."""

from __future__ import annotations

import doc_pages
from places import ROOT

PAGE = ROOT / "docs/tutorials/foreign-agent.md"


def test_the_agent_of_the_lesson_is_that_of_the_example():
    (agent,) = [block for block in doc_pages.blocks(PAGE.read_text("utf-8")) if block.title]
    assert agent.text == (ROOT / "examples/agent" / agent.title).read_text("utf-8")
