"""A dialect of a user's own, importable by workers: ``CALL tool {json}`` on a line of its own, or the answer."""

from __future__ import annotations

from trunkline.llm.dialects.base import Parsed, spoken
from trunkline.llm.types import ToolCall


class Lines:
    native = False

    def prompt(self, tools):
        return "Tools: " + ", ".join(tool["function"]["name"] for tool in tools)

    def sampling(self, given):
        return given

    def parse(self, choice, tools):
        said = spoken(choice.content)
        words = [line.split(" ", 2) for line in said.splitlines() if line.startswith("CALL ")]
        return Parsed([ToolCall("", name, rest) for _, name, rest in words], None if words else said)

    def observe(self, call, text, id):
        return {"role": "user", "content": f"RESULT {call.name}: {text}"}
