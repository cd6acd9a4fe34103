"""Tools a model may call: the decorator, their schemas, and the runner that survives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline._internal.exports import exports

if TYPE_CHECKING:
    from trunkline.errors import ToolError
    from trunkline.tools.calls import Call, current_call
    from trunkline.tools.environment import Environment
    from trunkline.tools.tool import Tool, tool

__all__ = [
    "Call",
    "Environment",
    "Tool",
    "ToolError",
    "current_call",
    "tool",
]

__getattr__ = exports(
    __name__,
    """
errors: ToolError
tools.calls: Call current_call
tools.environment: Environment
tools.tool: Tool tool
""",
)
