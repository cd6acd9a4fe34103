"""Tools a model may call: the decorator, their schemas, and the runner that survives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline._internal.exports import exports

if TYPE_CHECKING:
    from trunkline.errors import ToolError
    from trunkline.tools.builtin.calculator import calculator
    from trunkline.tools.builtin.http_get import http_get
    from trunkline.tools.builtin.sandboxed import files, python, shell
    from trunkline.tools.calls import Call, current_call
    from trunkline.tools.environment import Environment
    from trunkline.tools.review import ToolRequest
    from trunkline.tools.tool import Tool, tool

__all__ = [
    "Call",
    "Environment",
    "Tool",
    "ToolError",
    "ToolRequest",
    "calculator",
    "current_call",
    "files",
    "http_get",
    "python",
    "shell",
    "tool",
]

__getattr__ = exports(
    __name__,
    """
errors: ToolError
tools.builtin.calculator: calculator
tools.builtin.http_get: http_get
tools.builtin.sandboxed: files python shell
tools.calls: Call current_call
tools.environment: Environment
tools.review: ToolRequest
tools.tool: Tool tool
""",
)
