"""Tools a model may call: the decorator, their schemas, and the runner that survives them."""

from __future__ import annotations

from trunkline.tools.runner import Observation, Toolbox
from trunkline.tools.tool import Tool, tool

__all__ = ["Observation", "Tool", "Toolbox", "tool"]
